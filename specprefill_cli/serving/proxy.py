"""A proxy before another OpenAI-compatible server: long documents in chat requests are thinned, all else passes through."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from specprefill_cli.answering.draft_side import retrieve
from specprefill_cli.answering.session import WARM_UP, Session
from specprefill_cli.documents.cleaning import clean_characters
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.endpoint.choosing import check_possible, choose_mode, evidence_text
from specprefill_cli.endpoint.client import CONNECT_SECONDS, KEY_VARIABLE, TIMEOUT_SECONDS
from specprefill_cli.endpoint.session import open_chooser
from specprefill_cli.engine.request import PASSAGES
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.errors import first_line
from specprefill_cli.models.refs import USUAL_PATH, EndpointRef
from specprefill_cli.models.tokenizers import count_tokens
from specprefill_cli.record import BASELINE
from specprefill_cli.serving.api import health, metrics
from specprefill_cli.serving.backend import Backend, starlette, while_connected
from specprefill_cli.serving.body import body_bytes, override_settings
from specprefill_cli.serving.guard import ApiError, log_line
from specprefill_cli.serving.thinning import LongText, Untouched, split_request, texts_of, with_texts
from specprefill_cli.settings import OFF, Settings

CHAT = f"{USUAL_PATH}/chat/completions"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# The key of a request's body with settings for this proxy.
SETTINGS_KEY = "specprefill"
KEPT, REASON = "x-specprefill-kept", "x-specprefill-reason"
# Headers of one connection, and what every server tells of itself.
HOP_BY_HOP = frozenset(
    b"connection date keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
DROPPED_HEADERS = HOP_BY_HOP | {b"host", b"content-length", b"authorization", b"expect"}
TIMEOUT = httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS).as_dict()


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """Forwards requests.

    upstream: where to, and the one model whose requests are thinned; "" for all
    chats: counts chat requests by what became of them
    """

    backend: Backend
    upstream: EndpointRef
    client: httpx.AsyncClient
    chats: Counter

    def request(self, received: Request, content: bytes) -> httpx.Request:
        """The request to forward, with the upstream's key. content: its body, thinned or not."""
        base, path = self.upstream.url, received.scope["raw_path"].decode("latin-1")
        if path.startswith(f"{USUAL_PATH}/"):
            path = path.removeprefix(USUAL_PATH)
        else:
            base = base.removesuffix(USUAL_PATH)
        query = received.scope["query_string"].decode("latin-1")
        headers = [(name, value) for name, value in received.headers.raw if name not in DROPPED_HEADERS]
        if key := os.environ.get(KEY_VARIABLE):
            headers.append((b"authorization", f"Bearer {key}".encode("latin-1")))
        return httpx.Request(
            received.method,
            f"{base}{path}?{query}" if query else f"{base}{path}",
            headers=headers,
            content=content or None,
            extensions={"timeout": TIMEOUT},
        )

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The reply with its body still to be read. Raises ApiError where there is none."""
        try:
            return await self.client.send(request, stream=True)
        except httpx.ReadTimeout:
            status, reason = 504, f"no answer within {TIMEOUT_SECONDS:g} s; see whether it is busy"
        except httpx.HTTPError as error:
            cause = first_line(error) or type(error).__name__
            status, reason = 502, f"cannot be reached ({cause}); start it, or check --upstream"
        raise ApiError(status, f"{self.upstream.url}: {reason}", "upstream_error")


def open_reader(settings: Settings, upstream: EndpointRef) -> Session:
    """A session with the draft. It has read once: no first request pays for lazy initialisation."""
    session = open_chooser(settings, upstream.url)
    retrieve(session, WARM_UP, "When?", settings.varied(speculate=OFF))
    return session


def proxy_application(backend: Backend, upstream: EndpointRef) -> ASGIApp:
    """The application of the proxy; `/healthz` and `/metrics` are its own."""
    registry = backend.metrics.registry
    proxy = Proxy(
        backend=backend,
        upstream=upstream,
        client=httpx.AsyncClient(limits=httpx.Limits(max_connections=None)),
        chats=Counter("specprefill_chats", "Chat requests by what became of them.", ["outcome"], registry=registry),
    )
    routes = [
        Route("/healthz", partial(health, backend=backend, detailed=False)),
        Route("/metrics", partial(metrics, backend=backend)),
        Route("/{path:path}", partial(forward, proxy=proxy), methods=METHODS),
    ]
    return starlette(routes)


async def forward(request: Request, proxy: Proxy) -> Response:
    """Pass a request on, thinned where it is a chat about long documents, and its reply back as it comes."""
    content, headers_added = await body_bytes(request, proxy.backend.options.body_bytes), {KEPT: "untouched"}
    if request.method == "POST" and request.url.path == CHAT:
        values, overrides = await asyncio.to_thread(split_settings, content)
        content = content if overrides is None else json.dumps(values).encode()
        try:
            thinned = await while_connected(request, thin(values, overrides, proxy))
            kept, total = await asyncio.to_thread(lambda: (tokens_in(thinned), tokens_in(values)))
            headers_added = {KEPT: f"{kept}/{total}"}
            content = json.dumps(thinned).encode()
            proxy.backend.metrics.kept.observe(kept / total)
        except Untouched as untouched:
            headers_added[REASON] = str(untouched)
        proxy.chats.labels(headers_added.get(REASON, "thinned")).inc()
    response = await while_connected(request, proxy.send(proxy.request(request, content)))
    relayed = StreamingResponse(relay(response), response.status_code)
    headers = ((name.lower(), value) for name, value in response.headers.raw)
    relayed.raw_headers = [(name, value) for name, value in headers if name not in HOP_BY_HOP]
    relayed.headers.update(headers_added)
    return relayed


async def relay(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body of a reply, byte for byte; leaving early closes the connection, so that the upstream stops."""
    try:
        async for part in response.aiter_raw():
            yield part
    except httpx.HTTPError as error:
        # Raised again, so that the client's connection is cut, too.
        log_line(f"{response.url}: the reply was cut off ({type(error).__name__})")
        raise
    finally:
        await response.aclose()


