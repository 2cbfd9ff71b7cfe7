"""Renders a study's figures: tables for a terminal, and plots."""

from functools import partial

from rich.console import Group

from specprefill_cli.lab.evaluation.statistics import FEWEST_QUESTIONS, TOO_FEW
from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.lab.study.conditions import KEEPS, MAPPED, RECOMPUTED
from specprefill_cli.lab.study.question import FULL
from specprefill_cli.lab.tables import Columns, Row, cells, figure, rich_table
from specprefill_cli.reporting.text import plain

interval = partial(figure, interval=True, unknown="-")
CONDITIONS: Columns = {
    "cache": figure("name"),
    "n": figure("n"),
    "KL [95 %]": interval("kl", ".2f"),
    "answer changed, %": interval("changed", ".0f"),
    "F1": interval("f1", ".1f"),
    "- full": interval("f1_delta", "+.1f"),
    "time / full": figure("time_ratio", ".2f", unknown="-"),
    "KL - select's at equal time": interval("kl_select", "+.2f"),
    "F1 - select's": interval("f1_select", "+.1f"),
}
CHOOSERS: Columns = {
    "scorer": figure("name"),
    "keep": figure("keep", "g"),
    "n": figure("n"),
    "answer kept, % [95 %]": interval("kept", ".1f"),
}
SIGNALS: Columns = {
    "signal": figure("name"),
    "changed": lambda row: f"{row['changed']} of {row['n']}",
    "AUROC [95 %]": interval("auroc", ".2f"),
}
DRIFT: Columns = {
    "cache": figure("name"),
    "tokens": figure("tokens"),
    "n": figure("n"),
    "answer differs by then, % [95 %]": interval("diverged", ".0f"),
    "KL there": interval("kl", ".2f"),
}
# The lines of the plot of KL against time.
LINES = {"select, bundled chooser": [f"select {keep:g}" for keep in KEEPS], "draft KV": [MAPPED, RECOMPUTED]}


def study_view(record: Row) -> Group:
    """The tables of a study, for a terminal."""
    title = f"{record['questions']:,} questions, prompts of about {record['prompt_tokens']:,.0f} tokens"
    tables = [("conditions", CONDITIONS), ("choosers", CHOOSERS), ("signals", SIGNALS), ("drift", DRIFT)]
    notes = [f"No verdicts: {TOO_FEW}."] if record["questions"] < FEWEST_QUESTIONS else []
    return Group(
        plain(title, "bold"),
        *map(plain, notes),
        *(rich_table(list(columns), cells(record[name], columns), name) for name, columns in tables if record[name]),
    )


def study_plots(record: Row) -> dict[str, str]:
    """Every plot as SVG, by file name without suffix."""
    layers = [Series(part, list(enumerate(errors))) for part, errors in record["errors"].items()]
    timed = [row for row in record["conditions"] if row["seconds"] is not None]
    lines = [
        Series(name, sorted((row["time_ratio"], row["kl"]) for row in timed if row["name"] in names))
        for name, names in LINES.items()
    ]
    time_label = f"time to the first token, as a share of {FULL}"
    return {
        "error_by_layer": line_plot("Error of mapped KV", "target layer", "relative squared error", layers),
        "kl_by_time": line_plot("KL of the first token", time_label, "mean KL, nats", lines),
    }
