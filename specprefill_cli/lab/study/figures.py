"""The study's record as tables and pictures, with the sentences that they allow: what the page and the terminal show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specprefill_cli.lab.study.plots import Series, heat_map, line_chart
from specprefill_cli.reporting.table import seconds

NOTHING = "-"
COST_HEADER = (
    "condition",
    "n",
    "F1 [95 %]",
    "TTFT",
    "x reference",
    "equal",
    "first-token KL",
    "gap recovered",
    "as full",
)
SIGNAL_WORDS = {
    "error": "error of keys and values",
    "key_cosine": "1 - cosine of keys",
    "value_error": "error of values",
    "attention_output_error": "error of the attention's output",
    "hidden_state_error": "error of the hidden state (needs full prefill)",
    "risk": "risk (attention mass x error)",
}


@dataclass(frozen=True)
class Figures:
    """A table: its name, header and rows of words."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """One question of the study: what was found in words, pictures by file name, tables."""

    title: str
    findings: Sequence[str]
    plots: Sequence[tuple[str, str]] = ()
    tables: Sequence[Figures] = ()


# The kill test: mapped KV against the same tokens recomputed and the rest dropped, and against other ways to use the time.
COST_TITLE = "What does it win at equal TTFT?"


def figure(value: float | None, form: str = "{:.2f}") -> str:
    return NOTHING if value is None else form.format(value)


def sections(record: dict[str, Any]) -> list[Section]:
    """All sections that the record has figures for."""
    found = [signal_section(record), layer_section(record), repair_section(record)]
    if record.get("kinship"):
        found.insert(2, kinship_section(record["kinship"]))
    if record.get("equal_cost"):
        found.append(cost_section(record["equal_cost"]))
    else:
        found.append(Section(COST_TITLE, ["Not measured: that needs answers (`study --answers N`)."]))
    return found


def signal_section(record: dict[str, Any]) -> Section:
    """Whether what checkpoints see predicts the true error and a changed answer."""
    signals = record["signals"]
    findings = [
        f"{record['questions']:,} questions; with mapped KV alone the first token changed in "
        f"{record['first_token_changed']:.0%} of them"
        + (f", the answer in {record['answer_changed']:.0%}." if record["answer_changed"] is not None else ".")
    ]
    for key, words in (
        ("spearman_to_true_error", "predicts the true error of a token best"),
        ("auroc_to_changed_first_token", "predicts a changed first token best"),
        ("auroc_to_changed_answer", "predicts a changed answer best"),
    ):
        known = [one for one in signals if one["observable"] and one[key] is not None]
        if known:
            best = max(known, key=lambda one: one[key])
            kind = "Spearman" if key.startswith("spearman") else "AUROC, where 0.5 is chance"
            findings.append(f"What {words}: {SIGNAL_WORDS[best['signal']]}, {best[key]:.2f} ({kind}).")
        else:
            findings.append(f"What {words} cannot be told: too few questions, or almost all of one kind.")
    findings.append(
        "The hidden state at a checkpoint can be held against full prefill only: the map gives keys and values, no states "
        "of the target. Its error tells how far a checkpoint itself can be trusted. The attention's output is that over "
        "the checkpoints alone, the only tokens whose own KV the target has."
    )
    rows = [
        [
            SIGNAL_WORDS.get(one["signal"], one["signal"]),
            figure(one["spearman_to_true_error"]),
            figure(one["spearman_to_kl"]),
            figure(one["auroc_to_changed_first_token"]),
            figure(one["auroc_to_changed_answer"]),
        ]
        for one in signals
    ]
    header = ["signal", "Spearman: true error", "Spearman: KL", "AUROC: first token changed", "AUROC: answer changed"]
    return Section("Do checkpoints predict the damage?", findings, (), [Figures("signals", header, rows)])


def layer_section(record: dict[str, Any]) -> Section:
    """Error by layer and depth."""
    errors, stability = record["true_error_by_layer"], record["stability"]
    lower, upper = stability["lower_half_error"], stability["upper_half_error"]
    findings = ["Squared error of mapped KV, relative to the exact KV; the first layer depends on the tokens alone."]
    if lower is not None and upper is not None:
        which = "lower layers are mapped better" if lower < upper else "lower layers are not mapped better"
        findings.append(
            f"Mean error of the lower half of the mapped layers {lower:.2f}, of the upper half {upper:.2f}: {which} "
            f"(Spearman of layer and error {figure(stability['spearman_layer_to_error'])})."
        )
    lines = [
        Series(name, [(layer, error) for layer, error in enumerate(errors[name]) if error is not None])
        for name in ("keys", "values")
    ]
    plots = [
        (
            "error_by_layer_and_depth",
            heat_map("True error of mapped KV", record["true_error_by_layer_and_depth"], "layer", "depth in the document"),
        ),
        ("error_by_layer", line_chart("True error by layer", "target layer", "relative error", lines)),
    ]  # fmt: skip
    return Section("Are lower layers more stable?", findings, plots)


def kinship_section(kin: list[dict[str, Any]]) -> Section:
    """The maps of several drafts side by side."""
    findings = [
        "Share of the variance of the target's keys and values that a linear map from each draft misses on held-out text; "
        "0 is a perfect map, 1 is no better than the mean."
    ]
    fitted = [one for one in kin if one["target_layers"]]
    means = {one["role"]: mean_error(one) for one in fitted}
    if {"own", "unrelated"} <= means.keys():
        findings.append(
            f"The pair's own draft misses {means['own']:.2f}; one of its shape with random weights {means['unrelated']:.2f}, "
            "which is what the tokens alone tell."
        )
    rows = [
        [
            one["draft"],
            one["role"],
            "same" if one["same_tokenizer"] else "other",
            "same" if one["same_family"] else "other",
            f"{one['layers']} x {one['hidden_size']:,}",
            figure(average(one["key_errors"]), "{:.3f}"),
            figure(average(one["value_errors"]), "{:.3f}"),
        ]
        for one in kin
    ]
    findings += [f"{one['draft']}: {one['reason']}." for one in kin if one["reason"]]
    lines = [
        Series(
            f"{one['draft']} ({one['role']})",
            [
                (layer, (key + value) / 2)
                for layer, key, value in zip(one["target_layers"], one["key_errors"], one["value_errors"], strict=True)
            ],
        )
        for one in fitted
    ]
    plots = [("error_by_draft", line_chart("Error of the map by draft", "target layer", "variance missed", lines))]
    header = ["draft", "role", "tokenizer", "family", "layers x width", "keys missed", "values missed"]
    tables = [Figures("drafts", header, rows), *([missed_by_layer(fitted)] if fitted else [])]
    return Section("How much does kinship matter?", findings, plots if lines else (), tables)


def missed_by_layer(fitted: Sequence[dict[str, Any]]) -> Figures:
    """Keys and values missed in each target layer, a column for each draft; all have the same layers."""
    rows = [
        [str(layer), *(f"{one['key_errors'][place]:.3f} / {one['value_errors'][place]:.3f}" for one in fitted)]
        for place, layer in enumerate(fitted[0]["target_layers"])
    ]
    return Figures("keys / values missed by layer", ["target layer", *(one["draft"] for one in fitted)], rows)


def mean_error(one: dict[str, Any]) -> float:
    return (average(one["key_errors"]) + average(one["value_errors"])) / 2


def average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def repair_section(record: dict[str, Any]) -> Section:
    """What recompute mends: KL and F1 by budget."""
    budgets = record["first_token_by_budget"]
    lines = list(by_order(budgets, "kl_median"))
    start, *_, end = [one for one in budgets if one["chosen_by"] == "risk"]
    findings = [
        f"Median KL of the first token from full prefill: {start['kl_median']:.3f} with checkpoints alone, "
        f"{end['kl_median']:.3f} with {end['recompute']:.0%} of the prompt recomputed."
    ]
    mapped = record["variants"]["mapped only"]["kl_median"]
    for control, name in (("zeros", "zeros"), ("wrong document", "another document's")):
        if control in record["variants"]:
            value = record["variants"][control]["kl_median"]
            verdict = "better" if mapped < value else "no better"
            findings.append(f"Mapped KV alone leaves {mapped:.3f}, {verdict} than {name} in its place ({value:.3f}).")
    for risk, random in paired(budgets):
        better = "less" if risk["kl_median"] < random["kl_median"] else "not less"
        findings.append(
            f"At {risk['recompute']:.0%}, the riskiest chunks leave {risk['kl_median']:.3f}, random ones "
            f"{random['kl_median']:.3f}: choosing by risk leaves {better}."
        )
    chart = line_chart("KL by recompute budget", "share of the prompt recomputed", "median KL, nats", lines, True)
    plots = [("kl_by_budget", chart)]
    rows = (record.get("equal_cost") or {}).get("budgets", ())
    if rows:
        scores = list(by_order([{**row, "recompute": row["budget"]} for row in rows], "f1", ("f1_low", "f1_high")))
        chart = line_chart("F1 by recompute budget", "share of the prompt recomputed", "F1, percent", scores, True)
        plots.append(("f1_by_budget", chart))
    table = [
        [name, figure(one["kl_median"], "{:.3f}"), figure(one["kl_mean"], "{:.3f}"), f"{one['same_first_token']:.0%}"]
        for name, one in record["variants"].items()
    ]
    header = ["cache", "median KL", "mean KL", "first token kept"]
    tables = [Figures("first token", header, table)]
    if rows:
        tables.append(Figures("answers by budget", COST_HEADER, [cost_words(row) for row in rows]))
    return Section("Does recomputing repair it?", findings, plots, tables)


def paired(budgets: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The figures of each budget above 0, spent by risk and at random."""
    by_risk = {one["recompute"]: one for one in budgets if one["chosen_by"] == "risk"}
    for one in budgets:
        if one["chosen_by"] == "random" and one["recompute"]:
            yield by_risk[one["recompute"]], one


