"""Time to first token over lengths, keep ratios and modes, all warmed alike and measured in one run."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from specprefill_cli import __version__
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.peers import Peer
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.evaluation.statistics import quartiles
from specprefill_cli.models.cost import compute_limit
from specprefill_cli.models.memory import PeakMemory, return_freed_memory
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.models.cost import cost_of, scoring_flops
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings

QUESTION = "Which torque is given for the mounting screws?"


@dataclass(frozen=True)
class BenchRow:
    """Medians of one configuration at one prompt length; times in seconds, speedup over `full` at the same length.

    mode: of specprefill, or the name of a peer; ttft_low, ttft_high: quartiles
    peak_memory_bytes, memory_growth_bytes: the largest use of memory, and what of it was not in use before the prompt
        came (program and models are); both None where the system does not tell
    limit: the speedup if operations were all that took time (None for modes whose operations are not counted)
    efficiency: speedup / limit
    """

    length: int
    mode: str
    keep: float | None
    ttft_seconds: float
    ttft_low: float
    ttft_high: float
    speedup: float | None
    limit: float | None
    efficiency: float | None
    kept_ratio: float
    peak_memory_bytes: int | None
    memory_growth_bytes: int | None
    phases: dict[str, float]


def prompt_of_length(session: Session, tokens: int, settings: Settings) -> Collection:
    """A document of running prose that makes the whole prompt as long as asked, to a few tokens.

    Raises UsageError when the question alone is longer.
    """
    sources = sorted((packaged_folder("sample_docs") / "sources").glob("*.md"))
    prose = "\n\n".join(path.read_text(encoding="utf-8") for path in sources)
    empty = Collection((one_page_document("bench", "A.", "text/plain"),))
    outside = session.request(empty, QUESTION, settings).prompt.length
    wanted = tokens - outside
    if wanted < settings.chunk_size:
        raise UsageError(f"--lengths {tokens}: too short; the question alone takes {outside} tokens")
    tokenizer = session.pair.target.tokenizer
    once = len(encode_text(tokenizer, prose)[0])
    _, offsets = encode_text(tokenizer, prose * (wanted // once + 1))
    text = (prose * (wanted // once + 1))[: offsets[wanted - 1, 1]]
    return Collection((one_page_document("bench", text, "text/plain"),))


def bench_prefill(
    session: Session,
    lengths: Sequence[int],
    configurations: Sequence[Configuration],
    repeat: int,
    base: Settings,
    step: Callable[[str], None],
    peers: Sequence[Peer] = (),
) -> list[BenchRow]:
    """Measure every configuration at every length `repeat` times, in turns, after one round that tells their memory.

    peers: who else reads the same prompts, in the same turns; a row each, with the peer's name for a mode

    Raises UsageError for a length that the question alone fills, PromptTooLong for one beyond the pair's context.
    """
    others = {Configuration(peer.name): peer for peer in peers}
    results = []
    prompts = {length: prompt_of_length(session, length, base) for length in lengths}
    # A length that does not fit is refused before others have taken their time.
    for collection in prompts.values():
        for configuration in configurations:
            settings = configuration.settings(base)
            session.choose_mode(session.request(collection, QUESTION, settings), settings)
    # Here already, or what a mode's first run maps for all would stand in the floor of its memory.
    for configuration in configurations:
        session.warm_up(configuration.settings(base))
    for length, collection in prompts.items():
        measured: dict[Configuration, list[Measurement]] = {one: [] for one in (*configurations, *others)}
        first: dict[Configuration, Measurement] = {}
        for round_number in range(repeat + 1):
            for configuration, runs in measured.items():
                step(f"{length:,} tokens, {configuration.mode}, round {round_number} of {repeat}")
                if not round_number:
                    return_freed_memory()
                if configuration in others:
                    run = read_by(others[configuration], session, collection, base)
                else:
                    run = answer_in(session, collection, configuration.settings(base))
                if round_number:
                    runs.append(run)
                else:
                    first[configuration] = run
        results += rows(length, measured, first)
    return results


@dataclass(frozen=True)
class Measurement:
    """What is kept of one run: seconds, and the peak and growth of memory in this run alone; the caches are let go."""

    ttft: float
    phases: dict[str, float]
    kept_ratio: float
    limit: float | None
    peak: int | None
    growth: int | None


def answer_in(session: Session, collection: Collection, settings: Settings) -> Measurement:
    """One prefill in a mode. Its caches go with it: they must not stand in the memory that the next run is measured in."""
    stream = session.ask(collection, QUESTION, settings)
    peak, growth = stream.memory.bytes(), stream.memory.growth()
    kept = stream.prefilled.plan.kept_ratio
    return Measurement(stream.clock.ttft, stream.clock.phases(), kept, limit(stream), peak, growth)


def read_by(peer: Peer, session: Session, collection: Collection, settings: Settings) -> Measurement:
    """One prefill by a peer, of the target's tokens in mode `full`, with the same clock."""
    memory = PeakMemory()
    clock = PhaseClock(session.pair.wait)
    prompt = session.request(collection, QUESTION, replace(settings, mode="full")).prompt
    with clock.phase("target_prefill"):
        peer.read(prompt.tokens)
    return Measurement(clock.ttft, clock.phases(), 1.0, None, memory.bytes(), memory.growth())


def limit(stream: AnswerStream) -> float | None:
    """The compute-bound limit of a run's speedup; 1 for `full`, None for modes that do more than score and prefill."""
    if stream.mode == "full":
        return 1.0
    if stream.mode != "select":
        return None
    pair, request, plan = stream.session.pair, stream.request, stream.prefilled.plan
    scoring = scoring_flops(stream.settings, request)
    return compute_limit(cost_of(pair.target), scoring, plan.prompt_tokens, plan.kept_tokens)


def rows(
    length: int, measured: dict[Configuration, list[Measurement]], first: dict[Configuration, Measurement]
) -> list[BenchRow]:
    """One row for each configuration: medians, the speedup over `full`, and the memory that its first run took."""
    medians = {one: statistics.median(run.ttft for run in runs) for one, runs in measured.items()}
    full = next((median for one, median in medians.items() if one.mode == "full"), None)
    table = []
    for one, runs in measured.items():
        low, high = quartiles([run.ttft for run in runs])
        speedup = full / medians[one] if full is not None else None
        bound = runs[0].limit
        table.append(
            BenchRow(
                length=length,
                mode=one.mode,
                keep=one.keep,
                ttft_seconds=medians[one],
                ttft_low=low,
                ttft_high=high,
                speedup=speedup,
                limit=bound,
                efficiency=speedup / bound if speedup is not None and bound is not None else None,
                kept_ratio=runs[0].kept_ratio,
                peak_memory_bytes=first[one].peak,
                memory_growth_bytes=first[one].growth,
                phases={name: statistics.median(run.phases[name] for run in runs) for name in runs[0].phases},
            )
        )
    return table


def host() -> dict[str, str | int]:
    """The machine that was measured."""
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpus": ", ".join(gpus),
    }


def versions() -> dict[str, str]:
    return {
        "specprefill": __version__,
        **{name: version(name) for name in ("torch", "transformers")},
        "python": platform.python_version(),
    }
