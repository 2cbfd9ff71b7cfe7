"""What the HTTP endpoints share: the options of `serve`, metrics, and the engine's events."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect, Request

from specprefill_cli.documents.document import Collection
from specprefill_cli.engine.request import Cancelled, Done, Event, Failed, Piece, QueueFull, Started
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.errors import PromptTooLong, SpecprefillError, first_line
from specprefill_cli.models.sources.refs import EndpointRef
from specprefill_cli.record import Record
from specprefill_cli.serving.guard import ApiError, log_line

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.prefill.prefix_cache import DocumentCache

# Seconds until a refused client may ask again.
RETRY_SECONDS = 5
# Upper ends of the metrics' buckets.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RATIOS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve` that are not settings. upstream: what a proxy forwards to."""

    http: str | None = None
    allowed_origins: tuple[str, ...] = ()
    upstream: EndpointRef | None = None


class Metrics:
    """Counts and measures answers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self.answers = counter("specprefill_answers", "Finished answers, of commands too.")
        self.tokens = counter("specprefill_generated_tokens", "Tokens of answers.")
        waited = "From a question's arrival to its first token, waiting included."
        self.ttft = histogram("specprefill_ttft_seconds", waited, buckets=SECONDS)
        between = "Between two pieces of an answer (mostly tokens)."
        self.gaps = histogram("specprefill_inter_token_seconds", between, buckets=(0.001, 0.0025, 0.005, *SECONDS))
        self.kept = histogram("specprefill_kept_ratio", "Tokens computed over prompt tokens.", buckets=RATIOS)

    def watch(self, engine: "LocalEngine", cache: "DocumentCache") -> None:
        """Report queue and cache at every scrape."""
        gauge = partial(Gauge, registry=self.registry)
        gauge("specprefill_queue", "Questions that wait.").set_function(lambda: len(engine.waiting))
        size = gauge("specprefill_cache_bytes", "Memory of documents' KV between questions.")
        size.set_function(lambda: cache.draft.prefixes.bytes + cache.target.prefixes.bytes)

    def observe(self, event: Event, waited: float) -> None:
        """Measure an event. waited: seconds since the event before it, or since the question's arrival."""
        if isinstance(event, Started | Piece):
            (self.ttft if isinstance(event, Started) else self.gaps).observe(waited)
        elif isinstance(event, Done) and isinstance(event.result, Record):
            self.answers.inc()
            self.tokens.inc(event.result.generated_tokens)
            self.kept.observe(event.result.kept_ratio)


@dataclass(frozen=True)
class ServerContext:
    """What the HTTP endpoints share.

    is_private: only this user asks, so requests may name files and wait for a full queue; queue: how many may wait
    """

    engine: "LocalEngine"
    documents: Collection | None
    metrics: Metrics
    about: Mapping[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    is_private: bool = False
    queue: int = 64

    @property
    def session(self) -> "Session":
        return self.engine.session

    @property
    def pair_name(self) -> str:
        return self.session.pair.pair.name

    async def events(self, question: Question) -> AsyncGenerator[Event, None]:
        """Ask a question, and yield its events; a caller that stops early cancels it. Raises ApiError."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop, latest = asyncio.get_running_loop(), time.perf_counter()

        def on_event(event: Event) -> None:
            nonlocal latest
            before, latest = latest, time.perf_counter()
            self.metrics.observe(event, latest - before)
            loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            # Commands of the server's own user wait for a full queue: a batch would lose rows otherwise.
            ticket = self.engine.submit(question, on_event, None if self.is_private else self.queue)
        except QueueFull:
            text = f"{self.queue} questions are waiting already; ask again later"
            raise ApiError(429, text, "rate_limit_error", RETRY_SECONDS) from None
        event: Event | None = None
        try:
            while not isinstance(event, Done):
                event = await events.get()
                if isinstance(event, Failed):
                    raise to_api_error(event.error)
                yield event
        finally:
            self.engine.cancel(ticket)

    async def answer(self, request: Request, question: Question) -> Done:
        """Ask a question, and wait for its end, or for the client's. Raises what `events` raises."""

        async def last_event() -> Event:
            return [event async for event in self.events(question)][-1]

        done = await while_connected(request, last_event())
        assert isinstance(done, Done), "a question that fails raises"
        return done


def to_api_error(error: BaseException) -> ApiError:
    """Turn the error of a question into a response. The client sees only the type of an internal error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SpecprefillError):
        error_type = "prompt_too_long" if isinstance(error, PromptTooLong) else "invalid_request_error"
        return ApiError(400, str(error), error_type, cause=error)
    if isinstance(error, Cancelled | ClientDisconnect):
        return ApiError(499, "the client has gone")
    log_line(f"failed with 500: {type(error).__name__}: {first_line(error)}")
    return ApiError(500, f"the server failed with {type(error).__name__}", "server_error")


async def while_connected(request: Request, work: Awaitable[Any]) -> Any:
    """Wait for the work, and cancel it when the client disconnects first."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client has gone")
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()
