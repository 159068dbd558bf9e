"""All routes of a desktop's server: OSWorld's (`osworld_routes`), and ours beside them.

Ours: GET /guiderail, /windows, POST /act, /look, /reset, /claim; see their functions. Guarantees: a machine belongs to
the first name that claimed it; a call that names another machine, or an older lease, is refused and nothing is done.
"""

from __future__ import annotations

import json
import time
from typing import Any

from guiderail.actions.wire import action_dumps, action_from_json
from guiderail.pool.vm import osworld_routes
from guiderail.pool.vm.desktop import Desktop
from guiderail.pool.vm.guest import GuestError
from guiderail.pool.vm.http import Refused, Request, Response, as_json
from guiderail.pool.vm.journal import Journal
from guiderail.pool.vm.osworld_routes import OsworldRoutes, Table
from guiderail.pool.vm.screen import png
from guiderail.pool.vm.settle import Rule, Settled
from guiderail.pool.vm.x11 import XError

VERSION = 1
LOOKS = osworld_routes.LOOKS | {"/look", "/reset", "/claim"}
"""POSTs that leave the desktop as it is."""


class Routes:
    """Answers requests for one desktop."""

    def __init__(self, desktop: Desktop, *, strict: bool, journal: Journal | None = None) -> None:
        self.desktop, self.journal, self.fence, self.name = desktop, journal, 0, ""
        self.osworld = OsworldRoutes(desktop, strict=strict)
        self.table: Table = {
            ("GET", "/guiderail"): self.about,
            ("POST", "/claim"): self.claim,
            ("POST", "/act"): self.act,
            ("POST", "/look"): self.look,
            ("POST", "/reset"): self.reset,
            ("GET", "/windows"): self.windows,
            **self.osworld.table,
        }

    def __call__(self, request: Request) -> Response:
        """Answer. Raises Refused."""
        found = self.table.get((request.method, request.path))
        if found is None:
            raise Refused(404, f"no route {request.method} {request.path}", "no_route")
        if request.machine and request.machine != self.name:
            self._not_yours(request.machine)
        if request.method == "POST" and request.path not in LOOKS:
            self.desktop.untouched = False
        try:
            return found(request)
        except ValueError as e:
            raise Refused(400, str(e), "bad_request") from None
        except (XError, GuestError) as e:
            raise Refused(500, f"{type(e).__name__}: {e}", "desktop") from None

    def _not_yours(self, name: str) -> None:
        raise Refused(409, f"this is machine {self.name or 'of nobody yet'}, not {name}", "not_yours")

    def about(self, _: Request) -> Response:
        """What this server is: {"server": "guiderail", "version", "strict", "sandboxed", "size", "home", "notes"}, the
        "name" whose machine it is, and whether it "resets" its desktop in place."""
        d = self.desktop
        told = {"server": "guiderail", "version": VERSION, "strict": self.osworld.strict, "sandboxed": d.sandboxed}
        told |= {"size": list(d.size), "home": d.guest.home, "notes": d.notes, "name": self.name, "resets": d.resets}
        return as_json(told)

    def claim(self, request: Request) -> Response:
        """{"name"}: the machine is that name's from now on; 409 when it is another's already."""
        name = request.json().get("name")
        if not isinstance(name, str) or not name:
            raise Refused(400, "name must be a text", "bad_request")
        if name != (self.name or name):
            self._not_yours(name)
        self.name = name
        return as_json({"name": self.name})

    def act(self, request: Request) -> Response:
        """{"action": typed action, "fence", "settle": bool, "screenshot": bool} -> see `_seen`. 422 for an action that
        means nothing here (nothing was done then)."""
        told = request.json()
        began = time.perf_counter()
        try:
            action = action_from_json(told.get("action"))
            self._note("step", told, action_dumps(action))
            self.desktop.act(action)
        except ValueError as e:
            raise Refused(422, str(e), "invalid_action") from None
        return self._seen(told, {"act_ms": 1000 * (time.perf_counter() - began)})

    def look(self, request: Request) -> Response:
        """{"settle": bool, "screenshot": bool}: the screen without an action."""
        return self._seen(request.json(), {})

    def reset(self, request: Request) -> Response:
        """A fresh desktop, then as `look`."""
        told = request.json()
        began = time.perf_counter()
        self._note("reset", told, "")
        self.desktop.reset()
        return self._seen({"settle": False, **told}, {"reset_ms": 1000 * (time.perf_counter() - began)})

    def _note(self, kind: str, told: dict[str, Any], what: str) -> None:
        """Take the call's fencing token, write the call down. Raises Refused for a token older than one seen before."""
        fence = told.get("fence", self.fence)
        if not isinstance(fence, int) or fence < self.fence:
            if self.journal is not None:
                self.journal.write("refused", int(fence), what)
            raise Refused(409, f"fencing token {fence} is older than {self.fence}", "desktop")
        self.fence = fence
        if self.journal is not None:
            self.journal.write(kind, fence, what)

    def _seen(self, wanted: dict[str, Any], info: dict[str, Any]) -> Response:
        """The PNG, with what was measured in the header X-Guiderail; without "screenshot" that as the body."""
        d = self.desktop
        frame = b""
        if wanted.get("settle", True):
            rule = Rule(float(wanted.get("quiet_s", d.rule.quiet_s)), float(wanted.get("limit_s", d.rule.limit_s)))
            seen: Settled = d.settle(rule)
            frame = seen.frame
            info |= {"settled": seen.ok, "ping_ms": round(seen.ping_ms, 2), "settle_ms": round(seen.total_ms, 2)}
        if d.notes:
            info["notes"] = list(d.notes)
        if not wanted.get("screenshot", True):
            return as_json(info)
        began = time.perf_counter()
        frame = frame or d.frames.grab()
        grabbed = time.perf_counter()
        picture = png(frame, *d.size)
        info |= {"grab_ms": 1000 * (grabbed - began), "encode_ms": 1000 * (time.perf_counter() - grabbed)}
        return Response(picture, "image/png", 200, {"X-Guiderail": json.dumps(info)})

    def windows(self, _: Request) -> Response:
        """{"windows": [{"id", "title", "app", "box", "kind", "active", "pid"}]}, oldest first."""
        return as_json({"windows": [vars(w) for w in self.desktop.windows.all()]})
