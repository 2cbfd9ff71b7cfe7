"""A proxy in front of an OpenAI-compatible server. It thins long documents in chat requests and passes on all else."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from specprefill_cli.answering.session import WARM_UP, Session
from specprefill_cli.answering.tasks import retrieve
from specprefill_cli.documents.document import Collection
from specprefill_cli.endpoint.choosing import check_possible, evidence_text, mode_by_length
from specprefill_cli.endpoint.client import CONNECT_SECONDS, KEY_VARIABLE, TIMEOUT_SECONDS
from specprefill_cli.endpoint.session import open_chooser
from specprefill_cli.engine.request import PASSAGES
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.errors import DocumentError, first_line
from specprefill_cli.models.sources.refs import USUAL_PATH, EndpointRef
from specprefill_cli.models.sources.tokenizers import count_tokens
from specprefill_cli.record import BASELINE
from specprefill_cli.serving.api import build_application
from specprefill_cli.serving.body import body_bytes, is_gzip, object_in, override_settings, own_settings
from specprefill_cli.serving.context import ServerContext, while_connected
from specprefill_cli.serving.guard import ApiError, log_line
from specprefill_cli.serving.messages import REASON, LongText, RefusedDocument, Untouched, find_document, texts_of
from specprefill_cli.settings import OFF, Settings

CHAT = f"{USUAL_PATH}/chat/completions"
KEPT = "x-specprefill-kept"
# Headers that belong to a single connection.
HOP_BY_HOP = frozenset(
    b"connection date keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"authorization", b"expect"}
TIMEOUT = httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS).as_dict()


def upstream_request(incoming: Request, content: bytes, upstream: EndpointRef) -> httpx.Request:
    """Build the request to the upstream: with its key, and with `content` as the body."""
    base, path = upstream.url, incoming.scope["raw_path"].decode("latin-1")
    if path.startswith(f"{USUAL_PATH}/"):
        path = path.removeprefix(USUAL_PATH)
    else:
        base = base.removesuffix(USUAL_PATH)
    query = incoming.scope["query_string"].decode("latin-1")
    # `body_bytes` has unpacked gzip.
    left_out = NOT_SENT | {b"content-encoding"} if is_gzip(incoming.headers) else NOT_SENT
    headers = [(name, value) for name, value in incoming.headers.raw if name not in left_out]
    if key := os.environ.get(KEY_VARIABLE):
        headers.append((b"authorization", f"Bearer {key}".encode("latin-1")))
    url, timeout = f"{base}{path}?{query}" if query else f"{base}{path}", {"timeout": TIMEOUT}
    return httpx.Request(incoming.method, url, headers=headers, content=content or None, extensions=timeout)


def open_draft(settings: Settings, upstream: EndpointRef) -> Session:
    """Open a session with the draft, and let it read once, so that no request pays for lazy initialisation."""
    session = open_chooser(settings, upstream.url)
    retrieve(session, WARM_UP, "When?", settings.varied(speculate=OFF))
    return session


def proxy_application(context: ServerContext, upstream: EndpointRef) -> ASGIApp:
    """Build the application of the proxy. It answers `/healthz` and `/metrics` itself."""
    # A connection serves one request: bytes that an upstream sends beyond a reply would be read as the next one.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    endpoint = partial(forward_request, upstream=upstream, client=httpx.AsyncClient(limits=limits))
    return build_application(context, {"GET,POST,PUT,PATCH,DELETE,OPTIONS /{path:path}": endpoint})


async def forward_request(
    request: Request, context: ServerContext, upstream: EndpointRef, client: httpx.AsyncClient
) -> Response:
    """Forward a request, and stream its reply back. A chat about long documents is thinned first.

    upstream: the server, and the only model whose requests are thinned ("": all models)
    """
    content, headers_added = await body_bytes(request), {KEPT: "untouched"}
    if request.method == "POST" and request.url.path == CHAT:
        # Parsed twice, because one is changed; a copy would need more recursion than its JSON.
        received, body = [await asyncio.to_thread(object_in, content) for _ in range(2)]
        overrides, document = own_settings(body)
        settings = override_settings(context.session.settings, overrides).varied(speculate=OFF)
        check_possible(settings)
        try:
            kept, total = await thin(request, body, settings, document, context, upstream.model)
            headers_added = {KEPT: f"{kept}/{total}"}
            context.metrics.kept.observe(kept / total)
        except Untouched as untouched:
            headers_added[REASON] = str(untouched)
        # Even of an untouched request the upstream knows neither our settings nor, mostly, files.
        content = content if body == received else json.dumps(body).encode()
    sent = client.send(upstream_request(request, content, upstream), stream=True)
    try:
        response = await while_connected(request, sent)
    except httpx.HTTPError as error:
        reason = f"no reply ({first_line(error)}); start it, see whether it is busy, or check --upstream"
        raise ApiError(502, f"{upstream.url}: {reason}", "upstream_error") from None
    relayed = StreamingResponse(relay(response), response.status_code)
    headers = ((name.lower(), value) for name, value in response.headers.raw)
    relayed.raw_headers = [(name, value) for name, value in headers if name not in HOP_BY_HOP]
    base, location = upstream.url.removesuffix(USUAL_PATH), relayed.headers.get("location", "")
    # A redirect within the upstream.
    if location.startswith(base) and location[len(base) :][:1] in ("", "/", "?"):
        relayed.headers["location"] = str(request.base_url).rstrip("/") + location[len(base) :]
    # A server of ours has reasons of its own.
    del relayed.headers[REASON]
    relayed.headers.update(headers_added)
    return relayed


async def relay(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of a reply, byte for byte. A client that leaves early closes the connection to the upstream."""
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.HTTPError as error:
        # Raised again to cut the client's connection too.
        log_line(f"{response.url}: the reply was cut off ({type(error).__name__})")
        raise
    finally:
        await response.aclose()


