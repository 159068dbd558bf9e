"""A small X11 client over one socket: the requests that a desktop's control needs, and no library.

Guarantees: one request at a time (a lock), every wait ends at `timeout_s`; a request the server refuses raises XError
when it has a reply, else it is counted in `errors`; events that were selected are kept in `events` (the newest 1000).
Speaks to a socket path, so the server may live in a sandbox of its own. Little-endian, protocol 11, no extension but
XTEST. Field layouts: X Window System Protocol, X Version 11, appendix B; XTEST Extension Protocol, version 2.2.
"""

from __future__ import annotations

import collections
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

KEY_PRESS, KEY_RELEASE, BUTTON_PRESS, BUTTON_RELEASE, MOTION = 2, 3, 4, 5, 6
CLIENT_MESSAGE, MAPPING_NOTIFY, GENERIC_EVENT = 33, 34, 35
SUBSTRUCTURE_NOTIFY, SUBSTRUCTURE_REDIRECT = 1 << 19, 1 << 20
ATOM, CARDINAL, WINDOW = 4, 6, 33
VIEWABLE = 2


class XError(RuntimeError):
    """The X server is gone, does not answer, or refused a request."""


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def read_cookie(file: Path, number: int) -> bytes:
    """The MIT-MAGIC-COOKIE-1 of display `number` in an Xauthority file; empty when there is none.

    Entries of any family count, a wildcard display too: python-xlib's blindness for FamilyWild is not repeated.
    """
    raw, at, found = file.read_bytes(), 0, b""
    while at < len(raw):
        at += 2
        fields = []
        for _ in range(4):  # address, display, method, data
            (size,) = struct.unpack_from(">H", raw, at)
            fields.append(raw[at + 2 : at + 2 + size])
            at += 2 + size
        if fields[2] == b"MIT-MAGIC-COOKIE-1" and fields[1] in (b"", str(number).encode()):
            found = fields[3]
    return found


