"""The proxy in front of a scripted server: requests that reach it, and replies that come back; with real clients."""

import asyncio
import gzip
import json
import socket
from base64 import b64encode
from pathlib import Path

import httpx
import openai
import pytest

from specprefill_cli.documents.collect import read_documents
from specprefill_cli.models.sources.tokenizers import count_tokens
from specprefill_cli.serving.messages import Untouched
from specprefill_cli.serving.proxy import thin
from specprefill_cli.settings import Settings
from tests.helpers.samples import HANDBOOK, QUESTION
from tests.helpers.upstream import (
    completion,
    error,
    leave_bytes,
    reply_with,
    running_upstream,
    says,
    stream_parts,
    stream_until_left,
    wait_until_left,
)
from tests.serving.conftest import running_server

pytestmark = pytest.mark.slow

ANSWER = "a mileage allowance of 42 pence per mile"
PATIENCE = 60


@pytest.fixture(scope="module")
def servers():
    """A scripted server and the proxy in front of it."""
    options = ("--http", "127.0.0.1:0", "--scorer", "heads")
    with (
        running_upstream() as upstream,
        running_server("--upstream", upstream.url, *options, OPENAI_API_KEY="sk-up") as proxy,
    ):
        yield upstream, proxy


@pytest.fixture
def upstream(servers):
    running = servers[0]
    running.script = lambda body: says("42 ", "pence") if body.get("stream") else completion("42 pence")
    running.bodies.clear()
    running.requests.clear()
    return running


@pytest.fixture
def client(servers, upstream):
    with servers[1].over_http() as client:
        yield client


@pytest.fixture(scope="module")
def handbook():
    (document,) = read_documents([HANDBOOK])
    return document.text


def chat(*texts, **fields):
    return {"model": "scripted", "messages": [{"role": "user", "content": "\n\n".join(texts)}], **fields}


def test_a_long_document_is_thinned_for_the_question(client, upstream, handbook):
    asked = chat(handbook, QUESTION, temperature=0.5, specprefill={"keep": 0.1})
    reply = client.post("/v1/chat/completions", json=asked)
    assert reply.json()["choices"][0]["message"]["content"] == "42 pence"
    sent = upstream.bodies[0]
    assert {**sent, "messages": None} == {"model": "scripted", "messages": None, "temperature": 0.5}
    content = sent["messages"][0]["content"]
    assert ANSWER in content
    assert content.endswith(f"\n\n{QUESTION}")
    kept, total = map(int, reply.headers["x-specprefill-kept"].split("/"))
    assert (kept, total) == (count_tokens(content), count_tokens(f"{handbook}\n\n{QUESTION}"))
    assert kept < total / 2
    assert upstream.keys[-1] == "Bearer sk-up"


