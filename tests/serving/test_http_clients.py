"""Real clients: httpx over the socket, curl and the openai package over loopback."""

import base64
import json
from pathlib import Path

import httpx
import openai
import pytest

from specprefill_cli.documents.collect import read_documents
from specprefill_cli.serving.control import HAS_UNIX_SOCKETS
from tests.helpers.samples import HANDBOOK, QUESTION

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="the tests' server needs a runtime folder"),
]

GATE = {"text": "The gate of the farm is dark green. " * 20, "name": "gate.txt"}


def test_ask_over_the_socket_reads_paths_text_and_bytes(server):
    encoded = {"base64": base64.b64encode(Path(HANDBOOK).read_bytes()).decode(), "name": "handbook.pdf"}
    with server.over_socket() as client:
        for document, name in (({"path": HANDBOOK}, HANDBOOK), (encoded, "handbook.pdf")):
            record = client.post("/v1/ask", json={"id": "a", "question": QUESTION, "documents": [document]}).json()
            assert (record["id"], record["answer"]) == ("a", "42 pence")
            assert record["citations"][0]["document"] == name
        for path in ("/v1/ask", "/v1/passages"):
            reply = client.post(path, json={"question": "Which color?", "documents": [GATE], "kep": 1}).json()
            assert (reply["schema"], "'kep'" in reply["warnings"][-1]) == (1, True)


def test_stream_has_the_pieces_and_then_the_record(server):
    body = {"question": QUESTION, "documents": [{"path": HANDBOOK}], "stream": True}
    with server.over_socket() as client:
        response = client.post("/v1/ask", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [block.split("\n") for block in response.text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    values = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert names == ["piece"] * (len(names) - 1) + ["answer"]
    assert "".join(value["text"] for value in values[:-1]).strip() == values[-1]["answer"] == "42 pence"


def test_one_bad_request_harms_no_other(server):
    with server.over_http() as client:
        bodies = [
            {"documents": [{"base64": "JVBERi0xLjQK", "name": "a.pdf"}]},
            {"documents": [GATE], "keep": 7},
            {"documents": [GATE], "pair": "tiny"},
            {},
            {"documents": [{"text": "x y " * 40_000}], "mode": "full"},
        ]
        bad = [client.post("/v1/ask", content=b"{")]
        bad += [client.post("/v1/ask", json={"question": "Who?", **body}) for body in bodies]
        assert [response.status_code for response in bad] == [400] * len(bad)
        assert all(response.json()["error"]["message"] for response in bad)
        assert bad[-1].json()["error"]["type"] == "prompt_too_long"
        refused = client.post("/v1/ask", json={"question": "Who?", "documents": [{"path": HANDBOOK}]})
        assert refused.status_code == 403
        assert client.post("/v1/ask", json={"question": "Which color?", "documents": [GATE]}).status_code == 200


def test_the_token_is_checked(server):
    with server.over_http() as client:
        assert client.get("/v1/models").status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {server.token}"}):
        assert httpx.get(f"{server.address}/v1/models", headers=headers, trust_env=False).status_code == 401
    assert httpx.post(f"{server.address}/healthz", trust_env=False).status_code == 401
    state = httpx.get(f"{server.address}/healthz", trust_env=False)
    assert state.json() == {"status": "ok"}


def test_pages_of_an_allowed_origin_may_ask(server):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, allowed in (("http://page.example", "http://page.example"), ("http://other.example", None)):
        with httpx.Client(base_url=server.address, headers={"Origin": origin}, trust_env=False) as client:
            preflight = client.options("/v1/chat/completions", headers=asked)
            refused = client.get("/v1/models")
        assert preflight.status_code == (200 if allowed else 400)
        assert refused.status_code == 401
        assert [reply.headers.get("access-control-allow-origin") for reply in (preflight, refused)] == [allowed] * 2


@pytest.fixture
def chat(server):
    client = httpx.Client(trust_env=False, timeout=60)
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key=server.token, http_client=client, max_retries=0) as ai:
        yield ai


@pytest.fixture(scope="module")
def asked():
    (document,) = read_documents([HANDBOOK])
    return {"model": "tiny", "messages": [{"role": "user", "content": f"{document.text}\n\n{QUESTION}"}]}


def test_openai_completion_and_stream_agree(chat, asked):
    assert [model.id for model in chat.models.list()] == ["tiny"]
    asked = {**asked, "extra_body": {"mode": "select", "keep": 0.2}}
    reply = chat.chat.completions.create(**asked)
    assert "42 pence" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens_details.kept_tokens < 0.25 * reply.usage.prompt_tokens
    chunks = list(chat.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == reply.choices[0].message.content
    assert chunks[-1].usage.total_tokens == reply.usage.total_tokens


def test_parts_in_any_order_and_a_named_document_are_answered(chat, asked):
    document = asked["messages"][0]["content"].removesuffix(f"\n\n{QUESTION}")
    parts = [{"type": "text", "text": text} for text in (document, QUESTION)][::-1]
    own = {"mode": "select", "keep": 0.2}
    for content, extra in ((parts, own), (QUESTION, {"specprefill": {"document": document, "kep": 1, **own}})):
        reply = chat.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}], extra_body=extra
        )
        assert "42 pence" in reply.choices[0].message.content
        assert reply.usage.prompt_tokens_details.kept_tokens < 0.3 * reply.usage.prompt_tokens
        assert any("'specprefill.kep'" in warning for warning in reply.warnings) == ("specprefill" in extra)


def test_an_answer_ends_before_a_stop_text(chat, asked):
    for stop in (" pen", ["mile", "2 pence"]):
        reply = chat.chat.completions.create(**asked, stop=stop, extra_body={"mode": "full", "stp": "x"})
        expected = "42" if stop == " pen" else "4"
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (expected, "stop")
        assert "'stp'" in reply.warnings[-1]
        chunks = chat.chat.completions.create(**asked, stop=stop, stream=True, extra_body={"mode": "full"})
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_a_salted_request_shares_no_work(chat):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": f"{GATE['text'] * 3}\n\nWhich color?"}]}

    def cached_tokens(**fields):
        reply = chat.chat.completions.create(**asked, extra_body={"mode": "full", **fields})
        return reply.usage.prompt_tokens_details.cached_tokens

    assert cached_tokens() == 0
    assert cached_tokens() > 100
    assert cached_tokens(cache_salt="mine") == 0


def test_openai_errors_are_clear(chat):
    messages = [{"role": "user", "content": "Who?"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for fields, words in (
        ({"messages": messages, "tools": tools}, "tools: not supported"),
        ({"messages": messages, "n": 2}, "n: not supported"),
        ({"messages": messages, "max_completion_tokens": "x"}, "setting max_completion_tokens"),
        ({"messages": messages, "stop": [""]}, "stop must be a string or a list"),
        ({"messages": messages, "extra_body": {"confirm": True}}, "confirm: only `specprefill ask` and `compare`"),
        ({"messages": [*messages, {"role": "tool", "content": "x", "tool_call_id": "1"}]}, "tool calls"),
        ({"messages": [{"role": "assistant", "content": "Hello"}]}, "the last message must be the user's"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            chat.chat.completions.create(model="tiny", **fields)
    with pytest.raises(openai.NotFoundError, match="not loaded"):
        chat.chat.completions.create(model="gpt-5", messages=messages)
    assert chat.chat.completions.create(model="tiny", messages=messages, max_tokens=4).usage.completion_tokens <= 4
    assert chat.chat.completions.create(model="tiny", messages=messages, max_tokens=-1).usage.completion_tokens > 0
