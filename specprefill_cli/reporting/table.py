"""The rich table after an answer, and the words that other reports share with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from specprefill_cli.documents.document import page_ranges
from specprefill_cli.errors import one_line
from specprefill_cli.record import BASELINE, ORIGINAL, Citation, Fate, Record, SpanRecord
from specprefill_cli.reporting.safe import plain

PHASE_WORDS = {
    "first_token": "first token",
    "draft_prefill": "draft prefill",
    "target_prefill": "target prefill",
    "look_ahead": "look-ahead",
    "checkpoints": "checkpoint tokens",
}
LONGEST_SPAN_LIST = 8


def facts_table(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Build a table of labels and values; markup in a string means nothing."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in facts:
        table.add_row(label, plain(value) if isinstance(value, str) else value)
    return table


def warning_facts(warnings: Iterable[str]) -> list[tuple[str, Text]]:
    """Label warnings for a table of facts."""
    return [("warning", plain(warning, style="yellow")) for warning in warnings]


def short_table(answer: Record) -> Table:
    """What matters most in eight rows at most, and the warnings; `answer_table` has all figures."""
    several = several_documents(answer)
    recomputed, dropped = ([span for span in answer.spans if span.fate is fate] for fate in (Fate.RECOMPUTE, Fate.DROP))
    pages = page_text(recomputed, several)
    facts = [
        ("mode", mode_text(answer)),
        ("prompt", f"{answer.prompt_tokens:,} tokens"),
        ("kept", kept_text(answer)),
        *position_facts(answer),
        ("TTFT", f"{seconds(answer.ttft_seconds)}: {phase_text(answer.phases)}"),
    ]
    if answer.expected_speedup is not None and answer.mode != BASELINE:
        facts.append(("speedup", f"{answer.expected_speedup:.1f}x over {BASELINE} expected"))
    if recomputed:
        facts.append(("recompute", span_count(recomputed) + (f" ({pages})" if pages else "")))
    if dropped:
        facts.append(("dropped", f"{sum(span.end - span.start for span in dropped):,} tokens"))
    return facts_table([*facts, *warning_facts(answer.warnings)])


def mode_text(answer: Record) -> str:
    """Name the mode, with the reason where `auto` chose it."""
    return answer.mode + (f"  ({answer.reason})" if answer.reason else "")


def kept_text(answer: Record) -> str:
    """Write how much of the prompt, and of the documents, the target computed."""
    kept = f"{answer.kept_tokens:,} tokens, ratio {answer.kept_ratio:.3f}"
    ratio = answer.document_kept_ratio
    return kept if ratio is None else f"{kept}, of the documents {ratio:.3f}"


def answer_table(answer: Record) -> Table:
    """Mode, pair, tokens, TTFT with its phases, spans by fate with pages, decoding, citations, warnings."""
    phases = [(f"  {phase_name(name)}", seconds(value)) for name, value in answer.phases.items() if value > 0]
    fates = [(fate.value, [span for span in answer.spans if span.fate is fate]) for fate in Fate]
    several = several_documents(answer)
    return facts_table(
        [
            ("mode", mode_text(answer)),
            *prompt_facts(answer),
            ("TTFT", Text(seconds(answer.ttft_seconds), style="bold")),
            *phases,
            *start_facts(answer),
            *((fate, span_text(spans, several)) for fate, spans in fates if spans),
            *decode_facts(answer),
            *(("source", source_text(citation)) for citation in answer.citations),
            *warning_facts(answer.warnings),
        ]
    )


def prompt_facts(answer: Record) -> list[tuple[str, str]]:
    """Describe the pair, the prompt, and how much of it the target computed."""
    facts = [
        ("pair", f"{answer.draft or 'no draft'} -> {answer.target}"),
        ("prompt", f"{answer.prompt_tokens:,} tokens"),
        ("kept", kept_text(answer)),
        *position_facts(answer),
    ]
    if answer.scorer is not None:
        window = f", draft attention window {answer.draft_window:,} tokens" if answer.draft_window else ""
        facts.append(("scorer", answer.scorer + window))
    return facts


def position_facts(answer: Record) -> list[tuple[str, str]]:
    """The row about positions, where there is something to say."""
    text = positions_text(answer)
    return [] if text is None else [("positions", text)]


def positions_text(answer: Record) -> str | None:
    """Describe where kept tokens stand; None where they stand where they always do."""
    if answer.positions == ORIGINAL:
        return None
    return f"{answer.positions}, gaps between kept spans x {answer.position_factor:.3g}"


def start_facts(answer: Record) -> list[tuple[str, str]]:
    """What was reused from earlier questions, and the start-up time."""
    reused = [("reused", ", ".join(answer.reused))] if answer.reused else []
    return [*reused, ("start-up", seconds(answer.startup_seconds))]


def decode_facts(answer: Record) -> list[tuple[str, str]]:
    """Describe decoding; what was not measured has no row."""
    speed = f"{answer.tokens_per_second:,.0f} tokens/s" if answer.tokens_per_second else "-"
    facts = [("decode", f"{answer.generated_tokens} tokens, {speed}"), *confirmation_facts(answer)]
    if answer.acceptance_rate is not None:
        facts.append(("acceptance", acceptance_text(answer)))
    if answer.speculation.reason:
        facts.append(("speculation", f"{answer.speculation.state}  ({answer.speculation.reason})"))
    if answer.peak_memory_bytes:
        facts.append(("peak memory", f"{answer.peak_memory_bytes / 2**20:,.0f} MiB"))
    return facts


def confirmation_text(answer: Record) -> str | None:
    """Say what full prefill found about the answer; None where it was not asked."""
    if answer.provisional_answer is None:
        return None
    if answer.confirmed is None:
        return "not confirmed by full prefill"
    return (
        f"{'confirmed' if answer.confirmed else 'corrected'} by full prefill, {seconds(answer.confirm_seconds or 0.0)}"
    )


def confirmation_facts(answer: Record) -> list[tuple[str, str]]:
    """The row about confirmation, with the answer that was corrected."""
    text = confirmation_text(answer)
    before = f"; provisional answer: {answer.provisional_answer or '(nothing)'}" if answer.confirmed is False else ""
    return [] if text is None else [("answer", text + before)]


def seconds(value: float) -> str:
    """Write a duration in milliseconds below a second, else in seconds."""
    if value >= 1:
        return f"{value:,.2f} s"
    return f"{value * 1000:,.0f} ms" if value >= 0.01 else f"{value * 1000:,.1f} ms"


def phase_name(name: str) -> str:
    """Return a phase's name in words."""
    return PHASE_WORDS.get(name, name)


