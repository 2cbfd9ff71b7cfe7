"""Time to first token over prompt lengths, modes and keep ratios, all warmed up alike and measured in one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.memory import growth, return_freed_memory
from specprefill_cli.lab.benchmarks.peers import Peer
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.evaluation.statistics import quartiles
from specprefill_cli.lab.session import check_context
from specprefill_cli.models.cost import ModelCost, cost_of
from specprefill_cli.models.memory import PeakMemory
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.request import PhaseClock
from specprefill_cli.record import BASELINE
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings

QUESTION = "Which torque is given for the mounting screws?"
# A run that spends time in these phases does more than scoring and prefill, whose operations are counted.
UNCOUNTED_PHASES = ("mapping", "checkpoints")


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One configuration at one prompt length: medians; ttft_low, ttft_high: quartiles.

    mode: a mode, or the name of a peer; speedup: over `full` at the same length, None without it
    limit: the ratio of counted operations, `full` over this row, None if they are not counted; efficiency: speedup / limit.
        Above 1 it means that the target's short pass, or the draft, computes more a second than `full` does
    peak_memory_bytes: the most memory in use, and memory_growth_bytes what of it was not in use before the prompt;
        None if the system does not report it
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
    """A document of prose that gives the whole prompt this length, to within a few tokens.

    Raises UsageError if the question alone is longer.
    """
    sources = sorted((packaged_folder("sample_docs") / "sources").glob("*.md"))
    prose = "\n\n".join(path.read_text(encoding="utf-8") for path in sources)
    empty = Collection((one_page_document("bench", "A.", "text/plain"),))
    overhead = session.request(empty, QUESTION, settings).prompt.length
    needed = tokens - overhead
    if needed < settings.chunk_size:
        raise UsageError(f"--lengths {tokens}: too short; the question alone takes {overhead} tokens")
    tokenizer = session.pair.target.tokenizer
    prose *= needed // len(encode_text(tokenizer, prose)[0]) + 1
    _, offsets = encode_text(tokenizer, prose)
    return Collection((one_page_document("bench", prose[: offsets[needed - 1, 1]], "text/plain"),))


def bench_prefill(
    session: Session,
    lengths: Sequence[int],
    configurations: Sequence[Configuration],
    repeat: int,
    base: Settings,
    step: Callable[[str], None],
    peers: Sequence[Peer] = (),
) -> list[BenchRow]:
    """Measure every configuration and peer at every length `repeat` times in turns, after a round that measures memory.

    Raises UsageError for a length that the question alone fills, PromptTooLong for one beyond the pair's context.
    """
    reads = {Configuration(peer.name): peer for peer in peers}
    prompts = {length: prompt_of_length(session, length, base) for length in lengths}
    # Checked before anything is measured.
    for collection in prompts.values():
        for configuration in configurations:
            settings = configuration.settings(base)
            check_context(session.request(collection, QUESTION, settings), settings)
    # Memory that a mode's first run maps for all modes must not count as that mode's own.
    for configuration in configurations:
        session.warm_up(configuration.settings(base))
    table = []
    for length, collection in prompts.items():
        runs: dict[Configuration, list[Measurement]] = {
            configuration: [] for configuration in (*configurations, *reads)
        }
        for number in range(repeat + 1):
            for configuration, measured in runs.items():
                step(f"{length:,} tokens, {configuration.mode}, round {number} of {repeat}")
                if not number:
                    return_freed_memory()
                if configuration in reads:
                    measured.append(measure_peer(reads[configuration], session, collection, base))
                else:
                    measured.append(measure_mode(session, collection, configuration.settings(base)))
        table += rows(length, runs)
    return table


class Measurement:
    """The figures of one run, times in seconds and memory in bytes; the run itself is not held on to."""

    def __init__(
        self,
        clock: PhaseClock,
        memory: PeakMemory,
        kept_ratio: float = 1.0,
        limit: float | None = None,
    ) -> None:
        self.ttft, self.phases = clock.ttft, clock.phases()
        self.peak, self.growth = memory.bytes(), growth(memory)
        self.kept_ratio, self.limit = kept_ratio, limit


def measure_mode(session: Session, collection: Collection, settings: Settings) -> Measurement:
    """One prefill in a mode."""
    stream = session.ask(collection, QUESTION, settings)
    kept = stream.prefilled.plan.kept_ratio
    return Measurement(stream.request.clock, stream.memory, kept, limit(stream))


def measure_peer(peer: Peer, session: Session, collection: Collection, settings: Settings) -> Measurement:
    """One prefill by a peer, of the target's tokens in mode `full`."""
    memory = PeakMemory()
    request = session.request(collection, QUESTION, settings.varied(mode=BASELINE))
    with request.clock.phase("target_prefill"):
        peer.read(request.prompt.tokens)
    return Measurement(request.clock, memory)


def limit(stream: AnswerStream) -> float | None:
    """The ratio of counted operations: 1 for `full`, None if a run did more than scoring and prefill."""
    if stream.resolved.mode == BASELINE:
        return 1.0
    phases, request, plan = stream.request.clock.phases(), stream.request, stream.prefilled.plan
    if any(phases[name] for name in UNCOUNTED_PHASES):
        return None
    scoring = SCORERS[request.scorer].cost(request) if MODES[stream.resolved.mode].uses_draft else 0.0
    return compute_limit(cost_of(request.pair.target), scoring, plan.prompt_tokens, plan.kept_tokens)


def compute_limit(target: ModelCost, scoring: float, prompt_tokens: int, computed_tokens: int) -> float:
    """Operations of full prefill over those of a sparse one: F(prompt) / (scoring + F(computed)).

    A speedup can exceed it, because short and long passes run at different speeds.

    F(n), `prefill_flops`: for each layer but the last 2 n (projections + MLP weights) + 4 heads head_size n (n + 1) / 2, with
    fewer pairs where it has a window; of the last layer 2 n (query, key and value weights), and the rest for one token; 2
    hidden_size vocabulary for the logits.

    scoring: FLOPs of the scorer without overhead; computed_tokens: prompt tokens that the target computes
    """
    return target.prefill_flops(prompt_tokens) / (scoring + target.prefill_flops(computed_tokens))


def rows(length: int, runs: Mapping[Configuration, Sequence[Measurement]]) -> list[BenchRow]:
    """One row for each configuration: the memory of its first run, and medians over the others."""
    medians = {
        configuration: statistics.median(run.ttft for run in measured[1:]) for configuration, measured in runs.items()
    }
    full = next((median for configuration, median in medians.items() if configuration.mode == BASELINE), None)
    table = []
    for configuration, (first, *measured) in runs.items():
        low, high = quartiles([run.ttft for run in measured])
        speedup = full / medians[configuration] if full is not None else None
        bound = measured[0].limit
        table.append(
            BenchRow(
                length=length,
                mode=configuration.mode,
                keep=configuration.keep,
                ttft_seconds=medians[configuration],
                ttft_low=low,
                ttft_high=high,
                speedup=speedup,
                limit=bound,
                efficiency=speedup / bound if speedup is not None and bound is not None else None,
                kept_ratio=measured[0].kept_ratio,
                peak_memory_bytes=first.peak,
                memory_growth_bytes=first.growth,
                phases={name: statistics.median(run.phases[name] for run in measured) for name in first.phases},
            )
        )
    return table
