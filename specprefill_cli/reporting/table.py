"""The tables of an answer, of a comparison of modes and of a plan, and the words that reports share."""

from collections.abc import Iterable, Mapping

from rich.console import Group
from rich.table import Column, Table

from specprefill_cli.documents.document import page_ranges
from specprefill_cli.errors import one_line
from specprefill_cli.record import BASELINE, ORIGINAL, Comparison, DryRun, Fate, ModeAnswer, Record, SpanRecord
from specprefill_cli.reporting.text import passages_view, plain

# Labels of figures that all modes share; peak memory is that of the whole process.
SHARED = ("pair", "prompt", "start-up", "peak memory")
ESTIMATE_NOTE = (
    "estimates: counted operations and the overhead of a pass, not measurements of the target; seconds at the speed "
    "of the draft here"
)
PHASE_WORDS = {"look_ahead": "look-ahead", "checkpoints": "checkpoint tokens"}


def plain_table(*header: str | Column) -> Table:
    """Build a table without lines. Without a header it has two columns: dimmed labels, and values."""
    table = Table(*header, show_header=bool(header), box=None, padding=(0, 2, 0, 0))
    if not header:
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
    return table


def facts_table(facts: Mapping[str, str | None], warnings: Iterable[str]) -> Table:
    """Build a table of the facts that have a value, and of warnings."""
    table = plain_table()
    for label, value in facts.items():
        if value:
            table.add_row(label, plain(value))
    for warning in warnings:
        table.add_row("warning", plain(warning, style="yellow"))
    return table


def short_table(answer: Record) -> Table:
    """The most important figures, in at most eight rows, and the warnings; `answer_table` shows all figures."""
    facts = answer_facts(answer)
    dropped = sum(span.end - span.start for span in answer.spans if span.fate is Fate.DROP)
    faster = answer.expected_speedup is not None and answer.mode != BASELINE
    shown = {
        **{label: facts[label] for label in ("mode", "prompt", "kept", "positions")},
        "TTFT": f"{facts['TTFT']}: {phase_text(answer.phases)}",
        "speedup": f"{answer.expected_speedup:.1f}x over {BASELINE} expected" if faster else None,
        "recompute": facts["recompute"],
        "dropped": f"{dropped:,} tokens" if dropped else None,
    }
    return facts_table(shown, answer.warnings)


def answer_table(answer: Record) -> Table:
    """Mode, pair, tokens, TTFT with its phases, spans by fate with pages, decoding, citations, warnings."""
    cited = ((one_line(citation.document), citation.page, citation.text.split()) for citation in answer.citations)
    sources = "\n".join(f"{name}, page {page}: {' '.join(words)}" for name, page, words in cited)
    return facts_table({**answer_facts(answer), "source": sources}, answer.warnings)


def comparison_view(comparison: Comparison) -> Group:
    """The table of modes, then the passages of the first mode that scored the documents, or else of the first mode."""
    records = [column.answer for column in comparison.answers]
    scored = [record for record in records if record.scorer is not None]
    return Group(comparison_table(comparison), *map(passages_view, (scored or records)[:1]))


def comparison_table(comparison: Comparison) -> Table:
    """Build a table with a row for each figure that any mode has and a column for each mode; misfits come last."""
    table = plain_table("")
    for mode in (*(column.mode for column in comparison.answers), *comparison.misfits):
        table.add_column(plain(mode), overflow="fold", ratio=1)
    columns = [column_facts(column) for column in comparison.answers]
    columns += [{"answer": "does not fit", "warning": reason} for reason in comparison.misfits.values()]
    for label in columns[0] if columns else ():
        row_values = [column.get(label) for column in columns]
        if any(row_values):
            table.add_row(label, *(plain(value or "-") for value in row_values))
    return table


def column_facts(mode_answer: ModeAnswer) -> dict[str, str | None]:
    """Return a mode's figures by label; None or an empty text for missing figures."""
    answer = mode_answer.answer
    facts = {label: value for label, value in answer_facts(answer).items() if label not in SHARED}
    return {
        "answer": answer.answer or "(nothing)",
        **difference_facts(mode_answer),
        **facts,
        "warning": "; ".join(answer.warnings),
    }


def plan_view(run: DryRun) -> Group:
    """Show what would be kept, the mode of `auto`, and the costs of this plan, other ratios and `full`."""
    mode, reason = run.auto["mode"], run.auto["reason"]
    facts = {
        "pair": pair_text(run.pair["draft"], run.pair["target"]),
        "prompt": f"{run.prompt_tokens:,} tokens",
        "would keep": kept_text(run.kept_tokens, run.kept_ratio),
        "recompute": fate_text(run.spans, Fate.RECOMPUTE),
        "auto takes": mode if mode == run.mode else f"{mode}; before scoring, {reason.removeprefix('auto: ')}",
    }
    header = ("keep", "tokens computed", "expected speedup", "TTFT")
    estimates = plain_table(*(Column(name, justify="right") for name in header))
    for number, estimate in enumerate(run.estimates):
        keep = f"auto, {estimate.kept_ratio:.2f}" if estimate.keep is None else f"{estimate.keep:g}"
        label = keep if number else f"this plan: {keep}"
        speedup = f"{estimate.speedup:.1f}x" if run.full_fits else "-"
        estimates.add_row(label, f"{estimate.kept_tokens:,}", speedup, about_seconds(estimate.ttft_seconds))
    full_ttft = about_seconds(run.full_ttft_seconds) if run.full_fits else "does not fit"
    estimates.add_row("full", f"{run.prompt_tokens:,}", "1.0x" if run.full_fits else "-", full_ttft)
    return Group(facts_table(facts, run.warnings), estimates, plain(ESTIMATE_NOTE, style="dim"))


