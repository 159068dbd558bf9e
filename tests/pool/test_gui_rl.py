"""gui-rl's client, unmodified, against our server: its calls in its order, its retries, its dead clients."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from guiderail.actions.types import Action, Wait
from guiderail.envs.types import StepResult
from guiderail.pool.config import PoolConfig
from guiderail.pool.gui_rl import GuiRl
from guiderail.pool.manager import Pool
from guiderail.pool.providers.noop import NoopEnv, NoopProvider
from guiderail.pool.providers.process import ProcessProvider
from guiderail.pool.retries import Connections, Last
from guiderail.pool.store import Store
from pool.serving import TOKEN, GuiRlClient, lossy, serving

TASK = {"id": "noop/count/7", "instruction": "count", "config": [], "evaluator": {}}
CLICK = "pyautogui.click(3, 4)"


def run(
    test: Callable[[Pool, str], Awaitable[None]],
    tmp_path: Path,
    slots: int = 2,
    call_timeout_s: float = 2.0,
    **options: Any,
) -> None:
    async def main() -> None:
        pool = Pool(NoopProvider(), PoolConfig(slots, call_timeout_s, 30.0))
        async with serving(pool, GuiRl(recordings=tmp_path, **options)) as url:
            await asyncio.wait_for(test(pool, url), 60)

    asyncio.run(main())


def steps_of(pool: Pool, lease_id: str) -> int:
    """What was really done on the machine of a lease."""
    env = pool.machines.slots[pool.table.leases[lease_id].slot].env
    assert isinstance(env, NoopEnv)
    return env.steps


def test_a_script_that_waits_is_no_screen_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own waits come on top of the limit of a call; the machine and the lease live on."""
    real = NoopEnv.step

    async def patient(self: NoopEnv, action: Action) -> StepResult:
        if isinstance(action, Wait):
            await asyncio.sleep(action.seconds)
        return await real(self, action)

    monkeypatch.setattr(NoopEnv, "step", patient)

    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url, retries=1)
        lease = (await c.allocate("os:abc:0123abcd"))["lease_id"]
        await c.reset(lease, TASK)
        await c.step(lease, "pyautogui.click(3, 4); time.sleep(0.8); time.sleep(0.8)", 0.2)
        assert steps_of(pool, lease) == 4 and pool.counts["infra_errors"] == 0

    run(test, tmp_path, call_timeout_s=1.0)


def test_an_episode_in_the_order_of_its_agent(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url + "/")
        got = await c.allocate("os:abc:0123abcd")
        lease = got["lease_id"]
        assert (
            lease.startswith("lease-")
            and len(lease) == 22
            and got["env_id"].startswith("env-")
            and len(got["env_id"]) == 16
        )
        first = await c.reset(lease, TASK)
        assert first["screenshot"].startswith(b"\x89PNG") and first["instruction"] == "noop noop/count/7/0"
        assert first["accessibility_tree"] is None and first["terminal"] is None
        await c.start_recording(lease)
        assert await c.get_obs(lease) == first
        for n in range(1, 4):
            await c.heartbeat(lease)
            seen, reward, done, info = await c.step(lease, CLICK, 0.0)
            assert (reward, done) == (0.0, False) and info == {"steps": n} and seen["screenshot"] != first["screenshot"]
        await c.step(lease, "pyautogui.click(1, 1); pyautogui.press('enter')", 0.5)
        assert steps_of(pool, lease) == 6  # click, key, the pause
        _, _, done, info = await c.step(lease, "FAIL", 0)
        assert done and info == {"fail": True} and steps_of(pool, lease) == 6
        assert await c.evaluate(lease) == 1.0
        out = tmp_path / "os" / "s0" / "recording.mp4"
        await c.end_recording(lease, str(out))
        await c.close(lease)
        await c.close(lease)  # its client retries closes too
        movie = out.read_bytes()
        assert movie[4:8] == b"ftyp" and movie.count(b"\x89PNG\r\n\x1a\n") == 7
        assert struct.unpack(">I", movie[movie.index(b"stsz") + 12 :][:4])[0] == 7
        status = (await c.http.get(f"{url}/status")).json()
        assert status["ok"] and status["pool"]["total_envs"] == 2 and status["pool"]["leases"] == 0
        counts = "total_envs busy_envs idle_envs leases max_envs min_envs prewarm_concurrency reset_on_close"
        assert set(status["pool"]) == set(counts.split())

    run(test, tmp_path)


