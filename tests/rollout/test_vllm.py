"""The vLLM engine against a server that speaks its routes: what it sends, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from vllm_stub import Stub, serving

from guiderail.errors import InputError
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.params_engine import Engine
from guiderail.params_train import Lora
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.engines.vllm import VllmEngine, one_pad_per_image
from guiderail.rollout.engines.vllm_client import VllmClient, VllmError
from guiderail.rollout.engines.vllm_server import Build, command, environment, find_build
from guiderail.rollout.engines.vllm_weights import WeightSync
from guiderail.rollout.types import SamplingParams
from guiderail.train.optim import inject_lora, select_trainable
from tinyvlm import make_model


@pytest.fixture(scope="module")
def server(tiny):
    with serving(Stub(tiny.policy, tiny.frames)) as stub:
        yield stub


@pytest.fixture
def stub(server):
    yield server
    server.refusals, server.broken, server.version, server.paused = [], lambda path, reply: None, "default", False
    server.calls.clear()


def client(stub, **options):
    return VllmClient(stub.url, stub.token, wait=0.01, **options)


def engine(stub, tiny, version="default", model="base"):
    return VllmEngine(client(stub), tiny.policy, tiny.frames, model=model, version=version)


def asked(tiny):
    p = tiny.frames.paint
    prompts = [Prompt(tiny.ids("a"), (p(1),)), Prompt(tiny.ids("two", (35, 6)), (p(5), p(6, (96, 64))))]
    return prompts, [SamplingParams(0.7, max_new_tokens=5, seed=2**62 + i) for i in range(2)]


def test_completions_are_those_of_the_policy_behind_the_server(stub, tiny):
    prompts, sampling = asked(tiny)
    made = engine(stub, tiny)
    out = made.generate(prompts, sampling)
    want = HfEngine(tiny.policy, tiny.frames).generate(prompts, sampling)
    assert [(c.ids, c.finish_reason, c.text) for c in out] == [(c.ids, c.finish_reason, c.text) for c in want]
    assert [c.weight_version for c in out] == ["default"] * 2
    assert made.tokens == sum(len(c.ids) for c in out)
    for prompt, c in zip(prompts, out, strict=True):
        end = len(prompt.ids) + len(c.ids)
        row = ChunkRow(np.array(prompt.ids + c.ids), prompt.frames, ((len(prompt.ids), end),), np.zeros(1), (0,), 0.7)
        scored = tiny.policy.logprobs([row], tiny.frames, temperature=None).logp
        np.testing.assert_allclose(c.logprobs, scored.numpy(), atol=1e-4, rtol=0)


def test_a_run_of_pads_becomes_one_and_nothing_else_changes():
    assert one_pad_per_image([1, 9, 9, 9, 2, 2, 9, 3, 3], 9) == [1, 9, 2, 2, 9, 3, 3]
    assert one_pad_per_image([], 9) == []


def test_expanded_pads_would_be_expanded_again_and_are_refused(stub, tiny, monkeypatch):
    prompts, sampling = asked(tiny)
    made = engine(stub, tiny)
    right = made.request
    monkeypatch.setattr(made, "request", lambda p, s: right(p, s) | {"token_ids": list(p.ids)})
    with pytest.raises(VllmError, match=r"read 91 prompt tokens, the policy 57 \(image pads expanded twice"):
        made.generate(prompts[:1], sampling[:1])  # 35 pads became 69


def choice(change):
    def broken(path, reply):
        if path == "/inference/v1/generate":
            change(reply["choices"][0])

    return broken


def put(key, value):
    return choice(lambda c: c.update({key: value}))


def logprob(value):
    return choice(lambda c: c["logprobs"]["content"][0].update(logprob=value))


def token(value):
    def change(c):
        c["token_ids"][0] = c["logprobs"]["content"][0]["token_id"] = value

    return choice(change)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda path, reply: reply.get("prompt_token_ids", []).append(7), "prompt tokens, the policy"),
        (lambda path, reply: reply.get("prompt_token_ids", [0]).__setitem__(0, 7), "but others"),
        (lambda path, reply: reply.update(prompt_token_ids=None), "prompt_token_ids absent"),
        (lambda path, reply: reply.update(choices=[]), "0 choices"),
        (put("weight_versions", [{"version": "3", "start": 0, "end": 5}]), "under weights"),
        (put("weight_versions", None), r"under weights \[\]"),
        (choice(lambda c: c["logprobs"]["content"].pop()), "log-probs that are not theirs"),
        (choice(lambda c: c["logprobs"]["content"].reverse()), "log-probs that are not theirs"),
        (logprob(-float("inf")), "a log-prob that is none"),
        (logprob(0.1), "a log-prob that is none"),
        (token(260), r"sampled the masked tokens \[260\]"),
        (put("finish_reason", "abort"), "end with 'abort'"),
        (put("finish_reason", "stop"), "end with 'stop'"),
        (choice(lambda c: (c["token_ids"].pop(), c["logprobs"]["content"].pop())), "4 of 5 tokens end with 'length'"),
        (token(70_000), r"sampled \[70000\], no ids of a vocabulary"),
        (put("token_ids", "abc"), "an answer that is no completion"),
        (put("logprobs", {"content": [1]}), "an answer that is no completion"),
        (token(258), "5 of 5 tokens end with 'length'"),  # went on after a stop token
    ],
)  # fmt: skip
def test_a_reply_that_cannot_be_right_is_refused(stub, tiny, broken, says):
    prompt, sampling = Prompt(tiny.ids("a"), (tiny.frames.paint(1),)), SamplingParams(0.7, max_new_tokens=5, seed=3)
    (good,) = engine(stub, tiny).generate([prompt], [sampling])
    assert good.finish_reason == "length" and len(set(good.ids)) == 5  # what the changes above build on
    stub.broken = broken
    with pytest.raises(VllmError, match=says):
        engine(stub, tiny).generate([prompt], [sampling])


@pytest.mark.parametrize(
    "bad", [{"top_p": 0.9}, {"temperature": 0.005}, {"temperature": 2.5}, {"temperature": -1.0}, {"max_new_tokens": 0}]
)
def test_sampling_that_the_server_would_change_is_refused(stub, tiny, bad):
    with pytest.raises(ValueError, match="request 0"):
        engine(stub, tiny).generate([Prompt(tiny.ids("a"), (tiny.frames.paint(1),))], [SamplingParams(**bad)])


def test_a_prompt_with_fewer_frames_than_images_is_not_sent(stub, tiny):
    with pytest.raises(ValueError, match="2 image runs and 1 frames"):
        prompt = Prompt(tiny.ids("two", (35, 35)), (tiny.frames.paint(1),))
        engine(stub, tiny).generate([prompt], [SamplingParams()])
    assert not stub.calls


def test_a_refusal_is_told_in_the_servers_words_and_not_asked_again(stub, tiny):
    stub.refusals = [(400, "At most 4 image(s) may be provided in one prompt.")]
    with pytest.raises(VllmError, match="status 400: At most 4 image"):
        engine(stub, tiny).generate(*(x[:1] for x in asked(tiny)))
    assert len(stub.calls) == 1


def test_lost_replies_and_server_errors_are_asked_again(stub, tiny):
    prompts, sampling = (x[:1] for x in asked(tiny))
    want = engine(stub, tiny).generate(prompts, sampling)
    stub.calls.clear()
    stub.refusals = [(0, ""), (503, "busy"), (-1, "")]
    assert engine(stub, tiny).generate(prompts, sampling) == want
    assert len(stub.calls) == 4
    stub.refusals = [(500, "EngineCore died")] * 4
    with pytest.raises(VllmError, match=r"no answer in 4 tries .*EngineCore died"):
        engine(stub, tiny).generate(prompts, sampling)


def test_a_server_that_is_not_there_or_wants_a_token_is_an_error(stub):
    with pytest.raises(VllmError, match="no answer in 2 tries"):
        VllmClient("http://127.0.0.1:9", wait=0.0, retries=1).models()
    with serving(Stub(token="secret")) as closed:
        with pytest.raises(VllmError, match="status 401: Unauthorized"):
            VllmClient(closed.url, "wrong").models()
        assert client(closed).models() == {"base": "/nowhere"}


@pytest.mark.parametrize("answer", ["<html>a login page</html>", [], {"data": [{"x": 1}]}, {"data": 3}])
def test_another_server_at_the_address_is_told_as_such(answer):
    stub = Stub()
    stub.answer = lambda method, path, body: (200, answer)
    with serving(stub):
        for call in (client(stub).models, client(stub).version, client(stub).checksums):
            with pytest.raises(VllmError, match=r"not what vLLM answers; does engine.url name another"):
                call()
        stub.refusals = [(302, "moved")]
        with pytest.raises(VllmError, match="refused with status 302"):
            client(stub).set_version("1")


@pytest.fixture
def folder(processor, tmp_path):
    """The tiny policy's model as a Hugging Face folder."""
    from guiderail.models.tiny import save

    save(make_model(processor), processor, str(tmp_path / "base"))
    return tmp_path / "base"


