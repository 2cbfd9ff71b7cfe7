"""The study's record as findings in words, plots, and tables: what the page and the terminal show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from specprefill_cli.lab.evaluation.statistics import FEWEST_QUESTIONS, TOO_FEW
from specprefill_cli.lab.plots import Series, heat_map, line_plot
from specprefill_cli.lab.study.conditions import MAPPED
from specprefill_cli.lab.study.drift_figures import drift_section
from specprefill_cli.lab.study.section import Figures, Plots, Section, figure
from specprefill_cli.lab.tables import Columns
from specprefill_cli.reporting.table import seconds

SIGNAL_NAMES = {
    "error": "error of keys and values",
    "key_cosine": "1 - cosine of keys",
    "value_error": "error of values",
    "attention_output_error": "error of the attention output",
    "hidden_state_error": "error of the hidden state (needs full prefill)",
    "risk": "risk (attention mass x error)",
}
PREDICTIONS = {
    "spearman_to_true_error": "Best predictor of a token's true error",
    "auroc_to_changed_first_token": "Best predictor of a changed first token",
    "auroc_to_changed_answer": "Best predictor of a changed answer",
}
SIGNALS: Columns = {
    "signal": lambda signal: SIGNAL_NAMES.get(signal["signal"], signal["signal"]),
    "Spearman: true error": lambda signal: figure(signal["spearman_to_true_error"]),
    "Spearman: KL": lambda signal: figure(signal["spearman_to_kl"]),
    "AUROC: first token changed": lambda signal: figure(signal["auroc_to_changed_first_token"]),
    "AUROC: answer changed": lambda signal: figure(signal["auroc_to_changed_answer"]),
}
FIRST_TOKEN: Columns = {
    "cache": lambda variant: variant["name"],
    "median KL": lambda variant: figure(variant["kl_median"], ".3f"),
    "mean KL": lambda variant: figure(variant["kl_mean"], ".3f"),
    "first token kept": lambda variant: f"{variant['same_first_token']:.0%}",
}
COST: Columns = {
    "condition": lambda row: row["name"] if row["keep"] is None else f"{row['name']}, keep {row['keep']:g}",
    "n": lambda row: str(row["n"]),
    "F1 [95 %]": lambda row: figure(row["f1"], ".1f", row["f1_low"], row["f1_high"]),
    "TTFT": lambda row: seconds(row["ttft_seconds"]),
    "x reference": lambda row: figure(row["ttft_ratio"]),
    "equal": lambda row: "yes" if row["equal_ttft"] else "no",
    "first-token KL": lambda row: figure(row["first_token_kl"], ".3f"),
    "gap recovered": lambda row: figure(row["gap_recovered"]),
    "same as full": lambda row: f"{row['same_answer']:.0%}",
}
COST_TITLE = "What does draft KV win at equal TTFT?"


def sections(record: dict[str, Any]) -> list[Section]:
    """All sections that the record has figures for."""
    cost = record.get("equal_cost")
    return [
        signal_section(record),
        layer_section(record),
        repair_section(record),
        *([drift_section(record["drift"])] if record.get("drift") else []),
        cost_section(cost) if cost else Section(COST_TITLE, ["Not measured: needs answers (`study --answers N`)."], {}),
    ]


def signal_section(record: dict[str, Any]) -> Section:
    """Whether what checkpoint tokens see predicts the true error and a changed answer."""
    title, answer_changed = "Do checkpoint tokens predict the damage?", record["answer_changed"]
    findings = [
        f"{record['questions']:,} questions. With mapped KV alone the first token changed in "
        f"{record['first_token_changed']:.0%} of them"
        + (f", the answer in {answer_changed:.0%}." if answer_changed is not None else ".")
    ]
    if record["questions"] < FEWEST_QUESTIONS:
        return Section(title, [*findings, f"No correlations: {TOO_FEW}."], {})
    for key, words in PREDICTIONS.items():
        measured = [signal for signal in record["signals"] if signal["observable"] and signal[key] is not None]
        if measured:
            best = max(measured, key=lambda signal: signal[key])
            statistic = "Spearman" if key.startswith("spearman") else "AUROC, where 0.5 is chance"
            findings.append(f"{words}: {SIGNAL_NAMES[best['signal']]}, {best[key]:.2f} ({statistic}).")
        else:
            findings.append(f"{words}: unknown, because too few questions differ in the outcome.")
    findings.append(
        "The hidden state's error needs full prefill to compare with, because the map gives keys and values only; it "
        "shows how reliable checkpoint tokens are. The attention output is over the checkpoint tokens alone, because the "
        "target's own KV is known only there."
    )
    return Section(title, findings, {}, [Figures("signals", SIGNALS, record["signals"])])


def layer_section(record: dict[str, Any]) -> Section:
    """Error by layer and depth."""
    errors, stability = record["true_error_by_layer"], record["stability"]
    lower, upper = stability["lower_half_error"], stability["upper_half_error"]
    findings = [
        "Squared error of mapped KV relative to the exact KV. The first layer's depends on the tokens alone and is exact."
    ]
    if lower is not None and upper is not None:
        verdict = "lower layers are mapped better" if lower < upper else "lower layers are not mapped better"
        verdict += f" (Spearman of layer and error {figure(stability['spearman_layer_to_error'])})"
        findings.append(
            f"Mean error of the lower half of the mapped layers {lower:.2f}, of the upper half {upper:.2f}: "
            f"{verdict if record['questions'] >= FEWEST_QUESTIONS else TOO_FEW}."
        )
    lines = [
        Series(part, [(layer, error) for layer, error in enumerate(errors[part]) if error is not None])
        for part in ("keys", "values")
    ]
    cells = record["true_error_by_layer_and_depth"]
    plots: Plots = {
        "error_by_layer_and_depth": partial(
            heat_map, "True error of mapped KV", cells, "target layer", "depth in the document"
        ),
        "error_by_layer": partial(line_plot, "True error by layer", "target layer", "relative error", lines),
    }
    return Section("Are lower layers mapped better?", findings, plots)


def repair_section(record: dict[str, Any]) -> Section:
    """KL by recompute budget, and the controls."""
    budgets, variants = record["first_token_by_budget"], record["variants"]
    by_risk = {row["recompute"]: row for row in budgets if row["chosen_by"] == "risk"}
    first, *_, last = by_risk.values()
    findings = [
        f"Median KL of the first token from full prefill: {first['kl_median']:.3f} with checkpoint tokens alone, "
        f"{last['kl_median']:.3f} with {last['recompute']:.0%} of the prompt recomputed."
    ]
    # Sentences, each with the subject of its verdict and the figures that it compares: the lower is the better.
    compared: list[tuple[str, str, float, float]] = []
    mapped = variants[MAPPED]["kl_median"]
    for control, name in (("zeros", "zeros"), ("wrong document", "another document's KV")):
        if control in variants:
            value = variants[control]["kl_median"]
            words = f"Median KL is {mapped:.3f} with mapped KV alone, {value:.3f} with {name} instead."
            compared.append((words, "Mapped KV", mapped, value))
    for row in budgets:
        if row["chosen_by"] == "random" and row["recompute"]:
            risk, random = by_risk[row["recompute"]]["kl_median"], row["kl_median"]
            words = f"With {row['recompute']:.0%} recomputed it is {risk:.3f} for the riskiest chunks, {random:.3f} for random"
            compared.append((f"{words} ones.", "Choosing by risk", risk, random))
    enough = record["questions"] >= FEWEST_QUESTIONS
    for words, subject, ours, control_kl in compared:
        findings.append(f"{words} {subject} is {'better' if ours < control_kl else 'no better'}." if enough else words)
    if not enough:
        findings.append(f"No verdicts: {TOO_FEW}.")
    plots = {"kl_by_budget": budget_plot(budgets)}
    rows = [{"name": name, **variant} for name, variant in variants.items()]
    tables = [Figures("first token", FIRST_TOKEN, rows)]
    return Section("Does recomputing repair it?", findings, plots, tables)


def budget_plot(rows: Sequence[dict[str, Any]]) -> Callable[[], str]:
    """KL over budgets, spent on the riskiest and on random chunks; a budget of 0 counts for both."""
    series = []
    for chosen_by, name in (("risk", "riskiest chunks"), ("random", "random chunks")):
        by_budget = {row["recompute"]: row for row in rows if row["chosen_by"] == chosen_by or not row["recompute"]}
        series.append(Series(name, [(budget, row["kl_median"]) for budget, row in sorted(by_budget.items())]))
    title, x_label, y_label = "KL by recompute budget", "ratio of the prompt recomputed", "median KL, nats"
    return partial(line_plot, title, x_label, y_label, series, x_percent=True)


def cost_section(cost: dict[str, Any]) -> Section:
    """The table at equal time to first token, and the paired differences of draft KV."""
    reference, tolerance = cost["reference"], cost["tolerance"]
    findings = [
        f"The reference is {reference}; an equal median TTFT is within {tolerance:.0%} of its own. Controls are timed with "
        "all that they do: 'same tokens, rest dropped' maps and checks too, to find out which tokens."
    ]
    rows = {row["name"]: row for row in cost["rows"]}
    for tuned in cost["tuned"]:
        row = rows[tuned["mode"]]
        findings.append(
            f"{tuned['mode']} has keep ratio {tuned['keep']:g}, the nearest on the pilot questions. Over all questions it "
            f"takes {row['ttft_ratio']:.2f} of the reference's TTFT, {'' if row['equal_ttft'] else 'not '}within the tolerance."
        )
    findings += [
        f"F1 of {reference} minus F1 of '{duel['against']}' (which takes {rows[duel['against']]['ttft_ratio']:.2f} of its "
        f"TTFT): {duel['difference']:+.1f} [{duel['low']:+.1f}, {duel['high']:+.1f}], {duel['verdict']}."
        for duel in cost["duels"]
    ]
    return Section(COST_TITLE, findings, {}, [Figures("answers", COST, cost["rows"])])
