"""The pool over HTTP: refusals by status and class, the client's types, lost replies, dead clients."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from guiderail.actions.types import Click, Finish, Type
from guiderail.envs.types import InfraError
from guiderail.params import Env
from guiderail.pool.client import NoSlotError, PoolClient, PoolRequestError, RemoteEnv
from guiderail.pool.local import env_pool
from guiderail.pool.server import parse
from guiderail.pool.work import map_pool
from guiderail.services import ServiceError
from guiderail.tasks.types import TaskSpec

TASK = TaskSpec("noop", "count", 7)
CLICK = Click(0.5, 0.5)


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[str, str]]:
    with env_pool(Env(slots=2, call_timeout_s=0.6, lease_ttl_s=2.0), provider="noop") as address:
        yield address


def post(
    pool: tuple[str, str], path: str, body: object, token: str | None = None, method: str = "POST"
) -> tuple[int, dict[str, Any]]:
    """Independent of our client: urllib."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {pool[1] if token is None else token}"}
    request = urllib.request.Request(pool[0] + path, raw if method == "POST" else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


@contextlib.contextmanager
def held(pool: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """A lease taken by hand."""
    status, said = post(pool, "/v1/allocate", {"holder": "hand", "ttl_s": 30.0, "wait_s": 5.0})
    assert status == 200, said
    lease = {"lease": said["lease"], "token": said["token"]}
    try:
        yield lease
    finally:
        post(pool, "/v1/close", lease)


def test_refusals(pool: tuple[str, str]) -> None:
    with held(pool) as lease:
        task = TASK.to_json()
        missing = {**task, "template": "missing"}
        call = {**lease, "request_id": "1"}
        cases: list[tuple[str, object, int, str, str]] = [
            ("/v1/step", b"{not json", 400, "bad_json", "not JSON"),
            ("/v1/step", b"", 400, "bad_json", "not JSON"),
            ("/v1/step", b"[]", 422, "bad_request", "body"),
            ("/v1/step", b"x" * (1 << 20) + b"y", 413, "too_large", "1048576"),
            ("/v1/allocate", {"holder": ""}, 422, "bad_request", "holder"),
            ("/v1/allocate", {"holder": "h", "wait_s": "soon"}, 422, "bad_request", "wait_s"),
            ("/v1/allocate", {"holder": "h", "wait_s": 1e9}, 422, "bad_request", "wait_s"),
            ("/v1/allocate", {"holder": "h", "surprise": 1}, 422, "bad_request", "surprise"),
            ("/v1/step", {**call, "action": {"kind": "Click"}}, 422, "bad_request", "field x is missing"),
            ("/v1/step", {**call, "action": {"kind": "Exec"}}, 422, "bad_request", "unknown action kind"),
            ("/v1/step", {**lease, "action": {"kind": "Wait"}}, 422, "bad_request", "request_id"),
            ("/v1/step", {**call, "action": {"kind": "Wait"}}, 409, "not_reset", "/v1/reset"),
            ("/v1/evaluate", {**call, "request_id": "2"}, 409, "not_reset", "/v1/reset"),
            ("/v1/reset", {**call, "task": {**task, "seed": "x"}}, 422, "bad_request", "task.seed"),
            ("/v1/reset", {**call, "request_id": "3", "task": missing}, 422, "bad_request", "does not exist"),
            ("/v1/reset", {**call, "lease": "lease-0", "task": task}, 404, "unknown_lease", "allocate"),
            ("/v1/reset", {**call, "token": lease["token"] + 1, "task": task}, 409, "stale_token", "token"),
            ("/v1/reset", {**call, "token": 10**30, "task": task}, 422, "bad_request", "token"),
            ("/v1/nowhere", {}, 404, "not_found", "/v1/nowhere"),
        ]
        for path, body, status, code, said in cases:
            got, answer = post(pool, path, body)
            assert (got, answer["error"]) == (status, code), (path, body, answer)
            assert said in answer["message"]
        assert post(pool, "/v1/step", {}, method="GET")[0] == 405
        # after all of that, the lease works
        with_id = {**call, "request_id": "4", "action": {"kind": "Wait"}}
        request = urllib.request.Request(
            pool[0] + "/v1/reset",
            json.dumps({**call, "request_id": "5", "task": task}).encode(),
            {"Authorization": f"Bearer {pool[1]}"},
        )
        assert urllib.request.urlopen(request, timeout=5).status == 200
        request = urllib.request.Request(
            pool[0] + "/v1/step", json.dumps(with_id).encode(), {"Authorization": f"Bearer {pool[1]}"}
        )
        bodies = [urllib.request.urlopen(request, timeout=5).read() for _ in range(3)]  # sent three times
        assert bodies[0] == bodies[1] == bodies[2]
        assert post(pool, "/v1/evaluate", {**call, "request_id": "6"}) == (200, {"raw_reward": 1.0})  # done once
        assert post(pool, "/v1/step", {**with_id, "action": {"kind": "Finish"}})[1]["error"] == "request_reused"


def test_token_is_needed(pool: tuple[str, str]) -> None:
    for token in ("", "wrong", pool[1] + "x", pool[1][:-1]):
        assert post(pool, "/v1/allocate", {"holder": "h"}, token)[0] == 401
        assert post(pool, "/v1/status", {}, token, "GET")[0] == 401
    assert post(pool, "/healthz", {}, "", "GET") == (200, {"ok": True})
    assert pool[1] not in json.dumps(post(pool, "/v1/status", {}, method="GET")[1])


def test_server_refuses_to_start_without_a_token() -> None:
    env = {k: v for k, v in os.environ.items() if k != "GUIDERAIL_POOL_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-m", "guiderail.pool.server", "--provider", "noop"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 2 and "GUIDERAIL_POOL_TOKEN" in done.stderr


def with_client(pool: tuple[str, str], test: Any, **kwargs: Any) -> None:
    async def main() -> None:
        async with PoolClient(*pool, **kwargs) as client:
            await test(client)

    asyncio.run(main())


def test_episode_through_the_client(pool: tuple[str, str]) -> None:
    async def test(client: PoolClient) -> None:
        async with client.env("t") as env:
            first = await env.reset(TASK)
            assert first.observation.instruction == "noop noop/count/7/0" and first.observation.png[1:4] == b"PNG"
            assert (await env.step(CLICK)).raw_reward == 1.0
            assert (await env.oracle())[0]["text"] == "noop"
            assert await env.side_effects() is None  # this screen has no home to look at
            assert (await env.step(Finish())).done
            assert await env.evaluate() == 2.0
            with pytest.raises(PoolRequestError, match="episode_over"):
                await env.step(CLICK)
            assert (await env.reset(TASK)).observation == first.observation
        await env.close()
        assert (await client.status())["slots"]["leased"] == 0

    with_client(pool, test)


def test_faults_through_the_client(pool: tuple[str, str]) -> None:
    async def test(client: PoolClient) -> None:
        for text, cause in (("!crash", "crash"), ("!hang", "timeout"), ("!bug", "crash")):
            async with client.env("t") as env:
                await env.reset(TASK)
                with pytest.raises(InfraError) as e:
                    await env.step(Type(text))
                assert e.value.cause == cause
                with pytest.raises(InfraError) as e:
                    await env.step(CLICK)
                assert e.value.cause == "lease_lost"
        async with client.env("t") as env:
            with pytest.raises(ValueError, match="does not exist"):
                await env.reset(TaskSpec("noop", "missing", 1))
            assert not (await env.reset(TASK)).done
        end = time.monotonic() + 5
        while (await client.status())["slots"] != {"idle": 2, "leased": 0, "down": 0}:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)

    with_client(pool, test)


def test_full_pool_wrong_token_and_nobody_there(pool: tuple[str, str]) -> None:
    async def test(client: PoolClient) -> None:
        leases = [await client.allocate("t") for _ in range(2)]
        with pytest.raises(NoSlotError, match="2 of 2 are lent"):
            await client.allocate("t", timeout_s=0.2)
        for lease in leases:
            await client.release(lease)
        async with PoolClient(client.url, "wrong" * 5) as stranger:
            with pytest.raises(PoolRequestError, match="unauthorized"):
                await stranger.allocate("t")
        async with PoolClient("http://127.0.0.1:9", "x" * 20) as lonely:
            with pytest.raises(InfraError, match="cannot be reached"):
                await lonely.allocate("t")

    with_client(pool, test)


def test_heartbeats_keep_a_lease_while_the_loop_is_blocked(pool: tuple[str, str]) -> None:
    async def test(client: PoolClient) -> None:
        async with client.env("t") as env:
            await env.reset(TASK)
            time.sleep(3.5)  # ttl is 2 s; this blocks the event loop as training does
            assert (await env.step(CLICK)).raw_reward == 1.0

    with_client(pool, test)


@contextlib.asynccontextmanager
async def lossy_proxy(target: str, lose: set[int]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Passes requests on, one connection each; replies number `lose` are read from the server and thrown away."""
    host, port = target.removeprefix("http://").split(":")
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                number = len(seen)
                seen.append(body)
                r, w = await asyncio.open_connection(host, int(port))
                w.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)
                reply = await r.read(-1)
                w.close()
                if number not in lose:
                    writer.write(reply)
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


def test_lost_replies_are_asked_for_again_and_nothing_is_done_twice(pool: tuple[str, str]) -> None:
    async def main() -> None:
        # requests: 0 allocate (lost), 1 again, 2 reset (lost), 3 again, 4 step, 5 step (lost), 6 (lost), 7 again, ...
        async with lossy_proxy(pool[0], {0, 2, 5, 6}) as (url, seen), PoolClient(url, pool[1], ttl_s=60.0) as client:
            async with client.env("t") as env:
                await env.reset(TASK)
                assert (await env.step(CLICK)).raw_reward == 1.0
                assert (await env.step(CLICK)).raw_reward == 2.0
                assert await env.evaluate() == 2.0
                assert (await client.status())["slots"]["leased"] == 1
            assert seen[0] == seen[1] and seen[2] == seen[3] and seen[5] == seen[6] == seen[7]

    asyncio.run(main())


def test_killed_client_frees_its_slot_after_the_ttl(pool: tuple[str, str]) -> None:
    code = """
import asyncio, sys, time
from guiderail.pool.client import PoolClient
from guiderail.tasks.types import TaskSpec
async def main():
    client = PoolClient(sys.argv[1], sys.argv[2])
    lease = await client.allocate("doomed")
    print("have", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    child = subprocess.Popen([sys.executable, "-c", code, *pool], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "have\n"
    time.sleep(3.0)  # longer than the ttl: heartbeats hold it
    assert [x["holder"] for x in post(pool, "/v1/status", {}, method="GET")[1]["leases"]] == ["doomed"]
    child.send_signal(signal.SIGKILL)
    child.wait(5)
    start = time.monotonic()
    while post(pool, "/v1/status", {}, method="GET")[1]["leases"]:
        assert time.monotonic() - start < 30
        time.sleep(0.05)
    assert post(pool, "/v1/status", {}, method="GET")[1]["slots"]["idle"] == 2


def test_attach_needs_the_token(pool: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUIDERAIL_POOL_TOKEN", raising=False)
    with pytest.raises(ServiceError, match="GUIDERAIL_POOL_TOKEN"), env_pool(Env(), pool[0]):
        pass
    monkeypatch.setenv("GUIDERAIL_POOL_TOKEN", pool[1])
    with env_pool(Env(), pool[0] + "/") as address:
        assert address == pool
    assert post(pool, "/healthz", {}, method="GET")[0] == 200  # still there


def test_drain_on_sigterm_ends_waiters_and_running_calls() -> None:
    async def main(url: str, token: str, pid: int) -> None:
        async with PoolClient(url, token) as client:
            env_lease = await client.allocate("t")
            waiting = asyncio.create_task(client.allocate("late", 30))
            env = RemoteEnv(client, env_lease)
            await env.reset(TASK)
            slow = asyncio.create_task(env.step(Type("!slow")))
            await asyncio.sleep(0.1)
            os.kill(pid, signal.SIGTERM)
            assert (await slow).raw_reward == 1.0
            with pytest.raises(InfraError):
                await waiting

    from guiderail.pool import local

    with contextlib.ExitStack() as stack:
        pids: list[int] = []
        original = local.service

        @contextlib.contextmanager
        def spy(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with original(*args, **kwargs) as s:
                pids.append(s.pid)
                yield s

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(local, "service", spy)
        url, token = stack.enter_context(env_pool(Env(slots=1, call_timeout_s=2), provider="noop"))
        start = time.monotonic()
        asyncio.run(main(url, token, pids[0]))
        assert time.monotonic() - start < 10


def test_map_pool_keeps_order_and_starts_failed_jobs_again(pool: tuple[str, str]) -> None:
    async def test(client: PoolClient) -> None:
        tries: dict[int, int] = {}

        async def job(env: RemoteEnv, n: int) -> tuple[int, float]:
            tries[n] = tries.get(n, 0) + 1
            await env.reset(TASK)
            await env.step(CLICK)
            if n in (2, 5) and tries[n] == 1:
                await env.step(Type("!crash"))
            return n, await env.evaluate()

        seen: list[int] = []
        jobs = list(range(8))
        got = await map_pool(
            client, jobs, job, workers=5, retries=1, holder="map", done=lambda r: seen.append(r[0])
        )  # five workers, two slots
        assert got == [(n, 1.0) for n in jobs] and sorted(seen) == jobs
        assert tries == {n: 2 if n in (2, 5) else 1 for n in jobs}

        async def bad(env: RemoteEnv, n: int) -> None:
            await env.reset(TASK)
            await env.step(Type("!crash"))

        with pytest.raises(InfraError, match="the page crashed"):
            await map_pool(client, [1], bad, workers=1, retries=2, holder="map")
        assert client.leases == {}

    with_client(pool, test)


def test_port_taken_by_another_server_is_not_ours(pool: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from guiderail import services

    ports = iter([int(pool[0].rsplit(":", 1)[1]), services.free_port()])
    monkeypatch.setattr(services, "free_port", lambda: next(ports))
    with env_pool(Env(slots=1), provider="noop") as (url, token):
        assert url != pool[0]
        assert post((url, token), "/v1/status", {}, method="GET")[0] == 200


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--slots", "-1"], "argument --slots: -1: must be a whole number from 1 to 1024"),
        (["--slots", "many"], "argument --slots: many: must be a whole number from 1 to 1024"),
        (["--port", "65536"], "argument --port: 65536: must be a whole number from 0 to 65535"),
        (["--ttl", "nan"], "argument --ttl: nan: must be a number from 0.001 to 86400"),
        (["--call-timeout", "0"], "argument --call-timeout: 0: must be a number from 0.001 to 86400"),
    ],
)
def test_a_command_that_cannot_work_is_told_and_ends_with_2(capsys, argv, words):
    with pytest.raises(SystemExit) as e:
        parse(argv)
    assert e.value.code == 2 and capsys.readouterr().err.splitlines()[-1].endswith(words)


def test_the_openapi_document_lists_what_is_there(pool: tuple[str, str]) -> None:
    import re
    from pathlib import Path

    from guiderail.pool import app, openapi

    status, said = post(pool, "/openapi.json", {}, "", "GET")
    assert status == 200 and said["openapi"].startswith("3.1")
    source = Path(str(app.__file__)).read_text()
    routes = set(re.findall(r'@app\.(?:get|post)\("(/[^"]+)"\)', source)) - {"/openapi.json"}
    assert set(said["paths"]) == routes
    for path, methods in said["paths"].items():
        for method in methods:
            assert post(pool, path, b"{", method=method.upper())[0] in (200, 400), path
    known = said["components"]["schemas"]["Error"]["properties"]["error"]["enum"]
    here = Path(str(app.__file__)).parent
    used = set(re.findall(r'^    code = "([a-z_]+)"', (here / "leases.py").read_text(), re.MULTILINE)) - {"lease_error"}
    used |= set(re.findall(r'(?:refusal|Refused)\(\d+, "([a-z_]+)"', "".join(p.read_text() for p in here.glob("*.py"))))
    assert used <= set(known) and {"off_screen", "unknown_lease", "budget_exhausted"} <= used
    assert set(known) == set(openapi.ERRORS)


def test_an_action_off_the_screen_and_an_unknown_key_cost_nothing(pool: tuple[str, str]) -> None:
    with held(pool) as lease:
        call = {**lease, "request_id": "r"}
        raw = json.dumps({**call, "task": TASK.to_json()}).encode()
        request = urllib.request.Request(pool[0] + "/v1/reset", raw, {"Authorization": f"Bearer {pool[1]}"})
        assert urllib.request.urlopen(request, timeout=10).status == 200
        for n, (action, code, said) in enumerate(
            [
                ({"kind": "Click", "x": 1.01, "y": 0.5}, "off_screen", "Click.x = 1.01"),
                ({"kind": "Drag", "x": 0, "y": 0, "x2": 0.5, "y2": -0.1}, "off_screen", "Drag.y2 = -0.1"),
                ({"kind": "Key", "keys": ["ctrl", "flurb"]}, "unknown_key", "'flurb'"),
            ]
        ):
            status, answer = post(pool, "/v1/step", {**call, "request_id": f"s{n}", "action": action})
            assert (status, answer["error"]) == (422, code) and said in answer["message"]
        assert post(pool, "/v1/evaluate", {**call, "request_id": "e"}) == (200, {"raw_reward": 0.0})