def test_lost_replies_act_once(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        # lost: allocate 0, reset 2, step 5 and 6, evaluate 8, close 10
        async with lossy(url, {0, 2, 5, 6, 8, 10}) as (proxy, seen):
            c = GuiRlClient(proxy)
            lease = (await c.allocate("ep"))["lease_id"]
            assert len(pool.table.leases) == 1
            await c.reset(lease, TASK)
            assert pool.counts["resets"] == 1
            await c.heartbeat(lease)
            _, _, _, info = await c.step(lease, CLICK)
            assert info == {"steps": 1, "replayed": True} and steps_of(pool, lease) == 1
            assert await c.evaluate(lease) == 1.0
            await c.close(lease)
            assert [s.split(b" ")[0].decode() for s in seen] == [
                "/allocate", "/allocate", "/reset", "/reset", "/heartbeat", "/step", "/step", "/step",
                "/evaluate", "/evaluate", "/close", "/close",
            ]  # fmt: skip
            assert pool.table.leases == {} and pool.counts["allocations"] == 1

    run(test, tmp_path)


def test_a_reply_lost_while_the_step_runs_acts_once(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url, pause_s=0.05)
        lease = (await c.allocate("ep"))["lease_id"]
        await c.reset(lease, TASK)
        slow = "pyautogui.write('!slow')"
        impatient = asyncio.create_task(c.step(lease, slow))
        await asyncio.sleep(0.1)
        impatient.cancel()  # its connection breaks
        _, _, _, info = await c.step(lease, slow)
        assert info["replayed"] and steps_of(pool, lease) == 1

    run(test, tmp_path)


def test_the_same_action_again_is_done_again(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url)
        lease = (await c.allocate("ep"))["lease_id"]
        await c.reset(lease, TASK)
        for _ in range(3):  # several equal actions in one turn: one connection, no heartbeat
            await c.step(lease, CLICK)
        assert steps_of(pool, lease) == 3
        for _ in range(2):  # turns: a heartbeat in between, other connections
            other = GuiRlClient(url)
            await other.heartbeat(lease)
            await other.step(lease, CLICK)
        assert steps_of(pool, lease) == 5
        quick = GuiRlClient(url)  # another connection at once: no retry is so quick
        _, _, _, info = await quick.step(lease, CLICK)
        assert steps_of(pool, lease) == 6 and "replayed" not in info

    run(test, tmp_path)


def test_rules_of_retries() -> None:
    last, on = Last(1, "r", ("a", 1)), Connections()
    assert last.repeated(1, 0.0) and not last.repeated(2, 0.0)  # it runs
    last.replied = 10.0
    on.answered(("a", 1), last)
    assert not last.repeated(1, 10.5) and last.repeated(1, 11.0)
    last.lost = True
    assert last.repeated(1, 10.01)
    on.came(("a", 1))
    assert last.repeated(1, 11.0)  # what never went out was not read
    last.lost = False
    on.answered(("a", 1), last)
    on.came(("b", 2))
    assert last.repeated(1, 11.0)
    on.came(("a", 1))
    assert not last.repeated(1, 11.0)


def test_a_request_id_overrides_guessing(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url)
        lease = (await c.allocate("ep"))["lease_id"]
        await c.reset(lease, TASK)
        for given in ("x", "x", "y", "x"):
            await c.post("/step", {"lease_id": lease, "action": CLICK, "request_id": given})
        assert steps_of(pool, lease) == 2

    run(test, tmp_path)


def test_errors_that_asking_again_cannot_mend_are_200_and_cost_nothing(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url)
        lease = (await c.allocate("ep"))["lease_id"]
        await c.reset(lease, TASK)
        step = {"lease_id": lease, "action": CLICK}
        cases: list[tuple[str, Any, str, str]] = [
            ("/step", b"{not json", "bad_json", "not JSON"),
            ("/step", b"[1]", "bad_json", "object"),
            ("/step", b"", "bad_json", "not JSON"),
            ("/step", b" " * ((1 << 20) + 1), "too_large", "1048576"),
            ("/step", {}, "bad_request", "lease_id is missing"),
            ("/heartbeat", {"lease_id": 5}, "bad_request", "lease_id"),
            ("/heartbeat", {"lease_id": "lease-0"}, "unknown_lease", "allocate"),
            ("/allocate", {"episode_id": 7}, "bad_request", "episode_id"),
            ("/step", {**step, "action": "pyautogui.click(5000, 1)"}, "off_screen", "off the screen"),
            ("/step", {**step, "action": "pyautogui.press('flurb')"}, "unknown_key", "flurb"),
            ("/step", {**step, "action": "import os; os.system('x')"}, "bad_request", "only calls"),
            ("/step", {**step, "action": {"kind": "Click", "x": 1.5, "y": 0}}, "off_screen", "off the screen"),
            ("/step", {**step, "action": None}, "bad_request", "action"),
            ("/step", {**step, "action": {"kind": "Exec"}}, "bad_request", "unknown action kind"),
            ("/step", {**step, "sleep_after_execution": "soon"}, "bad_request", "sleep_after_execution"),
            ("/step", {**step, "sleep_after_execution": 1e9}, "bad_request", "sleep_after_execution"),
            ("/reset", {"lease_id": lease, "task_config": [1]}, "bad_request", "task_config"),
            ("/reset", {"lease_id": lease, "task_config": {"id": "5be4-aa"}}, "bad_request", "names no task"),
            ("/reset", {"lease_id": lease, "task_config": {"id": "noop/missing/1"}}, "bad_request", "does not exist"),
            ("/end_recording", {"lease_id": lease}, "bad_request", "out_path"),
            ("/end_recording", {"lease_id": lease, "out_path": "/etc/x.mp4"}, "bad_request", "not under"),
            ("/end_recording", {"lease_id": lease, "out_path": "../x.mp4"}, "bad_request", "not under"),
        ]
        for route, body, code, said in cases:
            raw = {"content": body} if isinstance(body, bytes) else {"json": body}
            reply = await c.http.post(url + route, **raw)
            out = reply.json()
            assert (reply.status_code, out["ok"], out["class"]) == (200, False, code), (route, body, out)
            assert said in out["error"]
        assert steps_of(pool, lease) == 0
        assert (await c.http.get(url + "/step")).status_code == 405
        await c.reset(lease, TASK)
        await c.step(lease, CLICK)
        assert steps_of(pool, lease) == 1
        with pytest.raises(RuntimeError, match="infra_error"):  # once: the client does not ask again
            await c.step(lease, "pyautogui.write('!crash')")
        with pytest.raises(RuntimeError, match="lease_ended"):
            await c.heartbeat(lease)

    run(test, tmp_path)


def test_a_full_pool_is_503_until_there_is_room(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url, pause_s=0.05)
        held = (await c.allocate("a"))["lease_id"]
        reply = await c.http.post(f"{url}/allocate", json={"episode_id": "b"})
        assert reply.status_code == 503 and reply.json()["class"] == "no_slot" and not reply.json()["ok"]
        waiting = asyncio.create_task(c.allocate("b"))
        await asyncio.sleep(0.3)
        await c.close(held)
        assert (await waiting)["lease_id"] != held

    run(test, tmp_path, 1, wait_s=0.1)


def test_a_dead_client_gives_its_machine_back(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url)
        first = (await c.allocate("a"))["lease_id"]
        start = time.monotonic()
        second = (await c.allocate("b"))["lease_id"]  # never closed, never heard of again
        assert first != second and time.monotonic() - start < 30

    run(test, tmp_path, 1, ttl_s=0.3)


def test_a_used_lease_is_not_given_to_a_new_allocate(tmp_path: Path) -> None:
    async def test(pool: Pool, url: str) -> None:
        c = GuiRlClient(url)
        first = (await c.allocate("same"))["lease_id"]
        assert (await c.allocate("same"))["lease_id"] == first
        await c.reset(first, TASK)
        assert (await c.allocate("same"))["lease_id"] != first

    run(test, tmp_path)


def test_the_token_may_come_in_the_url(tmp_path: Path) -> None:
    async def main() -> None:
        pool = Pool(NoopProvider(), PoolConfig(1))
        async with serving(pool, GuiRl(), free=False) as url:
            host = url.removeprefix("http://")
            for good in (f"{url}/t/{TOKEN}", f"http://any:{TOKEN}@{host}"):
                c = GuiRlClient(good)
                await c.close((await c.allocate("a"))["lease_id"])
            for bad in (url, f"{url}/t/wrong", f"http://any:wrong@{host}", f"{url}/t/{TOKEN}x"):
                with pytest.raises(httpx.HTTPStatusError, match="401"):
                    await GuiRlClient(bad, retries=1).allocate("a")

    asyncio.run(main())


def test_over_a_restart_of_the_server_a_step_acts_once(tmp_path: Path) -> None:
    async def main() -> None:
        state, cloud = str(tmp_path / "s.db"), tmp_path / "cloud"

        def new() -> Pool:
            return Pool(ProcessProvider(cloud), PoolConfig(1, 5.0, 30.0, "p", keep=True), Store(state))

        async with serving(new(), GuiRl()) as url:
            c = GuiRlClient(url)
            lease = (await c.allocate("ep"))["lease_id"]
            await c.reset(lease, TASK)
            await c.heartbeat(lease)
            await c.step(lease, CLICK)
        async with serving(new(), GuiRl()) as url:
            c = GuiRlClient(url)
            _, _, _, info = await c.step(lease, CLICK)  # its reply was lost with the server
            assert info["replayed"]
            await c.heartbeat(lease)
            await c.step(lease, CLICK)
            assert await c.evaluate(lease) == 1.0
            applied = [line for line in (cloud / "journal").read_text().splitlines() if '"step"' in line]
            assert len(applied) == 2
            await c.close(lease)
        for vm in await ProcessProvider(cloud).list({}):
            await ProcessProvider(cloud).terminate(vm.id)

    asyncio.run(main())


def test_over_a_restart_the_task_still_judges_and_odd_request_ids_do_no_harm(tmp_path: Path) -> None:
    async def main() -> None:
        state, cloud = str(tmp_path / "s.db"), tmp_path / "cloud"

        def new() -> Pool:
            return Pool(ProcessProvider(cloud), PoolConfig(1, 5.0, 30.0, "p", keep=True), Store(state))

        task = {"suite": "noop", "template": "count", "seed": 1, "threshold": 0.0}  # reached without a step
        async with serving(new(), GuiRl()) as url:
            c = GuiRlClient(url)
            lease = (await c.allocate("ep"))["lease_id"]
            await c.post("/reset", {"lease_id": lease, "task_config": task, "request_id": "gui-rl-act-x"})
        async with serving(new(), GuiRl()) as url:
            c = GuiRlClient(url, retries=1)
            assert await c.evaluate(lease) == 1.0
            assert (await c.reset(lease, None))["instruction"] == "noop noop/count/1/0"
            await c.step(lease, CLICK)
            await c.close(lease)
        for vm in await ProcessProvider(cloud).list({}):
            await ProcessProvider(cloud).terminate(vm.id)

    asyncio.run(main())
