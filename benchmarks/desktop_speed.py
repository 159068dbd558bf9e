"""Local desktops: how fast they boot, reset and step, what they weigh; beside them OSWorld's own way of acting.

    python benchmarks/desktop_speed.py [--slots 1,4,8] [--seconds 10] [--boots 8] [--resets 20] [--torture 20]
        [--peers-python PATH] [--peer-steps 6] [--size 1280x720] [--json FILE]

- boot: from nothing to a desktop that answers, one after another, and `max(slots)` at a time; reset: of a desktop with
  an open, edited document.
- steps: clicks and typing in a text editor, each waited for until the screen has settled, each with its PNG; latency
  parts are the server's own clock (act, settle with its ping, capture, encode) and the rest (HTTP, client).
- memory: proportional set size of all processes of a slot (guard, server, X server, sandbox, session, editor).
- peer: as OSWorld's controller acts: a new Python per action that imports pyautogui, two seconds of pause, then a PNG
  by Pillow's ImageGrab; on one of the same desktops, in the same run. Needs an interpreter with pyautogui:
      python3 -m venv DIR && DIR/bin/pip install -r benchmarks/peers/desktop_requirements.txt
- torture: 200 characters with everything that pyautogui types wrong, typed into the editor, saved, compared.
CPU seconds are of all processes of the slots: on a machine that does other things too they are the figure to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import string
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from guiderail.actions.types import Action, Click, Key, Type
from guiderail.params_desktop import Desktop
from guiderail.pool.providers import make_desktop
from guiderail.pool.providers.base import VmSpec
from guiderail.pool.providers.local_desktop import LocalDesktopProvider
from guiderail.tasks.types import TaskSpec

BLANK = TaskSpec("blank", "blank", 0)
FOREIGN = (
    '<a>|\\n naïve café ÄÖÜß ñ § ° µ ¿¡ Ω → € … „“ 你好世界 日本 한국 привет עברית 😀🚀 ∑√∞≤ don\'t "quote" `tick` '
)
TORTURE = (string.printable[:95] + FOREIGN * 2)[:200]
PEER_DISPLAY = 77
PEER_ACT = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
PEER_SHOT = """
import io, sys
from PIL import ImageGrab
for line in sys.stdin:
    out = io.BytesIO()
    ImageGrab.grab(xdisplay=line.strip()).save(out, "PNG")
    print(len(out.getvalue()), flush=True)