class X11:
    """A connection; `root`, `width`, `height`, `min_keycode` and `max_keycode` as the server told."""

    def __init__(self, path: str, cookie: bytes = b"", timeout_s: float = 5.0) -> None:
        """Connect to the server's socket. Raises XError."""
        self.lock = threading.RLock()
        self.events: collections.deque[bytes] = collections.deque(maxlen=1000)
        self.errors = 0
        self.atoms: dict[str, int] = {}
        self._buffer = bytearray()
        self._sequence = 0
        self._replies: dict[int, bytes] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
            name = b"MIT-MAGIC-COOKIE-1" if cookie else b""
            hello = struct.pack("<cxHHHHxx", b"l", 11, 0, len(name), len(cookie))
            self._socket.sendall(hello + _pad(name) + _pad(cookie))
            head = self._exactly(8)
            body = self._exactly(4 * struct.unpack_from("<H", head, 6)[0])
        except OSError as e:
            self._socket.close()
            raise XError(f"no X server at {path}: {e}") from e
        if head[0] != 1:
            raise XError(f"the X server at {path} refuses: {body[: head[1]].decode(errors='replace').strip()}")
        self._read_setup(body)
        present, self.xtest = self._extension("XTEST")
        if not present:
            raise XError(f"the X server at {path} has no XTEST extension")

    def _read_setup(self, body: bytes) -> None:
        vendor, formats = struct.unpack_from("<H", body, 16)[0], body[21]
        self.min_keycode, self.max_keycode = body[26], body[27]
        self.resource_base = struct.unpack_from("<I", body, 4)[0]
        at = 32 + vendor + (-vendor % 4) + 8 * formats
        self.root = struct.unpack_from("<I", body, at)[0]
        self.width, self.height = struct.unpack_from("<HH", body, at + 20)
        self.depth = body[at + 38]

    # -- the wire -----------------------------------------------------------------------------------------------------
    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(65536)
            if not data:
                raise XError("the X server closed the connection")
            self._buffer += data
        out = bytes(self._buffer[:size])
        del self._buffer[:size]
        return out

    def send(self, opcode: int, data: int, body: bytes = b"") -> int:
        """Send a request without waiting; returns its sequence number."""
        with self.lock:
            try:
                self._socket.sendall(struct.pack("<BBH", opcode, data, 1 + len(body) // 4) + body)
            except OSError as e:
                raise XError(f"the X server does not take requests: {e}") from e
            self._sequence = (self._sequence + 1) & 0xFFFF
            return self._sequence

    def _packet(self) -> None:
        """Read one error, reply or event."""
        try:
            packet = self._exactly(32)
            if packet[0] in (1, GENERIC_EVENT):
                packet += self._exactly(4 * struct.unpack_from("<I", packet, 4)[0])
        except OSError as e:
            raise XError(f"the X server does not answer: {e or type(e).__name__}") from e
        sequence = struct.unpack_from("<H", packet, 2)[0]
        if packet[0] == 1 or (packet[0] == 0 and sequence in self._replies):
            self._replies[sequence] = packet
        elif packet[0] == 0:
            self.errors += 1
        elif packet[0] != GENERIC_EVENT:
            self.events.append(packet)

    def ask(self, opcode: int, data: int, body: bytes = b"") -> bytes:
        """Send a request and return its reply, from its first byte. Raises XError."""
        with self.lock:
            sequence = self.send(opcode, data, body)
            self._replies[sequence] = b""
            try:
                while not self._replies[sequence]:
                    self._packet()
                reply = self._replies[sequence]
            finally:
                del self._replies[sequence]
        if reply[0] == 0:
            raise XError(
                f"request {opcode} was refused: error {reply[1]}, value {struct.unpack_from('<I', reply, 4)[0]:#x}"
            )
        return reply

    def sync(self) -> None:
        """Return when the server has carried out everything sent so far."""
        self.ask(43, 0)

    def close(self) -> None:
        """Drop the connection."""
        self._socket.close()

    def _extension(self, name: str) -> tuple[bool, int]:
        reply = self.ask(98, 0, struct.pack("<Hxx", len(name)) + _pad(name.encode()))
        return bool(reply[8]), reply[9]

    # -- atoms and properties -----------------------------------------------------------------------------------------
    def atom(self, name: str) -> int:
        """The number of a name; made when it does not exist."""
        if name not in self.atoms:
            reply = self.ask(16, 0, struct.pack("<Hxx", len(name)) + _pad(name.encode()))
            self.atoms[name] = struct.unpack_from("<I", reply, 8)[0]
        return self.atoms[name]

    def property(self, window: int, name: str) -> bytes:
        """The value of a property (at most 256 KiB); empty when the window has none."""
        reply = self.ask(20, 0, struct.pack("<IIIII", window, self.atom(name), 0, 0, 65536))
        return reply[32 : 32 + struct.unpack_from("<I", reply, 16)[0] * reply[1] // 8]

    def numbers(self, window: int, name: str) -> list[int]:
        """A property of 32-bit numbers."""
        raw = self.property(window, name)
        return list(struct.unpack(f"<{len(raw) // 4}I", raw[: len(raw) // 4 * 4]))

    def set_numbers(self, window: int, name: str, kind: int, values: Sequence[int]) -> None:
        """Replace a property by 32-bit numbers of type `kind`."""
        data = struct.pack(f"<{len(values)}I", *values)
        self.send(18, 0, struct.pack("<IIIBxxxI", window, self.atom(name), kind, 32, len(values)) + data)

    def delete_properties(self, window: int) -> None:
        """Remove every property of a window."""
        reply = self.ask(21, 0, struct.pack("<I", window))
        for (a,) in struct.iter_unpack("<I", reply[32 : 32 + 4 * struct.unpack_from("<H", reply, 8)[0]]):
            self.send(19, 0, struct.pack("<II", window, a))

    def message(self, to: int, window: int, name: str, values: Sequence[int], mask: int = 0) -> None:
        """Send a client message about `window` to `to` (the root window with a mask, or a window without)."""
        data = [*values, 0, 0, 0, 0, 0][:5]
        event = struct.pack("<BBHII5I", CLIENT_MESSAGE, 32, 0, window, self.atom(name), *data)
        self.send(25, 0, struct.pack("<II", to, mask) + event)

    def select(self, window: int, mask: int) -> None:
        """Ask for events of a window."""
        self.send(2, 0, struct.pack("<III", window, 0x800, mask))

    # -- windows and pointer ------------------------------------------------------------------------------------------
    def children(self, window: int) -> list[int]:
        """Windows below `window`, from the bottom of the stack to its top."""
        reply = self.ask(15, 0, struct.pack("<I", window))
        count = struct.unpack_from("<H", reply, 16)[0]
        return list(struct.unpack_from(f"<{count}I", reply, 32))

    def box(self, window: int) -> tuple[int, int, int, int]:
        """(x, y, width, height) on the screen, in pixels."""
        width, height = struct.unpack_from("<HH", self.ask(14, 0, struct.pack("<I", window)), 16)
        x, y = struct.unpack_from("<hh", self.ask(40, 0, struct.pack("<IIhh", window, self.root, 0, 0)), 12)
        return x, y, width, height

    def viewable(self, window: int) -> bool:
        """Whether it is on the screen."""
        return self.ask(3, 0, struct.pack("<I", window))[26] == VIEWABLE

    def pointer(self) -> tuple[int, int, int]:
        """(x, y, mask): where the pointer is, which modifiers and buttons are down."""
        x, y, mask = struct.unpack_from("<hh4xH", self.ask(38, 0, struct.pack("<I", self.root)), 16)
        return x, y, mask

    def kill_client(self, window: int) -> None:
        """Cut the connection of the program that made `window`."""
        self.send(113, 0, struct.pack("<I", window))

    def image(self) -> bytes:
        """The screen as rows of 4 bytes per pixel, blue first; without the pointer."""
        whole = struct.pack("<IhhHHI", self.root, 0, 0, self.width, self.height, 0xFFFFFFFF)
        return self.ask(73, 2, whole)[32:]

    # -- keyboard -----------------------------------------------------------------------------------------------------
    def keyboard(self) -> list[list[int]]:
        """Keysyms of every keycode from `min_keycode` on."""
        count = self.max_keycode - self.min_keycode + 1
        reply = self.ask(101, 0, struct.pack("<BBxx", self.min_keycode, count))
        per = reply[1]
        flat = struct.unpack_from(f"<{per * count}I", reply, 32)
        return [list(flat[i * per : (i + 1) * per]) for i in range(count)]

    def set_keys(self, first: int, keysyms: Sequence[Sequence[int]]) -> None:
        """Give keycodes from `first` on new keysyms (rows of one length)."""
        flat = [k for row in keysyms for k in row]
        body = struct.pack("<BBxx", first, len(keysyms[0])) + struct.pack(f"<{len(flat)}I", *flat)
        self.send(100, len(keysyms), body)

    def fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        """One XTEST event: a key, a button, or (MOTION, 0, x, y) the pointer at a pixel."""
        self.send(self.xtest, 2, struct.pack("<BBxxII8xhh7xB", kind, detail, 0, 0, x, y, 0))
