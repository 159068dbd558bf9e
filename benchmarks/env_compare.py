"""guiderail's environment against two peers: the same MiniWoB++ tasks and clicks, one side after another, in one run.

    python benchmarks/env_compare.py --peers-python PATH [--seconds 20] [--pages 8] [--episode 5] [--rounds 1]
        [--browser PATH] [--peers-browser PATH] [--chromedriver PATH] [--only WORD ...] [--json FILE]

Sides: our env through the pool over HTTP and by itself, with one page and with `--pages`; the `miniwob` package's own
Selenium environment; BrowserGym (Playwright) as shipped, without its pauses, and without its DOM and accessibility
tree. A step is a click at a fixed place and the picture after it, as an array; a reset comes every `--episode` steps,
is part of the time and is no step. Six templates, one after the other, each after an untimed warm-up, so that starting
an environment and loading its first page cost nobody anything. What one click is differs by design: our page lives
300 ms of virtual time after it, Selenium's none, BrowserGym's 0.6 s of real time as shipped.
"steps per CPU second" = steps / CPU seconds of a side's whole process tree (client, server, driver, browser): what one
core does, and the figure to compare on a machine that does other things too. Linux only.

The peers live in an interpreter of their own (their pins rule out ours):
    python3.11 -m venv DIR && DIR/bin/pip install -r benchmarks/peers/requirements.txt
and the Selenium side needs a chromedriver of the browser's version (Debian: apt-get install chromium-driver).
All sides use the browser that guiderail finds, unless told otherwise. A peer that is not there is a row that says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from guiderail.envs import chromium

PEERS = Path(__file__).resolve().parent / "peers"
GRACE_S = 30.0


@dataclass(frozen=True)
class Side:
    """One row: `name` as its script reports it, the script's arguments, the distribution that it needs (peers only)."""

    name: str
    pages: int
    command: tuple[str, ...]
    needs: str = ""


def sides(pages: int) -> list[Side]:
    """All rows in the order they run."""
    ours = "run_guiderail.py"
    several = [
        Side("guiderail, pool over HTTP", pages, (ours, "--pool", "--pages", str(pages))),
        Side("guiderail, BrowserEnv", pages, (ours, "--pages", str(pages))),
    ]
    gym, needs = "run_browsergym.py", "browsergym-miniwob"
    return [
        Side("guiderail, pool over HTTP", 1, (ours, "--pool")),
        Side("guiderail, BrowserEnv", 1, (ours,)),
        *(several if pages > 1 else []),
        Side("miniwob (Selenium)", 1, ("run_selenium.py",), "selenium"),
        Side("BrowserGym, no pauses, picture only", 1, (gym, "--variant", "picture"), needs),
        Side("BrowserGym, no pauses", 1, (gym, "--variant", "quick"), needs),
        Side("BrowserGym as shipped", 1, (gym, "--variant", "shipped"), needs),
    ]


def lacks(side: Side, args: argparse.Namespace) -> str:
    """Why this side cannot run, or nothing."""
    if not side.needs:
        return ""
    if not args.peers_python:
        return "no --peers-python given"
    if "selenium" in side.needs and not args.chromedriver:
        return "no chromedriver found (--chromedriver)"
    for package in (side.needs, "miniwob"):
        look = [args.peers_python, "-c", f"import importlib.metadata as m; m.version({package!r})"]
        try:
            if subprocess.run(look, capture_output=True, timeout=60.0).returncode:
                return f"{package} is not installed there"
        except OSError as e:
            return f"cannot run it: {e.strerror}"
    return ""


