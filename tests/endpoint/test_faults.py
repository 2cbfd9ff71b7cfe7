"""Every failure of a server is one line with cause and remedy, and never shows the key."""

import json
import socket

import pytest

from specprefill_cli.endpoint.client import Client, EndpointError
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.models.sources.refs import parse_endpoint
from specprefill_cli.settings import Settings
from tests.helpers.upstream import error, event, piece, reply_with, says, stay_silent, stream_parts

KEY = "sk-a-secret-key"
MESSAGES = [{"role": "user", "content": "When?"}]


@pytest.fixture
def client(upstream):
    return Client(parse_endpoint(upstream.target), KEY)


def answer(client, **settings):
    return "".join(client.send(MESSAGES, Settings(**settings)))


BROKEN = "the reply breaks off or is no chat completion ("
FAULTS = {
    "401": (error(401, f"bad key {KEY}"), ("Error code: 401", "bad key ***", "; set OPENAI_API_KEY")),
    "404": (error(404, "model 'x' not found"), ("model 'x' not found", "/v1/models` lists the models")),
    "500": (error(500, "out of memory"), ("Error code: 500", "out of memory", "; see the server's log")),
    "429": (error(429, "slow down"), ("Error code: 429", "slow down", "lower --concurrency")),
    "400": (error(400, "seed is not supported"), ("seed is not supported", "; leave out the option")),
    "error alone": (reply_with(404, {"error": "model not found"}), ("model not found", "lists the models")),
    "detail": (reply_with(422, {"detail": "seed: too low"}), ("seed: too low", "; see the server's log")),
    "no json": (reply_with(500, "<h1>Oops</h1>\n", "text/html"), ("Error code: 500; see the server's log",)),
    "long": (error(500, f"{KEY} " * 90), ("*** *** ***", "; see the server's log")),
    "cut": (stream_parts(piece("42")), (BROKEN,)),
    "cut in a part": (stream_parts(piece("42"), length=10_000), (BROKEN,)),
    "wrong json": (stream_parts(b"data: {oops\n\n"), (BROKEN,)),
    "other json": (stream_parts(event(["a list"])), (BROKEN,)),
    "page": (reply_with(200, "<html></html>", "text/html"), (BROKEN, "it ends with /v1")),
    "not streamed": (reply_with(200, {"choices": [{"message": {"content": "42"}}]}), (BROKEN,)),
    "error inside": (stream_parts(piece("42"), event({"error": {"message": "the GPU is gone"}})), ("the GPU is gone",)),
}


@pytest.mark.parametrize(("reply", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_line_with_its_cause_and_a_remedy(upstream, client, reply, expected):
    upstream.script = lambda _body: reply
    with pytest.raises(EndpointError) as raised:
        answer(client)
    message = str(raised.value)
    assert all(words in message for words in expected), message
    assert ";" in message
    assert "\n" not in message
    assert KEY not in message
    assert len(upstream.bodies) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "This model's maximum context length is 4096.", "code": "context_length_exceeded"}},
        {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}},
        {"object": "error", "message": "The prompt is too long: 9000"},
        {"error": "context length exceeded"},
    ],
)
def test_an_exceeded_context_is_a_prompt_that_is_too_long(upstream, client, body):
    upstream.script = lambda _body: reply_with(400, body)
    with pytest.raises(PromptTooLong, match="--mode select"):
        answer(client)


def test_a_server_that_is_not_there_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=f"{url}: cannot be reached .*; start the server"):
            answer(Client(parse_endpoint(f"{url}#m")))


def test_a_silent_server_is_a_timeout(upstream):
    upstream.script = lambda _body: stay_silent
    with pytest.raises(EndpointError, match=r"no answer within 0.2 s; "):
        answer(Client(parse_endpoint(upstream.target), KEY, timeout=0.2))


def test_a_busy_server_is_asked_again(upstream, client):
    replies = [error(429, "slow down", retry_after="0.01"), error(503, "loading", retry_after="0.01"), says("42")]
    upstream.script = lambda _body: replies[len(upstream.bodies) - 1]
    client.openai.max_retries = 2
    assert answer(client) == "42"
    assert len(upstream.bodies) == 3


def test_sampling_is_passed_on(upstream, client):
    assert answer(client, temperature=0.7, top_p=0.9, top_k=40, seed=3, max_new_tokens=17) == "42 pence"
    sent = upstream.bodies[0]
    assert sent | {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 3, "max_tokens": 17} == sent
    answer(client)
    assert "top_k" not in upstream.bodies[1]
    last = event({"choices": None}) + event({"choices": [{"delta": None, "finish_reason": "stop"}]})
    newer = stream_parts(piece("42"), last)
    upstream.script = lambda body: error(400, "use 'max_completion_tokens'") if "max_tokens" in body else newer
    assert answer(client, max_new_tokens=17) == "42"
    assert {"max_completion_tokens", "temperature", "top_p"} & {*upstream.bodies[-1]} == {"max_completion_tokens"}


def test_the_key_of_the_environment_is_sent_and_not_shown(upstream, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    keyed = Client(parse_endpoint(upstream.target))
    answer(keyed)
    monkeypatch.delenv("OPENAI_API_KEY")
    answer(Client(parse_endpoint(upstream.target)))
    assert upstream.keys == [f"Bearer {KEY}", "Bearer none"]
    assert KEY not in repr(keyed)
    assert KEY not in json.dumps(upstream.bodies)