def test_each_adapter_version_has_a_new_name_and_folder_and_the_old_one_goes(folder, processor, tmp_path):
    lora = Lora(r=4, alpha=8)
    model = make_model(processor)
    inject_lora(model, lora, 0)
    named = select_trainable(model, "lora", lora=lora, train_vision=False, seed=0)
    weights = {n: x.detach() for n, x in named.items()}
    with serving(Stub(root=folder)) as stub:
        sync = WeightSync(client(stub), folder, tmp_path / "versions", "lora", lora)
        first = sync.publish("0", weights)
        assert sync.publish("0", weights) == first and stub.version == "0"
        at = stub.models[first]
        stub.refusals = [(-1, "")]  # loaded, but the reply is lost: asked again, "already loaded" is fine
        second = sync.publish("1", weights)
        assert second != first and stub.version == "1"
        assert list(stub.models) == ["base", second] and stub.models[second] != at
        assert [str(p) for p in (tmp_path / "versions").iterdir()] == [stub.models[second]]


def test_full_weights_are_reloaded_between_pause_and_resume(folder, processor, tmp_path):
    model = make_model(processor)
    named = select_trainable(model, "full", lora=Lora(), train_vision=False, seed=0)
    weights = {n: x.detach() for n, x in named.items()}
    with serving(Stub(root=folder)) as stub:
        sync = WeightSync(client(stub), folder, tmp_path / "versions", "full", Lora())
        assert [sync.publish(str(v), weights) for v in range(2)] == ["base", "base"]
        paths = [p for p, _ in stub.calls if p != "/v1/models"]
        once = ["/pause?mode=abort", "/collective_rpc", "/resume", "/update_weight_version"]
        assert paths == once * 2 and not stub.paused
        assert len(list((tmp_path / "versions").iterdir())) == 1
        stub.refusals = [(200, ""), (400, "no such folder")]
        with pytest.raises(VllmError, match="no such folder"):
            sync.publish("2", weights)
        assert not stub.paused and stub.version == "1"


