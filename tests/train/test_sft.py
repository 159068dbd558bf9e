"""The warm-up loop: what it trains on, accumulation, resume."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from worlds import SFT, MemoryLog, demo_rows, make_learner, make_policy, run_sft

from guiderail.checkpoints.save import load_state
from guiderail.train import sft as sft_loop
from guiderail.train.gates import GateError
from tinyvlm import NumberedFrames


def test_learns_and_logs(tmp_path):
    sft = SFT.model_copy(update={"epochs": 6, "lr": 5e-3})
    _, log, totals, _ = run_sft(tmp_path, sft)
    assert len(log.rows) == 18 == totals.optimizer_steps
    assert {"loss", "token_accuracy", "lr", "grad_norm", "tokens_per_s"} <= log.rows[0].keys()
    assert log.rows[17]["loss"] < 0.5 * log.rows[0]["loss"]
    assert log.rows[17]["token_accuracy"] > log.rows[0]["token_accuracy"]


def test_every_row_once_an_epoch_in_another_order(tmp_path, monkeypatch):
    seen = []
    real = sft_loop.microbatches
    monkeypatch.setattr(
        sft_loop, "microbatches", lambda rows, index, *how: seen.append(list(index)) or real(rows, index, *how)
    )
    run_sft(tmp_path)
    first, second = ([i for part in half for i in part] for half in (seen[: len(seen) // 2], seen[len(seen) // 2 :]))
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_loss_is_the_mean_over_action_tokens_alone():
    """First logged loss and gradient against cross-entropy over the full forward, spans picked by hand (I-03)."""
    policy, frames = make_policy(), NumberedFrames()
    rows = demo_rows(frames, n=5, steps=2)
    grads, losses = [], []
    for micro in (2, 5):
        p = make_policy()
        sft = SFT.model_copy(update={"batch": 5, "micro_batch": micro, "epochs": 1})
        learner, kept = make_learner(p, sft), {}
        learner.step = lambda lr, n=learner.named, k=kept: k.update({a: b.grad.clone() for a, b in n.items()}) or 0.0
        metrics = sft_loop._step(p, learner, rows, range(5), frames, sft, 0, 0, 1)
        losses.append(metrics["loss"])
        grads.append(kept)
    learner = make_learner(policy, SFT)
    nll, hit = [], []
    for row in rows:
        hidden = policy.hidden(policy.pack([(row.ids, row.frames)], frames))[0]
        logits = policy.masked_logits(hidden)
        for start, end in row.spans:
            target = torch.from_numpy(row.ids[start:end])
            nll.append(torch.nn.functional.cross_entropy(logits[start - 1 : end - 1], target, reduction="none"))
            hit.append(logits[start - 1 : end - 1].argmax(-1) == target)
    loss = torch.cat(nll).mean()
    loss.backward()
    assert losses == pytest.approx([loss.item()] * 2, rel=1e-5)
    assert metrics["token_accuracy"] == pytest.approx(torch.cat(hit).float().mean().item())
    for n, x in learner.named.items():
        for g in grads:
            assert torch.allclose(g[n], x.grad, rtol=1e-3, atol=1e-6), n


def test_stop_token_is_trained_and_prompt_is_not():
    rows = demo_rows(NumberedFrames(), n=3)
    from worlds import PROCESSOR

    end = PROCESSOR.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert all(r.ids[r.spans[-1][1] - 1] == end for r in rows)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_killed_and_resumed_is_bitwise_the_same(tmp_path, mode):
    sft = SFT.model_copy(update={"mode": mode})
    one, log, totals, _ = run_sft(tmp_path / "a", sft)

    def fail(step, _):
        if step == 4:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run_sft(tmp_path / "b", sft, on_step=fail)
    assert load_state(tmp_path / "b").step == 4
    two, rest, again, _ = run_sft(tmp_path / "b", sft)
    assert (
        two == one
        and again.optimizer_steps == totals.optimizer_steps == 6
        and again.trained_tokens == totals.trained_tokens
    )
    assert {i: rest.rows[i]["loss"] for i in (4, 5)} == {i: log.rows[i]["loss"] for i in (4, 5)}


def test_dropout_resumes_bitwise_too(tmp_path):
    lora = SFT.lora.model_copy(update={"dropout": 0.3})
    sft = SFT.model_copy(update={"mode": "lora", "lora": lora})
    one = run_sft(tmp_path / "a", sft)[0]

    def fail(step, _):
        if step == 3:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run_sft(tmp_path / "b", sft, on_step=fail)
    assert run_sft(tmp_path / "b", sft)[0] == one
    assert run_sft(tmp_path / "c", SFT.model_copy(update={"mode": "lora"}))[0] != one


def test_sigkill_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("worlds.py")), "sft", str(tmp_path)]
    assert subprocess.run([*command, "3"], capture_output=True).returncode == -signal.SIGKILL
    again = subprocess.run([*command, "-1"], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout.splitlines()[-1])["digest"] == run_sft(tmp_path / "whole")[0]


def test_cut_rows_and_no_rows_are_refused(tmp_path):
    frames = NumberedFrames()
    rows = demo_rows(frames, n=2)
    short = rows[1].__class__(rows[1].ids, (), rows[1].spans, rows[1].logprobs, (0,))
    policy = make_policy()

    def run(rows):
        names = ["a", "b"][: len(rows)]
        learner = make_learner(policy, SFT)
        sft_loop.train(policy, learner, rows, names, frames, SFT, seed=0, work=tmp_path, log=MemoryLog())

    with pytest.raises(GateError, match="row b: 35 image tokens but 0 features"):
        run([rows[0], short])
    with pytest.raises(ValueError, match="no demonstration rows"):
        run([])
