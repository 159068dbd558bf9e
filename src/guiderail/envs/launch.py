"""Start a Chromium under the process guard, with the same fonts on every machine.

Guarantees: the browser and all its children die with this process (also on SIGKILL; see `guard`); its profile lives in
a scratch folder that is removed at the end (what a killed guard left behind is swept at the next start); text is drawn
with the DejaVu fonts that ship inside matplotlib and nothing else, so frames do not depend on the machine's fonts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from guiderail.envs.cdp import Connection
from guiderail.envs.chromium import Chromium
from guiderail.envs.types import InfraError

PREFIX = "guiderail-browser-"
FONT_FILES = tuple(
    f"DejaVu{family}{style}.ttf"
    for family, styles in {
        "Sans": ("", "-Bold", "-Oblique", "-BoldOblique"),
        "SansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
        "Serif": ("", "-Bold", "-Italic", "-BoldItalic"),
    }.items()
    for style in styles
)
FAMILIES = {
    "DejaVu Sans": ("sans-serif", "system-ui", "Arial", "Helvetica", "Verdana", "Tahoma", "Trebuchet MS", "Segoe UI"),
    "DejaVu Serif": ("serif", "Times", "Times New Roman", "Georgia"),
    "DejaVu Sans Mono": ("monospace", "Courier", "Courier New", "Consolas", "Menlo"),
}
FLAGS = (
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-quic",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-client-side-phishing-detection",
    "--disable-hang-monitor",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,PaintHolding,LazyFrameLoading,"
    "AutofillServerCommunication,CertificateTransparencyComponentUpdater",
    "--disable-lcd-text",
    "--disable-partial-raster",
    "--font-render-hinting=full",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
    "--allow-file-access-from-files",
    "--hide-scrollbars",
    "--disable-smooth-scrolling",
    "--mute-audio",
    "--no-proxy-server",
    "--password-store=basic",
    "--use-mock-keychain",
    "--lang=en-US",
)
BEGIN_FRAME_FLAGS = (
    "--enable-begin-frame-control",
    "--run-all-compositor-stages-before-draw",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-checker-imaging",
    "--disable-image-animation-resync",
)


def write_fonts(folder: Path) -> Path:
    """Make `folder` a fontconfig world of DejaVu only; returns its fonts.conf. RuntimeError without matplotlib."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "matplotlib is not installed: its DejaVu fonts are what pages are drawn with. pip install matplotlib"
        )
    source = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    fonts = folder / "fonts"
    fonts.mkdir(parents=True)
    for name in FONT_FILES:
        shutil.copyfile(source / name, fonts / name)
    rules = "".join(
        f'<match target="pattern"><test name="family"><string>{alias}</string></test>'
        f'<edit name="family" mode="assign" binding="strong"><string>{family}</string></edit></match>\n'
        for family, aliases in FAMILIES.items()
        for alias in aliases
    )
    conf = folder / "fonts.conf"
    conf.write_text(
        '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "fonts.dtd">\n<fontconfig>\n'
        f"<dir>{fonts}</dir>\n<cachedir>{folder / 'font-cache'}</cachedir>\n{rules}"
        '<match target="pattern"><edit name="family" mode="append_last"><string>DejaVu Sans</string></edit></match>\n'
        '<match target="font"><edit name="antialias" mode="assign"><bool>true</bool></edit>'
        '<edit name="rgba" mode="assign"><const>none</const></edit></match>\n</fontconfig>\n'
    )
    return conf


def sweep(root: Path) -> None:
    """Remove scratch folders whose owner is gone (folder names carry the owner's pid)."""
    for folder in root.glob(f"{PREFIX}*"):
        pid = folder.name[len(PREFIX) :].split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Running:
    """A started browser: the guard's process, the pid of the guard, and the connection."""

    guard: asyncio.subprocess.Process
    connection: Connection
    status_fd: int
    scratch: Path
    begin_frame: bool

    def __post_init__(self) -> None:
        # A browser without its guard must not live on: it ends when its pipe closes.
        self._watch = asyncio.ensure_future(self.guard.wait())
        self._watch.add_done_callback(lambda _: self.connection.close())

    async def stop(self) -> None:
        """Close the connection, have the guard kill the rest, wait until it has. Idempotent."""
        self.connection.close()
        if self.status_fd >= 0:
            os.close(self.status_fd)
            self.status_fd = -1
        try:
            await asyncio.wait_for(self.guard.wait(), 15)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.guard.kill()
            await self.guard.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)


def arguments(browser: Chromium, profile: Path, sandbox: bool) -> list[str]:
    """The command line."""
    args = [browser.path, *FLAGS, f"--user-data-dir={profile}", "--window-size=160,224"]
    args += ["--headless", *BEGIN_FRAME_FLAGS] if browser.headless_shell else ["--headless=new"]
    if not sandbox:
        args.append("--no-sandbox")
    return args


async def start(browser: Chromium, *, timeout_s: float = 30.0) -> Running:
    """Start `browser` and wait until it answers; with --no-sandbox where no sandbox works (root, no user namespaces).

    Raises InfraError with the browser's last words when it does not come up.
    """
    root = Path(tempfile.gettempdir())
    sweep(root)
    try:
        return await _start(browser, root, timeout_s, sandbox=os.geteuid() != 0)
    except InfraError:
        if os.geteuid() == 0:
            raise
        return await _start(browser, root, timeout_s, sandbox=False)


async def _start(browser: Chromium, root: Path, timeout_s: float, *, sandbox: bool) -> Running:
    scratch = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
    log = scratch / "stderr.log"
    env = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "FONTCONFIG_FILE": str(write_fonts(scratch)),
        "DBUS_SESSION_BUS_ADDRESS": "disabled:",
        "DBUS_SYSTEM_BUS_ADDRESS": "disabled:",
        **browser.environment(),
    }
    to_browser, from_browser, status = os.pipe(), os.pipe(), os.pipe()
    command = [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), str(os.getpid())]
    command += [str(status[0]), str(to_browser[0]), str(from_browser[1]), str(scratch)]
    with log.open("wb") as errors:
        guard = await asyncio.create_subprocess_exec(
            *command,
            *arguments(browser, scratch / "profile", sandbox),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(status[0], to_browser[0], from_browser[1]),
            env=env,
            start_new_session=True,
        )
    for fd in (status[0], to_browser[0], from_browser[1]):
        os.close(fd)
    connection = await Connection.connect(from_browser[0], to_browser[1])
    running = Running(guard, connection, status[1], scratch, browser.headless_shell)
    try:
        await asyncio.wait_for(connection.send("Browser.getVersion"), timeout_s)
    except (InfraError, TimeoutError) as e:
        words = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-3:]
        await running.stop()
        raise InfraError(
            f"{browser.path} did not start within {timeout_s:g} s ({e}): {' | '.join(words)}", "crash"
        ) from e
    return running