async def thin(
    incoming: Request, body: dict[str, Any], settings: Settings, document: str, context: ServerContext, model: str
) -> tuple[int, int]:
    """Thin the documents in the body of a chat request; return its tokens afterwards and before.

    document: that the client names; model: the only one whose requests are thinned ("": all)

    Raises Untouched for a request to forward as it is, ApiError for a full queue.
    """
    is_other_model = model not in ("", body.get("model"))
    if is_other_model and not document:
        raise Untouched("another model")
    try:
        question, long_texts = await asyncio.to_thread(find_document, body, document)
        if is_other_model:
            # With the named document in its messages.
            raise Untouched("another model")
        collection = await asyncio.to_thread(collection_of, long_texts, settings)
        request = Question(documents=collection, question=question, settings=settings, task=PASSAGES)
        passages = (await context.answer(incoming, request)).result.passages
    except (ApiError, DocumentError) as error:
        if isinstance(error, RefusedDocument) or (isinstance(error, ApiError) and error.status not in (400, 500)):
            raise
        log_line(f"forwarded a request as it is: {error}")
        raise Untouched("the draft failed" if isinstance(error, ApiError) else "a file cannot be read") from None
    total = await asyncio.to_thread(tokens_in, body)
    for number, long_text in reversed([*enumerate(long_texts)]):
        own = [replace(passage, number=0) for passage in passages if passage.number == number]
        long_text.replace(evidence_text(Collection((collection.documents[number],)), own))
    return await asyncio.to_thread(tokens_in, body), total


def collection_of(long_texts: Sequence[LongText], settings: Settings) -> Collection:
    """The documents of a request. Raises Untouched where all of them are to be sent."""
    if settings.mode == BASELINE or settings.keep == 1:
        raise Untouched("keep 1")
    collection = Collection(tuple(long_text.document for long_text in long_texts))
    if mode_by_length(settings.mode, count_tokens(collection.text))[0] == BASELINE:
        raise Untouched("short")
    return collection


def tokens_in(body: Mapping[str, Any]) -> int:
    """Count the tokens of all messages of a chat request with the bundled tokenizer."""
    return sum(count_tokens(text.value) for text in texts_of(body.get("messages")))
