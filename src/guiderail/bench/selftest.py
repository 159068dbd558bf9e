"""`guiderail selftest`: try every instance of a desktop suite, or a sample, and say which are no sound tasks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from guiderail.errors import Explained
from guiderail.progress import progress

SUITES = ("desktop", "desktop_office")


class Unsound(Explained, RuntimeError):
    """Some instances are no sound tasks."""


def command_options(p: argparse.ArgumentParser) -> None:
    """The command line."""
    p.add_argument("templates", nargs="*", metavar="TEMPLATE", help="only these templates (default: all)")
    p.add_argument("--suite", choices=SUITES, default="desktop", help="desktop_office needs LibreOffice")
    p.add_argument("--sample", type=int, default=0, metavar="N", help="only the first N instances of a template")
    p.add_argument("--slots", type=int, default=4, metavar="N", help="desktops at a time (default: 4)")
    p.add_argument("--json", default="", metavar="FILE", help="write every instance's scores there")


def run(a: argparse.Namespace) -> None:
    """Try them. Raises ParamError, Misconfigured, Unsound."""
    from guiderail.bench.desktop_check import Checked, check_all
    from guiderail.params import ParamError
    from guiderail.pool.vm.packages import lacks_office
    from guiderail.tasks.desktop.every import every
    from guiderail.tasks.desktop.suite import TEMPLATES

    known = TEMPLATES[a.suite]
    if unknown := [t for t in a.templates if t not in known]:
        raise ParamError(f"{unknown[0]}: no template of suite {a.suite}; there are: {', '.join(known)}.")
    if a.suite == "desktop_office" and (lacking := lacks_office()):
        raise ParamError(
            f"--suite desktop_office: LibreOffice is not on this machine ({', '.join(lacking)}). Run `guiderail doctor "
            "--install office` (as root)."
        )
    if a.slots < 1 or a.sample < 0:
        raise ParamError("--slots must be 1 or more, --sample 0 or more.")
    names = a.templates or list(known)
    tasks = [t for name in names for t in every(a.suite, name, a.sample or None)]
    unsound = 0
    with progress("self-tests", len(tasks)) as bar:

        def done(checked: Checked) -> None:
            nonlocal unsound
            if not checked.ok:
                unsound += 1
                print(checked, file=sys.stderr, flush=True)
            bar.update(unsound=str(unsound))

        found = asyncio.run(check_all(tasks, a.slots, done))
    print(f"{'template':<20} {'instances':>9} {'sound':>6}")
    for name in names:
        mine = [c for c in found if c.task.template == name]
        print(f"{name:<20} {len(mine):>9} {sum(c.ok for c in mine):>6}")
    if a.json:
        Path(a.json).write_text(json.dumps([asdict(c) | {"ok": c.ok} for c in found], indent=1) + "\n")
    if bad := [c for c in found if not c.ok]:
        shown = "\n".join(str(c) for c in bad[:5])
        raise Unsound(f"{len(bad)} of {len(found)} instances are no sound tasks, e.g.\n{shown}")
    print(f"all {len(found)} instances: start, doing nothing and tampering score 0, the expert 1")