def stop(child: subprocess.Popen[str]) -> None:
    """Let a side close its browser, then make sure."""
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def run(side: Side, args: argparse.Namespace) -> dict[str, Any]:
    """Run one side once. Raises RuntimeError when it fails, with the end of what it said."""
    python, browser = (args.peers_python, args.peers_browser) if side.needs else (sys.executable, args.browser)
    command = [python, str(PEERS / side.command[0]), *side.command[1:], "--browser", browser]
    command += ["--seconds", str(args.seconds), "--episode", str(args.episode)]
    if side.needs == "selenium":
        command += ["--chromedriver", args.chromedriver]
    with tempfile.TemporaryDirectory(prefix="env-compare-", ignore_cleanup_errors=True) as scratch:  # profiles, logs
        child = subprocess.Popen(
            command,
            env=os.environ | {"TMPDIR": scratch},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, said = child.communicate(timeout=600.0 + 10 * args.seconds)
        except BaseException:
            stop(child)
            raise
    if child.returncode:
        raise RuntimeError("\n".join(said.strip().splitlines()[-3:]) or f"exit status {child.returncode}")
    figures: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return figures


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Median of each number over the rounds, and the range of the one to compare."""
    if not rounds:
        return {}
    row: dict[str, Any] = dict(rounds[0])
    for key, value in rounds[0].items():
        if isinstance(value, int | float):
            row[key] = statistics.median(r[key] for r in rounds)
    row["steps_per_cpu_s_range"] = [f(r["steps_per_cpu_s"] for r in rounds) for f in (min, max)]
    return row


def table(all_sides: list[Side], rows: dict[Side, dict[str, Any]], notes: dict[Side, str]) -> list[str]:
    """The table of all sides, and ours / peer."""
    head = f"{'':36s} {'pages':>5s} {'steps/s':>9s} {'steps/CPU s':>12s} {'step ms':>9s} {'reset ms':>9s}"
    lines = [f"{head} {'picture':>8s} {'steps':>6s} {'ended':>6s}"]
    for side in all_sides:
        name = f"{side.name:36s} {side.pages:5d}"
        if side in notes:
            lines.append(f"{name}   {notes[side]}")
            continue
        r = rows[side]
        lines.append(
            f"{name} {r['steps_per_s']:9.2f} {r['steps_per_cpu_s']:12.2f} {r['step_ms_p50']:9.1f} "
            f"{r['reset_ms_p50']:9.1f} {'x'.join(map(str, r['picture'])):>8s} {r['steps']:6.0f} {r['ended']:6.0f}"
        )
    ours, peers = ([s for s in rows if bool(s.needs) is peer] for peer in (False, True))
    if not ours or not peers:
        return lines
    lines += ["", f"{'ratio ours / peer':75s} {'by clock':>9s} {'by CPU':>9s}"]
    for peer in peers:
        for side in ours:
            clock, cpu = (rows[side][k] / rows[peer][k] for k in ("steps_per_s", "steps_per_cpu_s"))
            what = f"{side.name}, {side.pages} page{'s' * (side.pages > 1)} / {peer.name}"
            lines.append(f"{what:75s} {clock:9.1f} {cpu:9.1f}")
    return lines


def options() -> argparse.Namespace:
    """The command line, with the browsers filled in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", default="", help="interpreter with benchmarks/peers/requirements.txt")
    parser.add_argument("--seconds", type=float, default=20.0, help="timed seconds a side")
    parser.add_argument("--pages", type=int, default=8, help="our many pages")
    parser.add_argument("--episode", type=int, default=5, help="steps per reset")
    parser.add_argument("--rounds", type=int, default=1, help="run all sides this often in turn, report medians")
    parser.add_argument("--browser", default="", help="ours; empty = what guiderail finds")
    parser.add_argument("--peers-browser", default="", help="theirs; empty = the same")
    parser.add_argument("--chromedriver", default=shutil.which("chromedriver") or "", help="empty = the one on PATH")
    parser.add_argument("--only", nargs="+", default=[], help="only sides with one of these words in their name")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    args.browser = chromium.find(args.browser or None).path
    args.peers_browser = args.peers_browser or args.browser
    return args


def main() -> None:
    """Measure and print; exit status 1 when a side that is there failed."""
    args = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [s for s in sides(args.pages) if not args.only or any(w in s.name for w in args.only)]
    notes = {s: f"missing: {why}" for s in chosen if (why := lacks(s, args))}
    load = psutil.getloadavg()[0]
    found: dict[Side, list[dict[str, Any]]] = {s: [] for s in chosen if s not in notes}
    failed: set[Side] = set()
    for number in range(args.rounds):
        for side in found:
            if side in failed:
                continue
            print(f"round {number + 1}: {side.name}, {side.pages} page(s)", file=sys.stderr, flush=True)
            try:
                found[side].append(run(side, args))
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as e:
                failed.add(side)
                notes[side] = f"failed: {e}"
    rows = {s: middle(r) for s, r in found.items() if s not in failed}
    about: dict[str, Any] = {
        "cores": psutil.cpu_count(),
        "load_before": round(load, 2),
        "load_after": round(psutil.getloadavg()[0], 2),
        "python": platform.python_version(),
        "browser": chromium.find(args.browser).version,
        "peers_browser": chromium.find(args.peers_browser).version,
        "same_browser": args.browser == args.peers_browser,
        "seconds": args.seconds,
        "episode": args.episode,
        "rounds": args.rounds,
        "versions": sorted({str(r["version"]) for r in rows.values()}),
    }
    for key, value in about.items():
        print(f"{key:>14s}  {value}")
    print("\n".join(["", *table(chosen, rows, notes)]))
    if args.json:
        missing = [{"name": s.name, "pages": s.pages, "note": notes[s]} for s in chosen if s in notes]
        args.json.write_text(json.dumps(about | {"sides": [*rows.values(), *missing]}, indent=1) + "\n")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
