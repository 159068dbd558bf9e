"""Which judge a recipe gets, and the gate in front of the process reward model."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from chat_stub import ChatStub
from guiderail.actions.types import Click
from guiderail.envs.types import Observation
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.params import Params, parse
from guiderail.rewards.process import FrameJudge
from guiderail.rewards.progress import ProgressJudge
from guiderail.rollout.judging import Judged, Votes
from guiderail.stages import judging
from guiderail.stages.judging import check_gate, opened_judge
from guiderail.tasks.types import TaskSpec


def context(params=None):
    told = []
    tracker = SimpleNamespace(log_cost=lambda cost: told.append(cost))
    return SimpleNamespace(params=params or Params(), seed=0, tracker=tracker, say=told.append, told=told)


def rl(**step_wise):
    changes = {"algorithm": "step_wise", "step_wise": step_wise} if step_wise else {}
    return parse({"recipes": {"r": changes}, "sweep": {"recipe": ["r"]}}).rl_for("r")


def calibrated(folder, mean, **more):
    folder = folder / "step_wise_prm" / "seed0" / "judge"
    folder.mkdir(parents=True)
    area = {"mean": mean, "lo": 0.5, "hi": 0.8, "n": 99} | more
    (folder / "calibration.json").write_text(json.dumps({"auroc": area}))
    return folder


def test_the_gate(tmp_path):
    folder = calibrated(tmp_path, 0.699)
    with pytest.raises(InputError, match=r"is 0.699 \[0.500, 0.800\], n = 99, below prm.min"):
        check_gate(folder, 0.7, True)
    check_gate(folder, 0.699, True)
    check_gate(folder, 0.7, False)  # the recipe says it shall be used anyway


def test_an_auroc_that_is_unknown_does_not_pass(tmp_path):
    folder = calibrated(tmp_path, None, reason="good or bad steps only")
    with pytest.raises(InputError, match=r"is unknown \(good or bad steps only\)"):
        check_gate(folder, 0.5, True)


def test_a_judge_that_was_never_made_is_told(tmp_path):
    folder = tmp_path / "step_wise_prm" / "seed3" / "judge"
    with pytest.raises(InputError, match="guiderail prm --recipe step_wise_prm --seed 3"):
        check_gate(folder, 0.5, False)


def test_judges_without_a_model(tmp_path):
    with opened_judge(context(), rl(), tmp_path) as over:
        assert over(FrameStore()) is None
    with opened_judge(context(), rl(judge="progress"), tmp_path) as over:
        assert isinstance(over(FrameStore()), ProgressJudge)


def judged(judge, frames, png):
    seen = Observation(frames.put(png), 160, 210, "go", 0, png)

    async def go():
        watch = await judge.start(TaskSpec("s", "t", 1), seen, None, 7)
        one = await watch.step(Judged(0, seen, seen, Click(0.5, 0.5), "press it", "CLICK ...", False, None))
        two = await watch.step(Judged(1, seen, seen, Click(0.5, 0.5), "", "CLICK again", True, True))
        return await asyncio.gather(one, two)

    return asyncio.run(go())


def test_an_endpoint(tiny):
    with ChatStub(lambda body: [r"\boxed{-1}", "?"]) as stub:
        where = {"url": stub.url, "model": "j", "key_env": "NO_SUCH_KEY", "price_out": 50.0, "currency": "EUR"}
        phase, ctx, frames = rl(judge="endpoint", voting={"votes": 2, "endpoint": where}), context(), FrameStore()
        with opened_judge(ctx, phase, None) as over:
            assert judged(over(frames), frames, tiny.frames.png[tiny.frames.paint(1)]) == [Votes((-1,), 1)] * 2
        texts = [r["messages"][1]["content"][0]["text"] for r in stub.requests]
    assert sorted("press it" in t for t in texts) == [False, True]  # the second step knows the first
    assert ctx.told[1] == {
        "judge.calls": 2.0, "judge.failed": 0.0, "judge.tokens_in": 2000.0, "judge.tokens_out": 40.0,
        "judge.price": pytest.approx(0.002),
    }  # fmt: skip
    assert "2 calls" in ctx.told[0] and "0.0020 EUR" in ctx.told[0]


def test_the_trained_judge_behind_its_gate(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "load_policy", lambda path, params: tiny.policy)
    folder, frames = calibrated(tmp_path, 0.6), FrameStore()
    with pytest.raises(InputError, match="judge_gate: false"), opened_judge(context(), rl(judge="prm"), folder):
        raise AssertionError("must not open")
    phase = rl(judge="prm", judge_gate=False, voting={"votes": 3})
    with opened_judge(context(), phase, folder) as over:
        judge = over(frames)
        assert isinstance(judge, FrameJudge)
        found = judged(judge, frames, tiny.frames.png[tiny.frames.paint(1)])
    assert [len(v.valid) + v.invalid for v in found] == [3, 3]


def test_an_endpoint_that_is_nowhere_is_told_before_the_chain_starts():
    with pytest.raises(SystemExit, match=r"recipes.r.step_wise.voting.endpoint: url and model are needed"):
        rl(judge="endpoint")
