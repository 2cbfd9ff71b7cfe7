"""Time to first token over prompt lengths, modes and keep ratios, all equally warmed up and measured in a single run."""

import gc
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.errors import UsageError
from specprefill_cli.files import packaged_folder
from specprefill_cli.lab.benchmarks.peak_memory import PeakMemory
from specprefill_cli.lab.benchmarks.peers import Peer
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.evaluation.statistics import quartiles
from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.lab.session import check_context
from specprefill_cli.lab.tables import TTFT_KEYS, Columns, Row, figure, keep_text, memory, ttft
from specprefill_cli.models.machine.cost import ModelCost, cost_of
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.request import PhaseClock
from specprefill_cli.record import BASELINE
from specprefill_cli.reporting.table import phase_text
from specprefill_cli.settings import OFF, Settings

QUESTION = "Which torque is given for the mounting screws?"
# Operations are counted only for scoring and prefill: a run with time in these phases does more.
UNCOUNTED_PHASES = ("mapping", "checkpoints")
# Tokens decoded to compare decoding speed with a peer's.
DECODED = 48
COLUMNS: Columns = {
    "tokens": figure("length", ",d"),
    "mode": figure("mode"),
    "keep": keep_text,
    "TTFT [quartiles]": ttft,
    "x full": figure("speedup", ".2f"),
    "operations, x full": figure("limit", ".2f"),
    "speedup / operations": figure("efficiency", ".2f"),
    "peak memory": memory("peak_memory_bytes"),
    "of it new": memory("memory_growth_bytes"),
    "phases": lambda row: phase_text(row["phases"]),
}
PEER_COLUMNS: Columns = {**COLUMNS, "decode": figure("decode_tokens_per_second", ".1f")}


class Measurement:
    """The figures of a single run: times in seconds, memory in bytes (None if unknown). Does not keep the run alive.

    limit: the ratio of counted operations, None if they are not counted; growth: peak memory minus the memory before
    """

    def __init__(
        self, clock: PhaseClock, memory: PeakMemory, kept_ratio: float = 1.0, limit: float | None = None
    ) -> None:
        self.ttft, self.phases, self.peak = clock.ttft, clock.phases(), memory.bytes()
        self.growth = None if self.peak is None or memory.before is None else self.peak - memory.before
        self.kept_ratio, self.limit = kept_ratio, limit


def prompt_of_length(session: Session, tokens: int, settings: Settings) -> Collection:
    """A document of prose that brings the whole prompt to this length, to within a few tokens.

    Raises UsageError if the question alone leaves no room for a chunk.
    """
    sources = sorted((packaged_folder("sample_docs") / "sources").glob("*.md"))
    prose = "\n\n".join(path.read_text(encoding="utf-8") for path in sources)
    empty = Collection((one_page_document("bench", "A."),))
    overhead = session.request(empty, QUESTION, settings).prompt.length
    needed_tokens = tokens - overhead
    if needed_tokens < settings.chunk_size:
        raise UsageError(f"--lengths {tokens}: too short; the question alone takes {overhead} tokens")
    tokenizer = session.pair.target.tokenizer
    prose *= needed_tokens // len(encode_text(tokenizer, prose)[0]) + 1
    _, offsets = encode_text(tokenizer, prose)
    return Collection((one_page_document("bench", prose[: offsets[needed_tokens - 1, 1]]),))


def bench_prefill(
    session: Session,
    lengths: Sequence[int],
    configurations: Sequence[Configuration],
    repeat: int,
    base: Settings,
    step: Callable[[str], None],
    peers: Sequence[Peer] = (),
) -> list[Row]:
    """Measure every configuration and peer at every length in turn, `repeat` times, after a round that measures memory.

    Raises UsageError for a length that the question alone fills, PromptTooLong for a length beyond the pair's context.
    """
    reads = {Configuration(peer.name): peer for peer in peers}
    prompts = {length: prompt_of_length(session, length, base) for length in lengths}
    # Check all prompts before measuring.
    for collection in prompts.values():
        for configuration in configurations:
            settings = configuration.settings(base)
            check_context(session.request(collection, QUESTION, settings), settings)
    # Warm up all modes first, so that memory mapped once for all modes does not count for the first mode.
    for configuration in configurations:
        session.warm_up(configuration.settings(base))
    table = []
    for length, collection in prompts.items():
        runs: dict[Configuration, list[Measurement]] = {case: [] for case in (*configurations, *reads)}
        for number in range(repeat + 1):
            for configuration, measured in runs.items():
                step(f"{length:,} tokens, {configuration.mode}, round {number} of {repeat}")
                if not number:
                    return_freed_memory()
                if configuration in reads:
                    measured.append(measure_peer(reads[configuration], session, collection, base))
                else:
                    measured.append(measure_mode(session, collection, configuration.settings(base)))
        rates = decode_rates(session, collection, base, peers)
        table += [{**row, "decode_tokens_per_second": rates.get(row["mode"])} for row in rows_of(length, runs)]
    return table


def return_freed_memory() -> None:
    """Collect garbage and make glibc return freed pages, so that they do not count as memory in use."""
    gc.collect()
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def measure_mode(session: Session, collection: Collection, settings: Settings) -> Measurement:
    """Measure a prefill in a mode."""
    watch = PeakMemory()
    stream = session.ask(collection, QUESTION, settings)
    kept_ratio = stream.prefilled.plan.kept_ratio
    return Measurement(stream.request.clock, watch, kept_ratio, operations_ratio(stream))


