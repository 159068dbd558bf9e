"""Telling a retry from a repetition, for clients that send no request id.

gui-rl's client asks up to ten times, a second apart, and never says that it asks again. Rules for an action equal to
the last one of the lease, in this order:

1. the last one still runs: a retry (it gets the same reply);
2. the lease asked for something else in between: a repetition, since the client is sequential;
3. the connection that carried the last reply has carried another request since: a repetition, since a client reads a
   reply before it uses the connection again;
4. the connection broke before the reply was out: a retry;
5. less than `PAUSE_S` after the reply: a repetition, since a retry is never that quick; else a retry.

So an action is never done twice because a reply was lost; the price is that a true repetition may be swallowed in case
5 (its reply says `replayed`). Behind a proxy 3 does not hold: send `request_id` in the body, which overrides all this.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

PAUSE_S = 0.9
KEPT = 4096

Connection = tuple[str, int]


@dataclass
class Last:
    """The last call of a lease that changes anything."""

    key: int
    request_id: str
    connection: Connection
    replied: float = 0.0  # when its reply went out; 0 = it runs
    lost: bool = False
    read: bool = False

    def repeated(self, key: int, now: float, pause_s: float = PAUSE_S) -> bool:
        """Whether a call with `key` is this one, asked for again."""
        if key != self.key or self.read:
            return False
        return not self.replied or self.lost or now - self.replied >= pause_s


class Connections:
    """Which reply was the last on each connection."""

    def __init__(self) -> None:
        self.last: OrderedDict[Connection, Last] = OrderedDict()

    def came(self, connection: Connection) -> None:
        """A request came on it: what was answered on it before has been read."""
        before = self.last.pop(connection, None)
        if before is not None and before.replied and not before.lost:
            before.read = True

    def answered(self, connection: Connection, last: Last) -> None:
        """The reply to `last` goes out on it."""
        self.last[connection] = last
        while len(self.last) > KEPT:
            self.last.popitem(last=False)