def about_seconds(value: float | None) -> str:
    """Write an estimated duration."""
    return "-" if value is None else f"about {seconds(value)}"


def answer_facts(answer: Record) -> dict[str, str | None]:
    """Every figure of an answer by label; None for missing figures. All answers have the same labels."""
    kept = kept_text(answer.kept_tokens, answer.kept_ratio)
    ratio, window = answer.document_kept_ratio, answer.draft_window
    speed = f"{answer.tokens_per_second:,.0f} tokens/s" if answer.tokens_per_second else "-"
    state, reason = answer.speculation.state, answer.speculation.reason
    positions = f"{answer.positions}, gaps between kept spans x {answer.position_factor:.3g}"
    acceptance = None
    if answer.acceptance_rate is not None:
        share = f"{answer.acceptance_rate:.2f} of the tokens that {answer.proposer} proposed"
        acceptance = f"{share}, {answer.accepted_length_mean:.1f} a round"
    return {
        "mode": answer.mode + (f"  ({answer.reason})" if answer.reason else ""),
        "pair": pair_text(answer.draft, answer.target),
        "prompt": f"{answer.prompt_tokens:,} tokens",
        "kept": kept if ratio is None else f"{kept}, of the documents {ratio:.3f}",
        "positions": None if answer.positions == ORIGINAL else positions,
        "scorer": answer.scorer and answer.scorer + (f", draft attention window {window:,} tokens" if window else ""),
        "TTFT": seconds(answer.ttft_seconds),
        **{f"  {phase_name(name)}": seconds(value) if value > 0 else None for name, value in answer.phases.items()},
        "reused": ", ".join(answer.reused),
        "start-up": seconds(answer.startup_seconds),
        **{fate.value: fate_text(answer.spans, fate) for fate in Fate},
        "decode": f"{answer.generated_tokens} tokens, {speed}",
        "full prefill": confirmation_text(answer),
        "provisional answer": answer.provisional_answer if answer.confirmed is False else None,
        "acceptance": acceptance,
        "speculation": f"{state}  ({reason})" if reason else None,
        "peak memory": f"{answer.peak_memory_bytes / 2**20:,.0f} MiB" if answer.peak_memory_bytes else None,
    }


def difference_facts(mode_answer: ModeAnswer) -> dict[str, str | None]:
    """The differences between a mode's answer and that of `full`, by label; None if `full` did not run."""
    speedup, divergence, agreement = mode_answer.speedup, mode_answer.first_token_kl, mode_answer.agreement
    return {
        "speedup": None if speedup is None else f"{speedup:.2f}x",
        "first-token KL": None if divergence is None else f"{divergence:.4f} nats",
        "agreement": None if agreement is None else f"{agreement:.2f}",
    }


def pair_text(draft: str | None, target: str | None) -> str:
    """Write the names of draft and target."""
    return f"{draft or 'no draft'} -> {target}"


def kept_text(tokens: int, ratio: float) -> str:
    """Write how much of a prompt is kept."""
    return f"{tokens:,} tokens, ratio {ratio:.3f}"


def confirmation_text(answer: Record) -> str | None:
    """Say whether full prefill confirmed the answer; None if no confirmation was requested."""
    if answer.provisional_answer is None or answer.confirmed is None:
        return None if answer.provisional_answer is None else "not confirmed by full prefill"
    outcome = "confirmed" if answer.confirmed else "corrected"
    return f"{outcome} by full prefill, {seconds(answer.confirm_seconds or 0.0)}"


def seconds(value: float) -> str:
    """Write a duration in milliseconds below a second, else in seconds."""
    if value >= 1:
        return f"{value:,.2f} s"
    return f"{value * 1000:,.0f} ms" if value >= 0.01 else f"{value * 1000:,.1f} ms"


def phase_name(name: str) -> str:
    """Return a phase's name in words."""
    return PHASE_WORDS.get(name, name.replace("_", " "))


def phase_text(phases: dict[str, float]) -> str:
    """Write the seconds of all phases that ran as a sum."""
    return " + ".join(f"{phase_name(name)} {seconds(value)}" for name, value in phases.items() if value > 0)


def fate_text(spans: Iterable[SpanRecord], fate: Fate) -> str | None:
    """Spans of a fate, their tokens and their pages (`a.pdf p. 2-3, 7; b.pdf p. 1`); None without spans."""
    pages: dict[str, set[int]] = {}
    count = tokens = 0
    for span in spans:
        for touched in span.documents:
            pages.setdefault(touched.document, set()).update(touched.pages if span.fate is fate else ())
        if span.fate is fate:
            count, tokens = count + 1, tokens + span.end - span.start
    if not count:
        return None
    texts = {name: f"p. {page_ranges(sorted(own)).split(' ', 1)[1]}" for name, own in pages.items() if own}
    places = "; ".join(f"{one_line(name)} {text}" if len(pages) > 1 else text for name, text in texts.items())
    return f"{count} span{'s' if count > 1 else ''}, {tokens:,} tokens" + (f" ({places})" if places else "")
