"""Judges a chaos run from logs that the pool has no hand in, and from the faults that the server itself complains of.

`journal`: written by the machines, one line before each action is applied (time, machine, fencing token, kind, what).
`client-*.jsonl`: what each client was given and told. `referee.jsonl`: what the referee killed and counted.
Invariants: no action applied twice; an acknowledged action was applied; no lease and no token given to two episodes, no
machine worked under two leases at a time or uncleaned after one; every episode ends with a typed outcome unless its
client was killed, and none because of a fault in the server (a traceback in its log); never more machines than slots
for longer than the sweep takes; none left at the end; nothing that was waited for came too late; the pool works before
the harm and goes on after it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUTCOMES = ("success", "infra_error:crash", "infra_error:timeout", "infra_error:lease_lost")
GUI_RL = ("infra_error", "lease_ended", "unknown_lease", "no_slot", "request_reused", "not_reset", "unreachable")
RECOVERY = 0.3  # the last calm window must reach this share of the first


@dataclass
class Verdict:
    """Sentences of what was violated, and counts."""

    violations: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)

    def claim(self, holds: bool, said: str) -> None:
        """An invariant."""
        if not holds:
            self.violations.append(said)


def lines(path: Path) -> list[list[Any]]:
    """A log; a last line torn by a full disk or a kill of the machine is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def judge(root: Path) -> Verdict:
    """All invariants."""
    v = Verdict()
    journal = lines(root / "cloud" / "journal")
    clients = sorted((x for f in root.glob("client-*.jsonl") for x in lines(f)), key=lambda x: x[0])
    referee = lines(root / "referee.jsonl")
    applied = actions(v, journal)
    machines(v, journal)
    acknowledged(v, clients, applied)
    leases(v, clients)
    episodes(v, clients, {x[2] for x in referee if x[1] == "killed client"})
    leaks(v, referee)
    faults(v, root / "server.log")
    recovery(v, referee, clients)
    v.counts["faults"] = dict(Counter(x[1] for x in referee if x[1] not in ("calm", "machines")))
    return v


def text_of(what: str) -> str:
    """The marker inside a journalled action."""
    return str(json.loads(what).get("text", what))


def actions(v: Verdict, journal: list[list[Any]]) -> Counter[str]:
    """No action twice."""
    applied = Counter(text_of(what) for _, _, _, kind, what in journal if kind == "step")
    for marker, count in applied.items():
        v.claim(count == 1, f"action {marker} was applied {count} times")
    v.counts["actions"] = len(applied)
    return applied


def machines(v: Verdict, journal: list[list[Any]]) -> None:
    """One lease at a time on a machine: its tokens come in order, and a token means one episode on one machine."""
    last: dict[str, int] = {}
    owner: dict[int, tuple[str, str]] = {}
    dirty: dict[str, int] = {}  # machine -> token it was worked with since it was clean
    for _, machine, token, kind, what in journal:
        if kind in ("boot", "clean"):
            dirty.pop(machine, None)
        if kind not in ("step", "reset"):
            continue
        before = dirty.setdefault(machine, token)
        v.claim(before == token, f"machine {machine} was worked with token {token} uncleaned after token {before}")
        v.claim(token >= last.get(machine, 0), f"machine {machine} was worked with token {token} after a newer one")
        last[machine] = max(token, last.get(machine, 0))
        if kind == "step":
            mine = (machine, text_of(what).rpartition("-")[0])
            v.claim(owner.setdefault(token, mine) == mine, f"token {token} was used by {owner[token]} and by {mine}")
    v.counts["machines"] = len({m for _, m, *_ in journal})


def acknowledged(v: Verdict, clients: list[list[Any]], applied: Counter[str]) -> None:
    """What a client was told is done was done, once told."""
    acks = Counter(x[4] for x in clients if x[2] == "ack")
    for marker, count in acks.items():
        v.claim(marker in applied, f"action {marker} was acknowledged but no machine applied it")
        v.claim(count == 1, f"action {marker} was acknowledged {count} times")
    v.counts["acknowledged"] = len(acks)


def leases(v: Verdict, clients: list[list[Any]]) -> None:
    """A lease belongs to one episode."""
    owner: dict[str, tuple[str, int]] = {}
    for _, name, kind, episode, *rest in clients:
        if kind == "lease":
            mine = (name, episode)
            v.claim(owner.setdefault(rest[0], mine) == mine, f"{rest[0]} was given to {owner[rest[0]]} and to {mine}")
    v.counts["leases"] = len(owner)


def episodes(v: Verdict, clients: list[list[Any]], killed: set[str]) -> None:
    """Every episode ends with a typed outcome."""
    begun = {(x[1], x[3]) for x in clients if x[2] == "begin"}
    ended = {(x[1], x[3]): x[4] for x in clients if x[2] == "end"}
    last: dict[str, int] = defaultdict(int)
    for name, episode in begun:
        last[name] = max(last[name], episode)
    known = {*OUTCOMES, *(f"infra_error:{c}" for c in GUI_RL)}
    for name, episode in sorted(begun):
        if (name, episode) not in ended:
            v.claim(name in killed and episode == last[name], f"episode {episode} of {name} has no outcome")
    for key, outcome in ended.items():
        v.claim(outcome in known, f"episode {key} ended with {outcome!r}")
    v.counts["episodes"] = dict(Counter(ended.values()))


def leaks(v: Verdict, referee: list[list[Any]]) -> None:
    """Machines counted from outside, by the processes that are there; and what did not come about in time."""
    for _, kind, *what in referee:
        if kind == "leak":
            v.claim(False, f"{what[0]}")
        elif kind == "late":
            v.claim(False, f"it took too long until {what[0]}")


def faults(v: Verdict, log: Path) -> None:
    """Whatever harm is done to it, the server meets no error that it did not expect."""
    found = [x for x in log.read_text(errors="replace").splitlines() if "Traceback" in x] if log.exists() else []
    v.claim(not found, f"the server met {len(found)} faults of its own: see Traceback in its log")


def recovery(v: Verdict, referee: list[list[Any]], clients: list[list[Any]]) -> None:
    """Acknowledged actions a second, in the calm before and after."""
    calm = [(x[2], x[3]) for x in referee if x[1] == "calm"]
    acks = [x[0] for x in clients if x[2] == "ack"]
    rates = [sum(a <= t < b for t in acks) / (b - a) for a, b in calm]
    v.counts["actions_per_s"] = [round(r, 1) for r in rates]
    v.claim(len(rates) >= 2, f"there were {len(rates)} windows of calm: nothing shows that the pool recovered")
    if rates:
        v.claim(rates[0] > 0, "no action was acknowledged before any harm was done")
        v.claim(rates[-1] >= RECOVERY * rates[0], f"throughput was {rates[0]:.1f}/s before and {rates[-1]:.1f}/s after")
