"""Metrics for Prometheus."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specprefill_cli.engine.request import ANSWER, Done, Event, Piece, Started

if TYPE_CHECKING:
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.engine.question import Ticket
    from specprefill_cli.prefill.prefix_cache import DocumentCache

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RATIOS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)


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
        self.latest: dict[Ticket, float] = {}

    def watch(self, engine: LocalEngine, cache: DocumentCache) -> None:
        """Report queue and cache at every scrape."""
        queue = Gauge("specprefill_queue", "Questions that wait.", registry=self.registry)
        queue.set_function(lambda: len(engine.waiting))
        size = Gauge("specprefill_cache_bytes", "Memory of documents' KV between questions.", registry=self.registry)
        size.set_function(lambda: cache.draft.prefixes.bytes + cache.target.prefixes.bytes)

    def observe(self, ticket: Ticket, event: Event) -> None:
        """Measure an event of a question."""
        now = time.perf_counter()
        if isinstance(event, Started):
            self.ttft.observe(now - ticket.submitted)
            self.latest[ticket] = now
        elif isinstance(event, Piece):
            self.gaps.observe(now - self.latest.get(ticket, now))
            self.latest[ticket] = now
        else:
            self.latest.pop(ticket, None)
        if isinstance(event, Done) and ticket.request.task == ANSWER:
            self.answers.inc()
            self.tokens.inc(event.result.generated_tokens)
            self.kept.observe(event.result.kept_ratio)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
