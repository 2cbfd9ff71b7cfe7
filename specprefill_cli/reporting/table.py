"""The rich table after an answer."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from specprefill_cli.answering.answer import Answer, SpanRecord
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.prefill.fates import Fate
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.reporting.safe import plain

PHASE_WORDS = {"first_token": "first token", "draft_prefill": "draft prefill", "target_prefill": "target prefill",
               "look_ahead": "look-ahead"}  # fmt: skip
LONGEST_SPAN_LIST = 8


def answer_table(answer: Answer) -> Table:
    """Mode, pair, tokens, TTFT with its parts, spans by fate with pages, decode speed, citations, warnings."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("mode", plain(answer.mode + (f"  ({answer.reason})" if answer.reason else "")))
    for label, value in prompt_facts(answer):
        table.add_row(label, plain(value))
    table.add_row("TTFT", Text(seconds(answer.ttft_seconds), style="bold"))
    for name, value in answer.phases.items():
        if value > 0:
            table.add_row(f"  {PHASE_WORDS.get(name, name)}", seconds(value))
    if answer.reused:
        table.add_row("reused", ", ".join(answer.reused))
    table.add_row("start-up", seconds(answer.startup_seconds))
    for fate in Fate:
        chosen = [span for span in answer.spans if span.fate is fate]
        if chosen:
            table.add_row(fate.value, plain(span_text(chosen, several_documents(answer))))
    for label, value in decode_facts(answer):
        table.add_row(label, value)
    for citation in answer.citations:
        table.add_row("source", plain(f"{citation.document}, page {citation.page}: {' '.join(citation.text.split())}"))
    for warning in answer.warnings:
        table.add_row("warning", plain(warning, style="yellow"))
    return table


def prompt_facts(answer: Answer) -> list[tuple[str, str]]:
    """What was asked of which models, in words."""
    facts = [
        ("pair", f"{answer.draft or 'no draft'} -> {answer.target}"),
        ("prompt", f"{answer.prompt_tokens:,} tokens"),
        ("kept", f"{answer.kept_tokens:,} tokens, ratio {answer.kept_ratio:.3f}"),
    ]
    if answer.scorer is not None:
        window = f", the draft reading with a window of {answer.draft_window:,} tokens" if answer.draft_window else ""
        facts.append(("scorer", answer.scorer + window))
    return facts


def decode_facts(answer: Answer) -> list[tuple[str, str]]:
    """What decoding took, in words; what was not measured is left out."""
    speed = f"{answer.tokens_per_second:,.0f} tokens/s" if answer.tokens_per_second else "-"
    facts = [("decode", f"{answer.generated_tokens} tokens, {speed}")]
    if answer.acceptance_rate is not None:
        facts.append(("acceptance", acceptance_text(answer)))
    if answer.speculation.reason:
        facts.append(("speculation", plain(f"{answer.speculation.state}  ({answer.speculation.reason})")))
    if answer.peak_memory_bytes:
        facts.append(("peak memory", f"{answer.peak_memory_bytes / 2**20:,.0f} MiB"))
    return facts


def seconds(value: float) -> str:
    return f"{value * 1000:,.1f} ms" if value < 0.01 else f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.2f} s"


def acceptance_text(answer: Answer) -> str:
    """Acceptance rate, mean accepted length, and how many rounds accepted how many tokens."""
    rounds = ", ".join(f"{number}: {count}" for number, count in enumerate(answer.accepted_histogram) if count)
    return (
        f"{answer.acceptance_rate:.2f} of the tokens that {answer.proposer} proposed, {answer.accepted_length_mean:.1f} "
        f"a round (rounds by accepted tokens {rounds})"
    )


def phase_text(phases: dict[str, float]) -> str:
    parts = [f"{PHASE_WORDS.get(name, name)} {seconds(value)}" for name, value in phases.items() if value > 0]
    return " + ".join(parts)


def several_documents(answer: Answer) -> bool:
    return len({one.document for span in answer.spans for one in span.documents}) > 1


def span_text(spans: list[SpanRecord], several: bool) -> str:
    """Number of spans and tokens, and the first spans with their pages; by document where there are several."""
    total = sum(span.end - span.start for span in spans)
    listed = [
        f"{span.start}-{span.end}" + (f" ({page_text([span], several)})" if span.pages else "")
        for span in spans[:LONGEST_SPAN_LIST]
    ]
    more = f", and {len(spans) - LONGEST_SPAN_LIST} more" if len(spans) > LONGEST_SPAN_LIST else ""
    return f"{len(spans)} span{'s' if len(spans) > 1 else ''}, {total:,} tokens: {', '.join(listed)}{more}"


def page_text(spans: Sequence[SpanRecord], several: bool) -> str:
    """The pages of spans, each once, in order: `p. 2-3, 7`, or `a.pdf p. 2; b.pdf p. 1` where documents are several."""
    pages: dict[str, set[int]] = {}
    for span in spans:
        for one in span.documents:
            pages.setdefault(one.document, set()).update(one.pages)
    texts = {name: page_ranges(sorted(numbers)).replace("pages ", "p. ").replace("page ", "p. ")
             for name, numbers in pages.items() if numbers}  # fmt: skip
    return "; ".join(f"{name} {text}" if several else text for name, text in texts.items())


def keep_text(mode: str, keep: float | None) -> str:
    """A keep ratio in a table of modes; empty for those that have none."""
    if mode not in MODES or not MODES[mode].uses_keep:
        return ""
    return "auto" if keep is None else f"{keep:g}"