@pytest.mark.parametrize(("tokens", "keep"), [(2_000, 0.2), (11_000, 0.05)])
def test_the_middle_survives_a_long_head_and_a_long_question(client, upstream, tokens, keep):
    filler = "The council met on a {} day and talked about the new roof of the market hall, the road and the mill. "
    sentences = [filler.format(day) for day in ("wet", "dry", "cold", "warm")] * (tokens // 96)
    for start in range(0, len(sentences), 9):
        sentences[start] = f"\n\n{sentences[start]}"
    sentences.insert(len(sentences) // 2, "The code of the eastern gate is 7431. ")
    instruction = "Read the minutes with care. " * 30
    question = f"{'I ask because I stand before it. ' * 25}What is the code of the eastern gate?"
    body = chat(instruction, "".join(sentences).strip(), question, specprefill={"keep": keep})
    assert count_tokens(body["messages"][0]["content"]) > tokens
    reply = client.post("/v1/chat/completions", json=body)
    kept, total = map(int, reply.headers["x-specprefill-kept"].split("/"))
    assert "The code of the eastern gate is 7431." in upstream.bodies[0]["messages"][0]["content"]
    assert kept < total


@pytest.mark.parametrize(("fields", "reason"), [
    ({}, "short"), ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"question": "Summarise the handbook."}, "the question needs everything"),
    ({"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "not text alone"),
])  # fmt: skip
def test_everything_else_passes_byte_for_byte(client, upstream, handbook, fields, reason):
    question = fields.pop("question", QUESTION)
    body = chat(question, **fields) if reason == "short" else chat(handbook, question, **fields)
    body["messages"][0]["content"] = body.pop("content", body["messages"][0]["content"])
    # With blanks that no JSON library writes.
    content = json.dumps(body, indent=3).replace(": ", " :  ").encode()
    headers = {"content-type": "text/x", "x-own": "kept"}
    reply = client.post("/v1/chat/completions?x=1", content=content, headers=headers)
    (method, path, headers, sent) = upstream.requests[0]
    assert (method, path, sent) == ("POST", "/v1/chat/completions?x=1", content)
    assert (headers["x-own"], headers["content-type"]) == ("kept", "text/x")
    assert (reply.headers["x-specprefill-kept"], reply.headers["x-specprefill-reason"]) == ("untouched", reason)


def test_parts_in_any_order_of_a_gzip_request_are_thinned(client, upstream, handbook):
    parts = [{"type": "text", "text": text} for text in (handbook, QUESTION)][::-1]
    body = {"messages": [{"role": "user", "content": parts}], "specprefill": {"keep": 0.1}}
    content = gzip.compress(json.dumps(body).encode())
    reply = client.post("/v1/chat/completions", content=content, headers={"content-encoding": "gzip"})
    kept, total = map(int, reply.headers["x-specprefill-kept"].split("/"))
    document, question = (part["text"] for part in upstream.sent[::-1])
    assert (question, ANSWER in document, kept < total / 2) == (QUESTION, True, True)
    assert "content-encoding" not in upstream.requests[0][2]


def test_keep_1_is_sent_unthinned_without_the_settings_of_the_proxy(client, upstream, handbook):
    body = chat(handbook, QUESTION)
    reply = client.post("/v1/chat/completions", json=body | {"specprefill": {"keep": 1}})
    assert upstream.bodies == [body]
    assert reply.headers["x-specprefill-kept"] == "untouched"


def test_a_named_document_is_thinned_or_sent_whole(client, upstream, handbook):
    for keep, share in ((0.1, 0.25), (1, 1.01)):
        body = chat(f"Tell me this: {QUESTION}", specprefill={"document": handbook, "keep": keep})
        client.post("/v1/chat/completions", json=body)
        assert upstream.sent.endswith(f"\n\nTell me this: {QUESTION}")
        assert ANSWER in upstream.sent
        assert share / 3 < len(upstream.sent) / len(handbook) < share


FILE = {
    "filename": "handbook.pdf",
    "file_data": f"data:application/pdf;base64,{b64encode(Path(HANDBOOK).read_bytes()).decode()}",
}


@pytest.mark.parametrize("part", [
    {"type": "file", "file": FILE}, {"type": "input_file", **FILE},
    {"type": "document", "title": "a", "source": {"type": "base64", "data": FILE["file_data"].partition(",")[2]}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "{handbook}"}},
    {"type": "document", "document": {"text": "{handbook}", "name": "a"}},
])  # fmt: skip
def test_files_and_documents_among_parts_are_read_and_thinned(client, upstream, handbook, part):
    part = json.loads(json.dumps(part).replace('"{handbook}"', json.dumps(handbook)))
    body = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": f"Summarise: {QUESTION}"}]}]}
    reply = client.post("/v1/chat/completions", json=body | {"specprefill": {"keep": 0.1}})
    file, question = upstream.sent
    assert question["text"] == f"Summarise: {QUESTION}"
    assert (file["type"], ANSWER in file["text"]) == ("text", True)
    kept, total = map(int, reply.headers["x-specprefill-kept"].split("/"))
    assert kept < total / 4
    reply = client.post(
        "/v1/chat/completions", json=body | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    )
    assert reply.headers["x-specprefill-reason"] == "tools"


@pytest.mark.parametrize(("part", "reason"), [
    ({"type": "file", "file": {"file_id": "f-1"}}, "a file cannot be read"),
    ({"type": "file", "file": {"file_data": "JVBERi0xLjQK", "filename": "a.pdf"}}, "a file cannot be read"),
    ({"type": "image_url", "image_url": {"url": "data:"}}, "not text alone"),
])  # fmt: skip
def test_requests_with_unreadable_files_pass_as_they_came(client, upstream, part, reason):
    body = {
        "messages": [{"role": "user", "content": [part, {"type": "file", "file": FILE}, {"type": "text", "text": "?"}]}]
    }
    reply = client.post("/v1/chat/completions", json=body)
    assert (upstream.bodies, reply.headers["x-specprefill-reason"]) == ([body], reason)


def test_http_1_0_is_answered_and_closed(servers, upstream):
    address = httpx.URL(servers[1].address)
    request = f"GET /v1/models HTTP/1.0\r\nAuthorization: Bearer {servers[1].token}\r\nHost: localhost\r\n\r\n"
    upstream.script = lambda _body: stream_parts(b"data: {}\n\n")
    with socket.create_connection((address.host, address.port), timeout=PATIENCE) as connection:
        connection.sendall(request.encode())
        reply = b"".join(iter(lambda: connection.recv(4096), b""))
    head, _, content = reply.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert b"chunked" not in head
    assert content == b"data: {}\n\n"


@pytest.mark.parametrize("overrides", [{"keep": 7}, {"document": 7}, {"mode": "draft-kv"}, {"pair": "tiny"}, 0.1])
def test_wrong_settings_are_refused_by_name(client, upstream, handbook, overrides):
    reply = client.post("/v1/chat/completions", json=chat(handbook, QUESTION, specprefill=overrides))
    assert reply.status_code == 400
    assert (next(iter(overrides)) if isinstance(overrides, dict) else "specprefill") in reply.json()["error"]["message"]
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [("GET", "/v1/models", b""), ("POST", "/v1/embeddings", b"{}"), ("GET", "/api/tags", b"")],
)
def test_other_paths_pass_through(client, upstream, method, path, content):
    upstream.script = lambda _body: reply_with(418, "tea", "text/plain", x_own="kept", x_specprefill_reason="own")
    reply = client.request(method, path, content=content)
    assert upstream.requests[0][:2] == (method, path)
    assert upstream.requests[0][3] == content
    assert (reply.status_code, reply.text, reply.headers["x-own"]) == (418, "tea", "kept")
    assert (reply.headers["x-specprefill-kept"], "x-specprefill-reason" in reply.headers) == ("untouched", False)


