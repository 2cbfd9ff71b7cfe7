"""The largest rate of questions at which the median time to first token stays below a limit (SpecPrefill's maximal QPS).

Questions arrive at random, as from many users (a Poisson process); the rate rises until the limit is exceeded.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection
from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import Done, Event, EventCallback, Failed, Piece, Request
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.decode import SHORT_QUESTIONS
from specprefill_cli.lab.benchmarks.prefill import prompt_of_length
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.session import check_context
from specprefill_cli.lab.tables import Columns, Row, figure, keep_text
from specprefill_cli.record import BASELINE
from specprefill_cli.settings import AUTO, Settings

# The first rate, as a share of the rate of questions asked in turn, and the factor from each rate to the next.
FIRST_RATE, GROWTH = 0.6, 1.2
# Questions must arrive during at least this share of the time up to the last answer's end. A smaller share means that the
# queue grows, and stays short only because the questions end.
ARRIVING = 0.8
# Questions asked in turn to measure the rate without load.
UNLOADED_QUESTIONS = 3
COLUMNS: Columns = {
    "tokens": figure("length", ",d"),
    "mode": figure("mode"),
    "keep": keep_text,
    "concurrency": figure("concurrency"),
    "questions/s": figure("rate", ".2f", unknown="none"),
    "x full": figure("ratio", ".2f"),
    "TTFT median": figure("ttft_median", ".2f"),
    "95 %": figure("ttft_p95", ".2f"),
    "gap median": figure("gap_median", ".3f"),
    "gap 95 %": figure("gap_p95", ".3f"),
}


@dataclass
class Traffic:
    """Questions that arrive whether or not earlier questions are answered, and the times of their answers' pieces.

    submit: submits the question with a given number
    """

    engine: LocalEngine
    submit: Callable[[int, EventCallback], object]
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    arrived: dict[int, float] = field(default_factory=dict)
    pieces: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[BaseException] = field(default_factory=list)

    def run(self, arrivals: Sequence[float]) -> None:
        """Let questions arrive at these times, in seconds from now, and answer all. Raises the first error of a question."""
        began, submitted = self.clock(), 0
        while submitted < len(arrivals) or self.engine.busy:
            now = self.clock() - began
            while submitted < len(arrivals) and arrivals[submitted] <= now:
                self.arrived[submitted] = began + arrivals[submitted]
                self.submit(submitted, partial(self.take, submitted))
                submitted += 1
            if self.engine.busy:
                self.engine.step()
            else:
                self.sleep(arrivals[submitted] - now)
        if self.failures:
            raise self.failures[0]

    def take(self, number: int, event: Event) -> None:
        """Record the time of an answer's piece; for an answer without text, the time of its end."""
        if isinstance(event, Failed):
            self.failures.append(event.error)
        elif isinstance(event, Piece) or (isinstance(event, Done) and number not in self.pieces):
            self.pieces[number].append(self.clock())

    def load(self, rate: float) -> Row:
        """The figures of a rate: medians and 95th percentiles, in seconds.

        rate: questions a second; gap: time between two pieces of an answer's text
        arriving: share of the time up to the last answer's end in which questions still arrived
        """
        ttft = [self.pieces[number][0] - arrived for number, arrived in self.arrived.items()]
        gaps = [later - earlier for times in self.pieces.values() for earlier, later in pairwise(times)]
        first, last = min(self.arrived.values()), max(self.arrived.values())
        return {
            "rate": rate,
            "arriving": (last - first) / (max(times[-1] for times in self.pieces.values()) - first),
            **median_and_p95("ttft", ttft),
            **median_and_p95("gap", gaps),
        }


def median_and_p95(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile, linearly interpolated; None without values."""
    median, p95 = np.percentile(values, (50, 95)).tolist() if values else (None, None)
    return {f"{name}_median": median, f"{name}_p95": p95}


def holds(load: Row, limit: float) -> bool:
    """Whether the rate is sustainable with a median time to first token of at most `limit` seconds."""
    return load["ttft_median"] <= limit and load["arriving"] >= ARRIVING


def poisson_arrivals(count: int, rate: float, seed: int = 0) -> list[float]:
    """Times, in seconds, at which `count` questions arrive; all rates use the same draws, so that they are comparable."""
    return (np.random.default_rng(seed).exponential(size=count).cumsum() / rate).tolist()


def bench_throughput(
    session: Session,
    length: int,
    cases: Sequence[Configuration],
    concurrencies: Sequence[int | None],
    requests: int,
    limit: float,
    base: Settings,
    step: Callable[[str], None],
) -> list[Row]:
    """Find the largest rate of every case at every concurrency (None: automatic), with `requests` questions at each rate.

    limit: seconds of the median time to first token; questions share no work
    """
    collection = prompt_of_length(session, length, base)
    for case in cases:
        check_context(session.request(collection, SHORT_QUESTIONS[0], case.settings(base)), case.settings(base))
    table: list[Row] = []
    for concurrency in concurrencies:
        rows = []
        for case in cases:
            name = f"{case.mode} {'' if case.keep is None else case.keep}, concurrency {concurrency or AUTO}"
            loads = rising_loads(session, collection, case.settings(base), concurrency, requests, limit, name, step)
            rows.append({"length": length, **row_of(case, concurrency, loads, limit)})
        full = next((row["rate"] for row in rows if row["mode"] == BASELINE), None)
        table += [row | {"ratio": row["rate"] / full if row["rate"] and full else None} for row in rows]
    return table


def rising_loads(
    session: Session,
    collection: Collection,
    settings: Settings,
    concurrency: int | None,
    requests: int,
    limit: float,
    name: str,
    step: Callable[[str], None],
) -> list[Row]:
    """Measure loads at rising rates, until a load exceeds the limit.

    Raises UsageError if even a question alone exceeds the limit.
    """
    session = session.with_cache(None)

    def traffic(arrivals: Sequence[float], concurrency_limit: int | None) -> Traffic:
        engine = LocalEngine(session, concurrency=concurrency_limit)

        def submit(number: int, on_event: EventCallback) -> None:
            question = SHORT_QUESTIONS[number % len(SHORT_QUESTIONS)]
            engine.submit(Request(documents=collection, question=question, settings=settings), on_event)

        running = Traffic(engine, submit)
        running.run(arrivals)
        return running

    session.warm_up(settings)
    began = time.perf_counter()
    unloaded = traffic([0.0] * UNLOADED_QUESTIONS, 1)
    seconds = (time.perf_counter() - began) / UNLOADED_QUESTIONS
    unloaded_ttft = min(times[0] for times in unloaded.pieces.values()) - began
    if unloaded_ttft > limit:
        raise UsageError(
            f"--limit {limit:g}: one question alone takes {unloaded_ttft:.2f} s ({name}); give a longer one"
        )
    rate = FIRST_RATE / seconds
    loads: list[Row] = []
    while not loads or holds(loads[-1], limit):
        step(f"{name}: {rate:.2f} questions a second")
        loads.append(traffic(poisson_arrivals(requests, rate), concurrency).load(rate))
        rate *= GROWTH
    return loads


def row_of(case: Configuration, concurrency: int | None, loads: Sequence[Row], limit: float) -> Row:
    """The figures of a configuration at its largest sustainable rate; None if no rate was low enough."""
    best_load = next((load for load in reversed(loads) if holds(load, limit)), dict.fromkeys(loads[0]))
    return {
        "mode": case.mode,
        "keep": case.keep,
        "concurrency": str(concurrency or AUTO),
        **{name: value for name, value in best_load.items() if name != "arriving"},
        "loads": list(loads),
    }
