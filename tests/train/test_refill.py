"""The DAPO filter in the real loop: full updates, exact accounts, old groups known as old, resumed to the bit."""

import math

import pytest
from worlds import RL, World, make_policy, run_rl

from guiderail.train.batch import make_batch
from guiderail.train.gates import GateError
from guiderail.train.refill import forget_waiting, gather, save_waiting, start
from guiderail.train.rl import score

DAPO = RL.model_copy(update={"groups": 3, "group_size": 2, "filter_rounds": 3, "iterations": 4})


def test_gather_fills_the_update_and_keeps_the_rest():
    policy = make_policy()
    world, refill, made = World(policy, DAPO), start(DAPO), 0
    for iteration in range(4):
        waiting = list(refill.waiting)
        got = gather(world, refill, DAPO, iteration)
        refill, made = got.refill, made + len({e.group for e in got.fresh})
        counts = refill.counts
        assert counts.generated == made == counts.dropped + counts.used + len(refill.waiting)
        assert [e.id for e in got.used][: 2 * len(waiting)] == [e.id for g in waiting for e in g.episodes][:6]
        assert len(got.used) <= 6 and len({e.id for e in got.fresh}) == len(got.fresh)  # rounds have their own tasks
        for a, b in zip(got.used[::2], got.used[1::2], strict=True):
            assert a.group == b.group and a.outcome.kind != b.outcome.kind  # a pair has spread when it differs
        for e in got.used:
            assert got.frames.get(e.steps[0].frame) is not None
    with pytest.raises(KeyError, match="none of"):
        got.frames.get("0" * 64)


def test_without_a_filter_everything_is_used():
    world = World(make_policy(), RL)
    assert start(RL) is None
    got = gather(world, None, RL, 0)
    assert got.used == got.fresh and len(got.fresh) == 16 and got.metrics() == {}


def test_old_groups_pass_the_gate_as_old_and_only_as_old():
    policy, other = make_policy(), make_policy(seed=1)
    world = World(other, RL)
    batch = make_batch(world.collect(world.tasks(0), 0)[0], RL)
    found = score(policy, batch, world.frames, RL, None, version=1)
    assert found.gap is None and found.metrics()["rows_stale"] == len(batch.rows) and math.isfinite(found.entropy)
    with pytest.raises(GateError):
        score(policy, batch, world.frames, RL, None, version=0)
    weighed = RL.model_copy(update={"importance_cap": 2.0})
    assert len(score(policy, batch, world.frames, weighed, None, version=1).proximal) == len(batch.rows)


def test_a_run_accounts_for_every_group_and_resumes_to_the_bit(tmp_path):
    whole, log, totals, _ = run_rl(tmp_path / "a", DAPO)
    c = totals.sampling
    last = log.rows[3]
    assert c["generated"] == 3 * c["rounds"] == c["dropped"] + c["used"] + last["groups_waiting"]
    assert c["updates"] == 4 and c["used"] == sum(r["groups_used"] for r in log.rows.values())
    assert totals.episodes == 2 * c["generated"] == totals.env_steps
    assert any(r["groups_waiting"] for i, r in log.rows.items() if i < 3), "no group was ever carried over"
    assert c["carried"] > 0 and any("rows_stale" in r for r in log.rows.values())

    for stop in (1, 2, 3):

        def fail(iteration, stop=stop):
            if iteration == stop:
                raise RuntimeError("killed")

        with pytest.raises(RuntimeError, match="killed"):
            run_rl(tmp_path / f"b{stop}", DAPO, before=fail)
        again, _, rest, _ = run_rl(tmp_path / f"b{stop}", DAPO)
        assert again == whole and rest.sampling == c


def test_groups_left_by_a_life_that_never_saved_its_weights_are_forgotten(tmp_path):
    """kill -9 between the waiting groups and the state: the next life makes groups of its own for that update."""
    for step in (2, 3, 4):
        save_waiting(tmp_path, start(DAPO), step, keep=9)
    forget_waiting(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["waiting-00000002", "waiting-00000003"]

    save_waiting(tmp_path / "run", start(DAPO), 9)
    run_rl(tmp_path / "run", DAPO.model_copy(update={"iterations": 1}))
    assert [p.name for p in (tmp_path / "run").glob("waiting-*")] == ["waiting-00000001"]