def by_order(rows: Sequence[dict[str, Any]], key: str, interval: tuple[str, str] | None = None) -> Iterator[Series]:
    """A series over the budgets for each way to choose; without a budget there is nothing to choose."""
    for order, name in (("risk", "riskiest chunks"), ("random", "random chunks")):
        chosen = sorted(
            (row for row in rows if row["chosen_by"] == order or not row["recompute"]), key=lambda row: row["recompute"]
        )
        chosen = list({row["recompute"]: row for row in chosen}.values())
        points = [(row["recompute"], row[key]) for row in chosen]
        yield Series(name, points, [(row[interval[0]], row[interval[1]]) for row in chosen] if interval else ())


def cost_section(cost: dict[str, Any]) -> Section:
    """The table at equal time to first token, and the duels of draft KV."""
    findings = [
        f"Reference: {cost['reference']}. Equal means a median TTFT within {cost['tolerance']:.0%} of it; controls report "
        "their own. They are timed with all that they do: 'same tokens, rest dropped' maps and checks too, because only "
        "that tells which tokens."
    ]
    rows = {row["name"]: row for row in cost["rows"]}
    for one in cost["tuned"]:
        held = "within" if rows[one["mode"]]["equal_ttft"] else "not within"
        findings.append(
            f"{one['mode']} was given keep {one['keep']:g}, the nearest on the pilot questions; its TTFT over all questions "
            f"is {rows[one['mode']]['ttft_ratio']:.2f} of the reference, {held} the tolerance."
        )
    for one in cost["duels"]:
        findings.append(
            f"{cost['reference']} against {one['against']} (which takes {rows[one['against']]['ttft_ratio']:.2f} of its time): "
            f"F1 {one['difference']:+.1f} [{one['low']:+.1f}, {one['high']:+.1f}], {one['verdict']}."
        )
    table = [cost_words(row) for row in cost["rows"]]
    return Section(COST_TITLE, findings, (), [Figures("answers", COST_HEADER, table)])


def cost_words(row: dict[str, Any]) -> list[str]:
    """One condition's figures under COST_HEADER."""
    return [
        row["name"] if row["keep"] is None else f"{row['name']}, keep {row['keep']:g}",
        str(row["n"]),
        f"{row['f1']:.1f} [{row['f1_low']:.1f}, {row['f1_high']:.1f}]",
        seconds(row["ttft_seconds"]),
        f"{row['ttft_ratio']:.2f}",
        "yes" if row["equal_ttft"] else "no",
        figure(row["first_token_kl"], "{:.3f}"),
        figure(row["gap_recovered"]),
        f"{row['same_answer']:.0%}",
    ]