def phase_text(phases: dict[str, float]) -> str:
    """Write the seconds of all phases that ran as a sum."""
    return " + ".join(f"{phase_name(name)} {seconds(value)}" for name, value in phases.items() if value > 0)


def acceptance_text(answer: Record) -> str:
    """Write the acceptance rate, the mean accepted length, and the number of rounds by accepted tokens."""
    rounds = ", ".join(f"{number}: {count}" for number, count in enumerate(answer.accepted_histogram) if count)
    return (
        f"{answer.acceptance_rate:.2f} of the tokens that {answer.proposer} proposed, {answer.accepted_length_mean:.1f} "
        f"a round (rounds by accepted tokens {rounds})"
    )


def several_documents(answer: Record) -> bool:
    """Whether the answer's spans touch more than one document."""
    return len({touched.document for span in answer.spans for touched in span.documents}) > 1


def span_text(spans: Sequence[SpanRecord], several: bool) -> str:
    """Write the number of spans and tokens, and the first spans with their pages; `several`: name their documents."""
    listed = []
    for span in spans[:LONGEST_SPAN_LIST]:
        pages = f" ({page_text([span], several)})" if span.pages else ""
        listed.append(f"{span.start}-{span.end}{pages}")
    more = f", and {len(spans) - LONGEST_SPAN_LIST} more" if len(spans) > LONGEST_SPAN_LIST else ""
    return f"{span_count(spans)}: {', '.join(listed)}{more}"


def span_count(spans: Sequence[SpanRecord]) -> str:
    """Write the number of spans and of their tokens."""
    tokens = sum(span.end - span.start for span in spans)
    return f"{len(spans)} span{'s' if len(spans) > 1 else ''}, {tokens:,} tokens"


def page_text(spans: Sequence[SpanRecord], several: bool) -> str:
    """Write the pages of spans: `p. 2-3, 7`, or `a.pdf p. 2; b.pdf p. 1` where there are several documents."""
    pages: dict[str, set[int]] = {}
    for span in spans:
        for touched in span.documents:
            pages.setdefault(touched.document, set()).update(touched.pages)
    texts = {name: f"p. {page_ranges(sorted(numbers)).split(' ', 1)[1]}" for name, numbers in pages.items() if numbers}
    return "; ".join(f"{one_line(name)} {text}" if several else text for name, text in texts.items())


def source_text(citation: Citation) -> str:
    """Write a citation on one line."""
    return f"{one_line(citation.document)}, page {citation.page}: {' '.join(citation.text.split())}"
