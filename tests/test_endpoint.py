"""The endpoint client over real HTTP: tries again what may pass, gives up on what will not, keeps the key to itself."""

import asyncio
import logging

import pytest

from chat_stub import ChatStub
from guiderail import endpoint as module
from guiderail.endpoint import Endpoint, EndpointError, text_part
from guiderail.params_endpoint import Endpoint as Params

KEY = "sk-very-secret-0123456789"
ASK = [{"role": "user", "content": [text_part("hello")]}]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("STUB_KEY", KEY)


def make(url, **more):
    return Endpoint(Params(url=url, model="m", key_env="STUB_KEY", **{"timeout_s": 5.0, "retries": 3, **more}), "judge")


def ask(endpoint, **more):
    return asyncio.run(endpoint.chat(ASK, temperature=0.5, max_tokens=9, **more))


def test_request_and_reply():
    with ChatStub(lambda body: ["a", "b"]) as stub, make(stub.url, price_in=2.0, price_out=30.0) as endpoint:
        reply = ask(endpoint, n=2, seed=2**40 + 7)
        assert (reply.texts, reply.model, reply.tokens_in, reply.tokens_out) == (("a", "b"), "stub-1", 1000, 20)
        sent = stub.requests[0]
        assert sent["path"] == "/v1/chat/completions" and sent["messages"] == ASK
        assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["n"], sent["seed"]) == ("m", 0.5, 9, 2, 7)
        assert stub.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert endpoint.price == pytest.approx(1000 * 2e-6 + 20 * 30e-6)


@pytest.mark.parametrize("fault", [500, 429, "drop", (200, "<html>", {}), (200, '{"choices": []}', {})])
def test_passing_faults_are_tried_again(fault):
    faults = [fault, fault]
    with ChatStub(lambda body: faults.pop() if faults else ["ok"]) as stub, make(stub.url) as endpoint:
        assert ask(endpoint).texts == ("ok",)
        assert len(stub.requests) == 3 and endpoint.failed == 2 and endpoint.calls == 1


def test_retry_after_is_obeyed(monkeypatch):
    pauses = []
    real = asyncio.sleep

    async def sleep(s):
        pauses.append(s)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    faults = [(429, "slow down", {"Retry-After": "7"})]
    with ChatStub(lambda body: faults.pop() if faults else ["ok"]) as stub, make(stub.url) as endpoint:
        assert ask(endpoint).texts == ("ok",)
    assert 7.0 in pauses


def test_a_server_that_hangs_is_given_up():
    with ChatStub(lambda body: "hang") as stub, make(stub.url, timeout_s=1.0, retries=1) as endpoint:
        with pytest.raises(EndpointError, match="ReadTimeout"):
            ask(endpoint)
        assert len(stub.requests) == 2


def test_a_refusal_ends_at_once_and_the_key_is_in_no_message(caplog):
    caplog.set_level(logging.DEBUG)
    said = (401, f"Incorrect API key provided: {KEY}. \n Find it ...", {})
    with ChatStub(lambda body: said) as stub, make(stub.url) as endpoint:
        with pytest.raises(EndpointError) as e:
            ask(endpoint)
        assert len(stub.requests) == 1
    assert "HTTP 401: Incorrect API key provided: ***. Find it" in str(e.value) and "Is STUB_KEY set" in str(e.value)
    assert KEY not in str(e.value) and KEY not in caplog.text and KEY not in repr(endpoint)


def test_not_even_a_part_of_the_key_is_shown_where_an_answer_is_cut():
    """It stands across the place at which a body that is no completion is cut."""
    body = "\n" * (module.SHOWN - len(KEY) // 2) + KEY
    with (
        ChatStub(lambda _: (200, body, {})) as stub,
        make(stub.url, retries=0) as endpoint,
        pytest.raises(EndpointError) as e,
    ):
        ask(endpoint)
    assert "not a chat completion" in str(e.value) and KEY[: len(KEY) // 2] not in str(e.value)


def test_the_key_does_not_cross_a_network_in_clear_text(monkeypatch):
    with pytest.raises(EndpointError, match="clear text") as e:
        make("http://example.org/v1")
    assert KEY not in str(e.value)
    make("https://example.org/v1").close()
    monkeypatch.delenv("STUB_KEY")
    make("http://example.org/v1").close()  # no key, nothing to lose


def test_calls_at_a_time_are_bounded_over_event_loops():
    import time
    from concurrent.futures import ThreadPoolExecutor

    def slow(body):
        time.sleep(0.03)
        return ["x"]

    async def many(endpoint):
        return await asyncio.gather(*(endpoint.chat(ASK, temperature=0, max_tokens=1) for _ in range(6)))

    with ChatStub(slow) as stub, make(stub.url, concurrency=3) as endpoint:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: asyncio.run(many(endpoint)), range(2)))
        assert len(stub.requests) == 12 and stub.most == 3


def test_what_can_never_work_is_told_before():
    with pytest.raises(EndpointError, match="url and model are needed"):
        Endpoint(Params(), "sft.cot.endpoint")
    for bad in ({"url": "ftp://x"}, {"url": "http://k@x/v1"}, {"key_env": "sk-abc"}):
        with pytest.raises(ValueError):
            Params(**bad)


@pytest.mark.parametrize("wrong", ["not a url", "ftp://x", "http://h:99999", "http://[::1", "http://key@h:80"])
def test_addresses_that_are_none(wrong):
    from guiderail.params_endpoint import Endpoint
    from guiderail.params_engine import Engine

    for section in (Endpoint, Engine):
        with pytest.raises(ValueError, match="of the form http"):
            section(url=wrong)
        assert section(url="http://127.0.0.1:8000").url