def measure_peer(peer: Peer, session: Session, collection: Collection, settings: Settings) -> Measurement:
    """Measure a peer's prefill of the target's tokens in mode `full`."""
    watch = PeakMemory()
    request = session.request(collection, QUESTION, settings.varied(mode=BASELINE))
    with request.clock.phase("target_prefill"):
        peer.read(request.prompt.tokens)
    return Measurement(request.clock, watch)


def decode_rates(
    session: Session, collection: Collection, base: Settings, peers: Sequence[Peer]
) -> dict[str, float | None]:
    """Tokens a second of plain decoding after the whole prompt, by peer and for mode `full`; empty if no peer decodes."""
    prompt = session.request(collection, QUESTION, base.varied(mode=BASELINE)).prompt.tokens
    rates: dict[str, float | None] = {peer.name: peer.decode(prompt, DECODED) for peer in peers if peer.decode}
    if rates:
        settings = base.varied(mode=BASELINE, speculate=OFF, max_new_tokens=DECODED)
        stream = session.ask(collection, QUESTION, settings)
        stream.stop_tokens = frozenset()
        rates[BASELINE] = stream.finished().tokens_per_second
    return rates


def operations_ratio(stream: AnswerStream) -> float | None:
    """The ratio of counted operations: 1 for `full`, None if a run did more than scoring and prefill."""
    if stream.resolved.mode == BASELINE:
        return 1.0
    phases, request, plan = stream.request.clock.phases(), stream.request, stream.prefilled.plan
    if any(phases[name] for name in UNCOUNTED_PHASES):
        return None
    scoring = SCORERS[request.scorer].cost(request) if MODES[stream.resolved.mode].uses_draft else 0.0
    return compute_limit(cost_of(request.pair.target), scoring, plan.prompt_tokens, plan.kept_tokens)


def compute_limit(target: ModelCost, scoring: float, prompt_tokens: int, computed_tokens: int) -> float:
    """Operations of full prefill over those of a sparse prefill: F(prompt) / (scoring + F(computed)).

    A speedup can exceed this ratio, because short and long passes run at different speeds.

    F(n), `prefill_flops`: 2 n (projections + MLP weights) + 4 heads head_size n (n + 1) / 2 for each layer except the last,
    with fewer pairs in a layer with a window; 2 n (query, key and value weights) for the last layer, plus its rest for a
    single token; 2 hidden_size vocabulary for the logits.

    scoring: FLOPs of the scorer without overhead; computed_tokens: prompt tokens that the target computes
    """
    return target.prefill_flops(prompt_tokens) / (scoring + target.prefill_flops(computed_tokens))


def rows_of(length: int, runs: Mapping[Configuration, Sequence[Measurement]]) -> list[Row]:
    """A row for each configuration: the memory of its first run, and figures of the other runs.

    mode: a mode, or the name of a peer; ttft_low, ttft_high: quartiles; speedup: over `full`, None without `full`
    limit: operations of `full` over this row's; efficiency: speedup / limit. Above 1 it means that the target's short
        pass, or the draft, computes more a second than `full` does
    """
    times = {case: quartiles([run.ttft for run in measured[1:]]) for case, measured in runs.items()}
    full = next((median for case, (_, median, _) in times.items() if case.mode == BASELINE), None)
    table = []
    for case, (first, *measured) in runs.items():
        speedup, limit = None if full is None else full / times[case][1], measured[0].limit
        table.append(
            {
                "length": length,
                "mode": case.mode,
                "keep": case.keep,
                **dict(zip(TTFT_KEYS, times[case], strict=True)),
                "speedup": speedup,
                "limit": limit,
                "efficiency": None if speedup is None or limit is None else speedup / limit,
                "kept_ratio": measured[0].kept_ratio,
                "peak_memory_bytes": first.peak,
                "memory_growth_bytes": first.growth,
                "phases": {name: statistics.median(run.phases[name] for run in measured) for name in first.phases},
            }
        )
    return table


def speedup_plot(rows: Sequence[Row]) -> str:
    """Plot speedup over `full` against prompt length as SVG: a line for each mode and keep ratio, with its operations."""
    return line_plot(
        "Speedup of the time to first token over full prefill",
        "prompt length in tokens (logarithmic)",
        f"speedup over {BASELINE}",
        speedup_lines(rows),
        x_log=True,
        bound_name="ratio of counted operations",
        baseline=(BASELINE, 1.0),
    )


def speedup_lines(rows: Sequence[Row]) -> list[Series]:
    """Lines of speedup by mode and keep ratio, in the order of the rows, with their ratios of operations as bounds."""
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["length"]):
        if row["mode"] != BASELINE and row["speedup"] is not None:
            keep = keep_text(row)
            lines[f"{row['mode']}, keep {keep}" if keep else row["mode"]].append(row)
    series = []
    for name, line in lines.items():
        points = [(row["length"], row["speedup"]) for row in line]
        bound = [(row["length"], row["limit"]) for row in line if row["limit"] is not None]
        series.append(Series(name, points, bound=bound if len(bound) == len(line) else ()))
    return series