@pytest.mark.parametrize("code", [401, 429, 500])
def test_refusals_of_the_upstream_come_as_they_are(client, upstream, handbook, code):
    upstream.script = lambda _body: error(code, "no", retry_after="7")
    reply = client.post("/v1/chat/completions", json=chat(handbook, QUESTION))
    assert (reply.status_code, reply.json()) == (code, {"error": {"message": "no", "type": "error"}})
    assert reply.headers["retry-after"] == "7"


def test_a_reply_that_is_cut_off_is_cut_for_the_client(client, upstream):
    upstream.script = lambda _body: stream_parts(b"data: {}\n\n", length=5_000)
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/v1/chat/completions", json=chat(QUESTION))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_bytes_beyond_a_reply_reach_no_other_request(client, upstream, method):
    upstream.script = lambda _body: leave_bytes
    assert client.request(method, "/v1/models").status_code == 200
    for _ in range(3):
        assert client.get("/v1/models").text == "own"


@pytest.mark.parametrize("reply", [wait_until_left, stream_until_left])
def test_a_client_that_leaves_cancels_the_request(client, upstream, handbook, reply):
    upstream.script = lambda _body: reply
    upstream.waits.clear()
    upstream.left.clear()

    if reply is stream_until_left:
        asked = chat(handbook, QUESTION, stream=True)
        with client.stream("POST", "/v1/chat/completions", json=asked) as streamed_reply:
            next(streamed_reply.iter_raw())
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/chat/completions", json=chat(QUESTION), timeout=httpx.Timeout(PATIENCE, read=0.5))
    assert upstream.left.wait(PATIENCE)


def test_the_token_is_needed_and_not_passed_on(servers, upstream):
    address = servers[1].address
    assert httpx.get(f"{address}/v1/models", trust_env=False).status_code == 401
    preflight = httpx.options(f"{address}/v1/models", headers={"Origin": "http://page.example"}, trust_env=False)
    assert (preflight.status_code, "access-control-allow-origin" in preflight.headers) == (401, False)
    assert httpx.get(f"{address}/healthz", trust_env=False).json() == {"status": "ok"}
    assert upstream.requests == []


def test_the_openai_client_asks_through_the_proxy(servers, upstream, handbook):
    http = httpx.Client(trust_env=False, timeout=PATIENCE)
    proxy = servers[1]
    with openai.OpenAI(base_url=f"{proxy.address}/v1", api_key=proxy.token, http_client=http, max_retries=0) as client:
        raw_reply = client.chat.completions.with_raw_response.create(
            **chat(handbook, QUESTION, stream=True), extra_body={"specprefill": {"keep": 0.1}}
        )
        pieces = [part.choices[0].delta.content or "" for part in raw_reply.parse()]
    assert "".join(pieces) == "42 pence"
    kept, total = map(int, raw_reply.headers["x-specprefill-kept"].split("/"))
    assert kept < total / 2
    assert "specprefill" not in upstream.bodies[0]


def test_an_upstream_that_is_not_there_is_a_bad_gateway(handbook):
    with running_upstream() as gone:
        pass
    with (
        running_server("--upstream", f"{gone.url}#scripted", "--http", "127.0.0.1:0", "--scorer", "lexical") as proxy,
        proxy.over_http() as client,
    ):
        reply = client.post("/v1/chat/completions", json=chat(handbook, QUESTION))
        assert reply.status_code == 502
        assert reply.json()["error"]["message"].startswith(f"{gone.url}: no reply (")
        assert client.get("/v1/models").status_code == 502


def test_redirects_come_back_with_the_address_of_the_proxy(servers, client, upstream):
    upstream.script = lambda _body: reply_with(307, "", location=f"{upstream.url}/models?x=1")
    reply = client.get("/v1/model")
    assert (reply.status_code, reply.headers["location"]) == (307, f"{servers[1].address}/v1/models?x=1")
    upstream.script = lambda _body: reply_with(302, "", location="http://elsewhere.example/v1")
    assert client.get("/v1/model").headers["location"] == "http://elsewhere.example/v1"


def test_requests_to_another_model_are_untouched():
    with pytest.raises(Untouched, match="another model"):
        asyncio.run(thin(None, {"model": "x"}, Settings(), "", None, "scripted"))


def test_a_mode_that_a_proxy_cannot_have_is_named(call):
    code, _, err = call("serve", "--upstream", "http://h/v1", "--http", "127.0.0.1:0", "--mode", "hybrid")
    assert (code, "--mode hybrid: an endpoint takes text only" in err) == (2, True)
