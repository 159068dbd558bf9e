"""provision: fix the task instances and prove that every template works.

Reads params.provision. Writes tasks.json (the hashed split manifest) and selftest.json (per template: success of the
expert, of doing nothing and of random clicks, run in the real environment through the pool). A template whose expert
fails, or that is solved by doing nothing, ends the stage with an error that names it. Output depends on the
parameters alone, not on the number of slots. Where machines cost money it first tells which and how much, and goes on
only with --yes or a budget.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guiderail.errors import Explained
from guiderail.params_cloud import CLOUDS
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.local import env_pool
from guiderail.pool.plan import check_consent, plan
from guiderail.pool.work import map_pool
from guiderail.stages.context import StageContext
from guiderail.tasks import splits
from guiderail.tasks.selftest import selftest
from guiderail.tasks.types import TaskSpec


class SelfTestFailed(Explained, RuntimeError):
    """Some templates do not work as tasks; the message names each."""


def run(ctx: StageContext) -> None:
    """Build the manifest, run the self-tests, write both."""
    manifest = splits.build_manifest(ctx.params.provision)
    tasks = selftest_tasks(manifest, ctx.params.provision.selftest_instances)
    env = ctx.params.env
    if env.provider in CLOUDS and not ctx.env_pool_url and tasks:
        told = plan(env)
        ctx.say(told.text())
        check_consent(told, ctx.yes)
    found: dict[str, dict[str, Any]] = {}
    if tasks:
        with (
            env_pool(env, ctx.env_pool_url, owner=ctx.label, costs=ctx.pool_costs) as (url, token),
            ctx.progress(len(tasks), "self-tests") as bar,
        ):
            results = asyncio.run(
                run_selftests(url, token, tasks, env.slots, env.max_infra_retries, lambda _: bar.update(1))
            )
        found = {r["template"]: r for r in results}
    check(found)
    write_json(ctx.out / "tasks.json", manifest)
    write_json(ctx.out / "selftest.json", dict(sorted(found.items())))
    rates = {
        f"selftest.{k}": sum(r[k] for r in found.values()) / len(found) for k in ("expert", "noop", "random") if found
    }
    ctx.tracker.log({**rates, "tasks": float(sum(len(s) for s in manifest["splits"].values()))}, 0)
    ctx.say(
        f"{len(manifest['train_templates'])} train and {len(manifest['heldout_templates'])} held-out templates work"
    )


def selftest_tasks(manifest: splits.Manifest, count: int) -> list[list[TaskSpec]]:
    """The first `count` instances of every template, one list a template (fewer when the split has fewer)."""
    groups: list[list[TaskSpec]] = []
    for split, names in (("train", "train_templates"), ("heldout", "heldout_templates")):
        tasks = splits.tasks(manifest, split)
        groups += [[t for t in tasks if t.template == name][:count] for name in manifest[names]]
    return [g for g in groups if g]


async def run_selftests(
    url: str,
    token: str,
    tasks: list[list[TaskSpec]],
    workers: int,
    retries: int,
    done: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """`tasks.selftest` of each group through the pool at `url`, `workers` at a time."""

    async def one(env: RemoteEnv, group: list[TaskSpec]) -> dict[str, Any]:
        return await selftest(env, group)

    async with PoolClient(url, token) as client:
        return await map_pool(client, tasks, one, workers=workers, retries=retries, holder="provision", done=done)


def check(found: dict[str, dict[str, Any]]) -> None:
    """Raise SelfTestFailed naming every template that does not work as a task."""
    bad = [
        f"{name}: expert {r['expert']:.2f}, doing nothing {r['noop']:.2f} on {r['instances']} instances; "
        f"e.g. {r['failed'][0]} ({r['instruction']!r}, expert did {r['thoughts']})"
        for name, r in sorted(found.items())
        if not r["ok"]
    ]
    if bad:
        raise SelfTestFailed(
            f"{len(bad)} of {len(found)} templates fail their self-test (the expert must succeed, doing nothing must "
            "not); take them out of provision.templates and provision.heldout, or mend their expert:\n" + "\n".join(bad)
        )


def write_json(path: Path, data: Any) -> None:
    """Readable JSON with a final newline."""
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
