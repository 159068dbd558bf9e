"""`python -m guiderail.pool.chaos [--rounds 1000] [--clients 20] [--slots 8] [--provider process] [--keep DIR]`.

Exit status 0 when no invariant was violated; else 1, with each violation in a sentence and the logs kept. SIGINT and
SIGTERM end it, and every process of it, with 130.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from guiderail.pool.chaos.oracle import judge
from guiderail.pool.chaos.referee import Referee, RefereeError


async def run(referee: Referee, rounds: int, calm: float, pause: float, say: Callable[[int], None]) -> None:
    """Run it; a signal cancels it (also where a shell in the background had SIGINT ignored)."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await referee.run(rounds, calm, pause, say)


def main(argv: list[str] | None = None) -> int:
    """Run, judge, tell."""
    p = argparse.ArgumentParser(prog="python -m guiderail.pool.chaos", description="Kill and freeze; count the damage.")
    p.add_argument("--rounds", type=int, default=1000, help="faults (default: 1000)")
    p.add_argument("--clients", type=int, default=20)
    p.add_argument("--slots", type=int, default=8)
    p.add_argument(
        "--provider", choices=("process", "local_desktop"), default="process", help="machines: processes, or desktops"
    )
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--calm", type=float, default=10.0, help="seconds of peace before and after, to compare throughput")
    p.add_argument("--pause", type=float, default=0.6, help="longest pause between faults in seconds")
    p.add_argument("--keep", default="", metavar="DIR", help="keep the logs there (default: only after a violation)")
    a = p.parse_args(argv)
    root = Path(a.keep or tempfile.mkdtemp(prefix="guiderail-chaos-"))
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        p.error(f"{root} is not empty")

    def say(n: int) -> None:
        if n % 50 == 0 or n == a.rounds:
            print(f"round {n}/{a.rounds}", file=sys.stderr, flush=True)

    try:
        asyncio.run(run(Referee(root, a.clients, a.slots, a.seed, a.provider), a.rounds, a.calm, a.pause, say))
    except RefereeError as e:
        print(f"chaos: {e}\nlogs: {root}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print(f"chaos: ended by a signal; logs: {root}", file=sys.stderr)
        return 130
    verdict = judge(root)
    print(json.dumps(verdict.counts, indent=1))
    for said in verdict.violations[:50]:
        print(f"VIOLATED: {said}")
    print(f"{len(verdict.violations)} violations in {a.rounds} rounds")
    if verdict.violations or a.keep:
        print(f"logs: {root}")
    else:
        shutil.rmtree(root)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
