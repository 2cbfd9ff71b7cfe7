"""The output of `plan`: how much would be kept, and the expected times of several keep ratios."""

from __future__ import annotations

from rich.console import Group
from rich.table import Column

from specprefill_cli.record import DryRun, Fate
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import fate_text, kept_text, pair_text, plain_table, present, seconds

ESTIMATE_NOTE = (
    "estimates: counted operations and the overhead of a pass, not measurements of the target; seconds at the speed "
    "of the draft here"
)


def plan_view(run: DryRun) -> Group:
    """Show how much would be kept, the mode that `auto` would take, and the costs of this plan, other keep ratios and `full`.

    The reason that `auto` had before scoring is shown only where it decides against this plan.
    """
    mode, reason = run.auto["mode"], run.auto["reason"]
    facts = plain_table()
    for label, value in present(
        {
            "pair": pair_text(run.pair["draft"], run.pair["target"]),
            "prompt": f"{run.prompt_tokens:,} tokens",
            "would keep": kept_text(run.kept_tokens, run.kept_ratio),
            "recompute": fate_text(run.spans, Fate.RECOMPUTE),
            "auto takes": mode if mode == run.mode else f"{mode}; before scoring, {reason.removeprefix('auto: ')}",
        }
    ):
        facts.add_row(label, plain(value))
    for warning in run.warnings:
        facts.add_row("warning", plain(warning, style="yellow"))
    header = ("keep", "tokens computed", "expected speedup", "TTFT")
    estimates = plain_table(*(Column(name, justify="right") for name in header))
    for number, estimate in enumerate(run.estimates):
        keep = f"auto, {estimate.kept_ratio:.2f}" if estimate.keep is None else f"{estimate.keep:g}"
        label = keep if number else f"this plan: {keep}"
        speedup = f"{estimate.speedup:.1f}x" if run.full_fits else "-"
        estimates.add_row(label, f"{estimate.kept_tokens:,}", speedup, about_seconds(estimate.ttft_seconds))
    full_ttft = about_seconds(run.full_ttft_seconds) if run.full_fits else "does not fit"
    estimates.add_row("full", f"{run.prompt_tokens:,}", "1.0x" if run.full_fits else "-", full_ttft)
    return Group(facts, estimates, plain(ESTIMATE_NOTE, style="dim"))


def about_seconds(value: float | None) -> str:
    """Write an estimated duration."""
    return "-" if value is None else f"about {seconds(value)}"