def test_a_server_of_a_folder_that_is_not_here_is_refused(tmp_path):
    with serving(Stub()) as stub, pytest.raises(VllmError, match="not on this machine's disks"):
        WeightSync(client(stub), tmp_path, tmp_path / "v", "lora", Lora())


def test_the_command_line_has_what_the_engine_relies_on(tmp_path):
    made = command(
        Build(tmp_path / "python", True), tmp_path, dtype="float32", images=3, rank=9, engine=Engine(), port="1"
    )
    text = " ".join(made)
    assert "--logprobs-mode processed_logprobs" in text and "--enable-scale-out" in text and "--host 127.0.0.1" in text
    assert '--limit-mm-per-prompt {"image": 3, "video": 0}' in text and "--max-lora-rank 16" in text
    assert "--enable-lora" not in command(
        Build(tmp_path, False), tmp_path, dtype="bfloat16", images=3, rank=0, engine=Engine(), port="1"
    )
    assert environment(Build(tmp_path, True), Engine(), "secret")["VLLM_API_KEY"] == "secret"
    assert "secret" not in text


def test_no_environment_is_told_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GUIDERAIL_VLLM_PYTHON", raising=False)
    with pytest.raises(InputError, match="setup-vllm"):
        find_build()
    import sys

    with pytest.raises(InputError, match="holds no vLLM"):
        find_build(sys.executable)