"""


def spread(values: list[float]) -> dict[str, float]:
    """Median, 95th percentile, extremes."""
    v = sorted(values)
    at = min(len(v) - 1, round(0.95 * (len(v) - 1)))
    return {
        "median": round(statistics.median(v), 3),
        "p95": round(v[at], 3),
        "min": round(v[0], 3),
        "max": round(v[-1], 3),
    }


def histogram(values: list[float], width: int = 30) -> str:
    """Ten rows of bars."""
    low, high = min(values), max(values)
    step = (high - low) / 10 or 1.0
    counts = [0] * 10
    for v in values:
        counts[min(9, int((v - low) / step))] += 1
    rows = (f"    {low + i * step:6.2f} s {'#' * round(width * c / max(counts))} {c}" for i, c in enumerate(counts))
    return "\n".join(row for row, c in zip(rows, counts, strict=True) if c)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def pss_mb(pid: int) -> float:
    """Proportional set size of a slot."""
    total = 0.0
    for p in tree(pid):
        with contextlib.suppress(psutil.Error):
            total += p.memory_full_info().pss
    return total / 1e6


def cpu_s(pid: int) -> float:
    """Processor seconds of a slot so far (those of programs that ended are their parents')."""
    total = 0.0
    for p in tree(pid):
        with contextlib.suppress(psutil.Error):
            t = p.cpu_times()
            total += t.user + t.system + t.children_user + t.children_system
    return total


class Bench:
    """One run."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        width, height = (int(n) for n in a.size.split("x"))
        desktop = Desktop(width=width, height=height)
        provider = make_desktop(desktop, 60.0)
        assert isinstance(provider, LocalDesktopProvider)
        self.provider, self.number = provider, 0
        self.found: dict[str, Any] = {"machine": platform.platform(), "cpus": os.cpu_count(), "size": a.size}

    async def slot(self) -> Any:
        """A new desktop's env."""
        self.number += 1
        vm = await self.provider.create(VmSpec(f"bench-{self.number}", "bench"))
        return await self.provider.connect(vm)

    async def end(self) -> None:
        """End all desktops."""
        for vm_id in list(self.provider.vms):
            await self.provider.terminate(vm_id)

    def pid(self, env: Any) -> int:
        """The guard of an env's slot."""
        return self.provider.slots[env].guard.pid

    async def boots(self) -> None:
        """One at a time, then many."""
        times = []
        for _ in range(self.a.boots):
            began = time.perf_counter()
            await self.slot()
            times.append(time.perf_counter() - began)
            await self.end()
        print(f"boot, one at a time: {spread(times)}\n{histogram(times)}")
        many = max(self.a.slots)
        began = time.perf_counter()
        await asyncio.gather(*(self.slot() for _ in range(many)))
        together = time.perf_counter() - began
        print(f"boot, {many} at a time: all after {together:.2f} s")
        self.found |= {"boot_s": spread(times), f"boot_{many}_s": round(together, 2)}
        await self.end()

    async def editor(self, env: Any, text: str = "") -> None:
        """A fresh desktop with an open file."""
        await env.reset(BLANK)
        await env.machine.write("~/typed.txt", text.encode())
        await env.machine.open_file("~/typed.txt")

    async def resets(self) -> None:
        """Of a desktop with an edited document; equal pixels are part of it."""
        env = await self.slot()
        first = (await env.reset(BLANK)).observation.frame
        times, same = [], 0
        for _ in range(self.a.resets):
            await self.editor(env)
            await env.step(Type("something"))
            began = time.perf_counter()
            frame = (await env.reset(BLANK)).observation.frame
            times.append(time.perf_counter() - began)
            same += frame == first
        print(f"reset: {spread(times)}, {same} of {len(times)} pixel-identical\n{histogram(times)}")
        self.found |= {"reset_s": spread(times), "identical": f"{same}/{len(times)}"}
        await self.end()

    async def torture(self) -> None:
        """Type, save, compare."""
        env, right = await self.slot(), 0
        for _ in range(self.a.torture):
            await self.editor(env)
            await env.step(Type(TORTURE))
            await env.step(Key(("ctrl", "s")))
            for _ in range(100):
                if not any(w["title"].startswith("*") for w in await env.machine.windows()):
                    break
                await asyncio.sleep(0.05)
            right += (await env.machine.read("~/typed.txt")).decode().rstrip("\n") == TORTURE
        print(f"torture: {len(TORTURE)} characters right {right} of {self.a.torture} times")
        self.found["torture"] = f"{right}/{self.a.torture}"
        await self.end()

    async def steps(self) -> None:
        """Settled steps a second, and where the time goes."""
        for count in self.a.slots:
            envs = await asyncio.gather(*(self.slot() for _ in range(count)))
            await asyncio.gather(*(self.editor(e, "line\n" * 40) for e in envs))
            parts: dict[str, list[float]] = defaultdict(list)
            settled = 0
            actions: list[Action] = [
                Click(0.5, 0.4),
                Type("hello "),
                Click(0.45, 0.5),
                Key(("end",)),
                Type("wörld <&>\n"),
            ]
            before = sum(cpu_s(self.pid(e)) for e in envs)
            began = time.perf_counter()
            end = began + self.a.seconds

            async def play(env: Any, parts: Any = parts, end: float = end, actions: Any = actions) -> int:
                done = 0
                while time.perf_counter() < end:
                    at = time.perf_counter()
                    info = (await env.step(actions[done % len(actions)])).info
                    parts["step"].append(1000 * (time.perf_counter() - at))
                    for k in ("act_ms", "settle_ms", "ping_ms", "grab_ms", "encode_ms"):
                        parts[k].append(info[k])
                    parts["settled"].append(info["settled"])
                    done += 1
                return done

            total = sum(await asyncio.gather(*(play(e) for e in envs)))
            took = time.perf_counter() - began
            cpu = sum(cpu_s(self.pid(e)) for e in envs) - before
            memory = [pss_mb(self.pid(e)) for e in envs]
            settled = sum(map(bool, parts.pop("settled")))
            row = {
                "slots": count,
                "steps_per_s": round(total / took, 1),
                "per_slot": round(total / took / count, 2),
                "cpu_ms_per_step": round(1000 * cpu / total, 1),
                "settled": f"{settled}/{total}",
                "pss_mb_per_slot": round(statistics.mean(memory), 1),
                "pss_mb_all": round(sum(memory)),
                "median_ms": {k.removesuffix("_ms"): round(statistics.median(v), 1) for k, v in parts.items()},
                "p90_ms": {k.removesuffix("_ms"): round(sorted(v)[int(0.9 * len(v))], 1) for k, v in parts.items()},
            }
            print(json.dumps(row))
            self.found.setdefault("steps", []).append(row)
            if count == 1:
                await self.peer(envs[0], row["per_slot"])
            await self.end()
            envs = await asyncio.gather(*(self.slot() for _ in range(count)))  # again, for the weight of bare desktops
            bare = sum(pss_mb(self.pid(e)) for e in envs)
            row["pss_mb_bare_all"] = round(bare)
            print(f"    {count} bare desktops weigh {bare:.0f} MB")
            await self.end()

    async def peer(self, env: Any, ours: float) -> None:
        """OSWorld's way on the same desktop."""
        if not self.a.peers_python:
            print("peer: not measured (--peers-python)")
            return
        link = Path(f"/tmp/.X11-unix/X{PEER_DISPLAY}")
        link.parent.mkdir(exist_ok=True)
        if link.is_symlink() and not link.exists():  # left by a run that was killed
            link.unlink()
        link.symlink_to(Path(self.provider.slots[env].folder) / "x" / "X0")
        display = f":{PEER_DISPLAY}"
        environment = {**os.environ, "DISPLAY": display, "XDG_SESSION_TYPE": "x11", "XAUTHORITY": os.devnull}
        camera = subprocess.Popen(
            [self.a.peers_python, "-c", PEER_SHOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert camera.stdin and camera.stdout
            rows, spent = [], 0.0
            codes = ["pyautogui.click(640, 300)", "pyautogui.typewrite('hello ')", "pyautogui.press('end')"]
            for i in range(self.a.peer_steps + 1):
                began = time.perf_counter()
                cpu = os.times()
                command = [self.a.peers_python, "-c", PEER_ACT + codes[i % len(codes)]]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"peer: pyautogui does not work here: {done.stderr.strip()[-300:]}")
                    return
                acted = time.perf_counter()
                await asyncio.sleep(2.0)
                paused = time.perf_counter()
                camera.stdin.write(display + "\n")
                camera.stdin.flush()
                camera.stdout.readline()
                now, after = time.perf_counter(), os.times()
                if i:  # the first warms caches
                    rows.append((acted - began, paused - acted, now - paused, now - began))
                    spent += after.children_user + after.children_system - cpu.children_user - cpu.children_system
            names = ("act", "pause", "picture", "step")
            medians = {n: round(1000 * statistics.median(r[i] for r in rows)) for i, n in enumerate(names)}
            rate = 1000 / medians["step"]
            ratio = ours / rate
            print(f"peer (OSWorld's way): {medians} ms, {rate:.2f} steps/s, act {1000 * spent / len(rows):.0f} ms CPU")
            print(f"ratio: {ours:.2f} / {rate:.2f} = {ratio:.1f}x the steps per second of one slot")
            self.found["peer"] = {**medians, "steps_per_s": round(rate, 3), "ratio": round(ratio, 1)}
        finally:
            link.unlink()
            camera.kill()
            camera.wait()

    async def run(self) -> None:
        """Everything."""
        await self.provider.start()
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
        try:
            await self.boots()
            await self.resets()
            await self.torture()
            await self.steps()
        finally:
            await self.provider.stop()
        print(f"load after: {os.getloadavg()[0]:.1f}")


def main() -> int:
    """Run and tell."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--slots", type=lambda t: [int(n) for n in t.split(",")], default=[1, 4, 8])
    p.add_argument("--seconds", type=float, default=10.0)
    p.add_argument("--boots", type=int, default=8)
    p.add_argument("--resets", type=int, default=20)
    p.add_argument("--torture", type=int, default=20)
    p.add_argument("--peers-python", default="")
    p.add_argument("--peer-steps", type=int, default=6)
    p.add_argument("--size", default="1280x720")
    p.add_argument("--json", default="", metavar="FILE")
    bench = Bench(p.parse_args())
    asyncio.run(bench.run())
    if bench.a.json:
        Path(bench.a.json).write_text(json.dumps(bench.found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