def split_settings(content: bytes) -> tuple[dict[str, Any], object]:
    """The values of a body (none where it is no JSON object) without the settings for this proxy, and these settings."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    return (values, values.pop(SETTINGS_KEY, None)) if isinstance(values, dict) else ({}, None)


async def thin(values: Mapping[str, Any], overrides: object, proxy: Proxy) -> dict[str, Any]:
    """A chat request with less text. overrides: settings for this request.

    Raises Untouched for one that is forwarded as it is; ApiError or UsageError for wrong settings, and where too many wait.
    """
    if not isinstance(overrides, dict | None):
        raise ApiError(400, f'{SETTINGS_KEY} must be an object, such as {{"keep": 0.1}}')
    settings = override_settings(proxy.backend.session.settings, overrides or {}).varied(speculate=OFF)
    check_possible(settings)
    if proxy.upstream.model not in ("", values.get("model")):
        raise Untouched("another model")
    question, long_texts, collection = await asyncio.to_thread(documents_in, values, settings)
    try:
        request = Question(documents=collection, question=question, settings=settings, task=PASSAGES)
        passages = (await proxy.backend.answer(request)).result.passages
    except ApiError as error:
        if error.status not in (400, 500):
            raise
        log_line(f"forwarded a request as it is: {error}")
        raise Untouched("the draft failed") from None
    kept_texts = [
        evidence_text(
            Collection((document,)), [replace(passage, number=0) for passage in passages if passage.number == number]
        )
        for number, document in enumerate(collection.documents)
    ]
    return with_texts(values, long_texts, kept_texts)


def documents_in(values: Mapping[str, Any], settings: Settings) -> tuple[str, list[LongText], Collection]:
    """The question of a chat request, its long texts, and these as documents. Raises Untouched."""
    if settings.mode == BASELINE or settings.keep == 1:
        raise Untouched("keep 1")
    question, long_texts = split_request(values)
    if choose_mode(settings.mode, sum(count_tokens(text.document) for text in long_texts))[0] == BASELINE:
        raise Untouched("short")
    documents = (one_page_document("", clean_characters(text.document), "text/plain") for text in long_texts)
    return question, long_texts, Collection(tuple(documents))


def tokens_in(values: Mapping[str, Any]) -> int:
    """Tokens of all that is said in a chat request, as the bundled tokenizer counts them."""
    return sum(count_tokens(text) for *_, text in texts_of(values.get("messages")))
