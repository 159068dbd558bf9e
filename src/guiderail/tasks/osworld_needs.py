"""What each OSWorld task needs beyond a desktop, and what of it this project does not do (yet).

Guarantees: tells from the task file alone, without network; a need that a command hides (a script that downloads) is
not seen.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from guiderail.tasks.judges.registry import missing
from guiderail.tasks.osworld import OsworldTask

_URL = re.compile(r"https?://[^\s\"'<>\\)]+")
ACCOUNT_STEPS = {"googledrive": "google", "login": "google"}
BROWSER_STEPS = {"chrome_open_tabs", "chrome_close_tabs", "update_browse_history"}


@dataclass(frozen=True)
class Needs:
    """Needs of one task. `hosts`: network it reaches from the guest; `downloads`: files fetched for it."""

    task: str
    apps: tuple[str, ...]
    downloads: int
    hosts: tuple[str, ...]
    proxy: bool
    fixed_ip: bool
    accounts: tuple[str, ...]
    sudo: bool
    pyautogui: bool
    chrome: bool
    infeasible: bool
    missing: tuple[str, ...]

    @property
    def covered(self) -> bool:
        """Whether all its metrics, getters and steps are implemented."""
        return not self.missing

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"covered": self.covered}


def needs(task: OsworldTask) -> Needs:
    """What `task` needs."""
    downloads = [f["url"] for s in task.steps if s.type == "download" for f in s.parameters["files"]]
    for check in task.checks:
        for getter in (check.result, check.expected):
            if getter is not None and getter["type"] == "cloud_file":
                path = getter["path"]
                downloads += path if isinstance(path, list) else [path]
    other = [s.parameters for s in task.steps if s.type != "download"]
    getters = [g for c in task.checks for g in (c.result, c.expected) if g is not None and g["type"] != "cloud_file"]
    text = json.dumps([other, getters], ensure_ascii=False)
    hosts = {urlsplit(u).hostname or "" for u in _URL.findall(text)} - {"", "localhost", "127.0.0.1"}
    accounts = {ACCOUNT_STEPS[s.type] for s in task.steps if s.type in ACCOUNT_STEPS}
    accounts |= {"google" for g in getters if g["type"] == "googledrive_file"}
    return Needs(
        task=task.name,
        apps=task.apps,
        downloads=len(set(downloads)),
        hosts=tuple(sorted(hosts)),
        proxy=task.proxy,
        fixed_ip=task.fixed_ip,
        accounts=tuple(sorted(accounts)),
        sudo="{CLIENT_PASSWORD}" in text,
        pyautogui="pyautogui" in text,
        chrome=any(s.type in BROWSER_STEPS for s in task.steps) or "remote-debugging-port" in text,
        infeasible=task.infeasible,
        missing=tuple(missing(task)),
    )


def report(tasks: Sequence[OsworldTask]) -> str:
    """A page of text: totals, what is covered by domain, and what is not, by reason."""
    found = [needs(t) for t in tasks]
    covered = sum(n.covered for n in found)
    lines = [f"{len(found)} tasks; {covered} covered ({covered / max(1, len(found)):.0%})", ""]
    lines += [f"{'domain':<22}{'tasks':>6}{'covered':>9}"]
    domains = Counter(n.task.split("/")[0] for n in found)
    for domain, count in sorted(domains.items()):
        good = sum(n.covered for n in found if n.task.split("/")[0] == domain)
        lines.append(f"{domain:<22}{count:>6}{good:>9}")
    lines += ["", "needs:"]
    for name, count in _counts(found):
        lines.append(f"  {name:<24}{count:>5}")
    lines += ["", "apps: " + ", ".join(f"{a} {n}" for a, n in Counter(a for x in found for a in x.apps).most_common())]
    reasons = Counter(m for n in found for m in n.missing)
    if reasons:
        lines += ["", "not covered, by what is missing:"]
        lines += [f"  {reason:<48}{count:>4}" for reason, count in reasons.most_common()]
        lines += ["", "tasks that are not covered:"]
        lines += [f"  {n.task}  {', '.join(n.missing)}" for n in found if not n.covered]
    return "\n".join(lines)


def _counts(found: Iterable[Needs]) -> list[tuple[str, int]]:
    rows = list(found)
    return [
        ("downloads", sum(n.downloads > 0 for n in rows)),
        ("network from the guest", sum(bool(n.hosts) for n in rows)),
        ("proxy", sum(n.proxy for n in rows)),
        ("fixed IP", sum(n.fixed_ip for n in rows)),
        ("an account", sum(bool(n.accounts) for n in rows)),
        ("sudo in the guest", sum(n.sudo for n in rows)),
        ("pyautogui in the guest", sum(n.pyautogui for n in rows)),
        ("Chrome over CDP", sum(n.chrome for n in rows)),
        ("nothing: infeasible", sum(n.infeasible for n in rows)),
    ]
