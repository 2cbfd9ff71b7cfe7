"""Measures the figures of the README's table: `python -m specprefill_cli.lab.readme_numbers squad11_dev.jsonl.xz`.

Runs the commands that the table names, and rewrites the table, its plots, and docs/readme-numbers.json with all
measurements. Run it on a quiet machine.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from specprefill_cli.lab.benchmarks.prefill import speedup_plot
from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.lab.tables import Columns, Row, host, markdown, versions

REPOSITORY = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- figures of python -m specprefill_cli.lab.readme_numbers -->", "<!-- end of the figures -->"
COLUMNS: Columns = {
    "what": lambda row: row["what"],
    "`full`": lambda row: row.get("full", ""),
    "`select`": lambda row: row.get("select", ""),
    "command": lambda row: f"`{row['command']}`",
}
# Runs a command of specprefill and returns its output.
Run = Callable[[Sequence[str]], str]


def answers(rows: Sequence[Row]) -> Row:
    """F1 of each mode."""
    return {row["mode"]: f"F1 {row['f1']:.1f} [{row['f1_low']:.1f}, {row['f1_high']:.1f}]" for row in rows}


def speed(rows: Sequence[Row]) -> Row:
    """TTFT at the last length with the first keep ratio."""
    full, fast, *_ = [row for row in rows if row["length"] == rows[-1]["length"]]
    return {"full": f"{full['ttft_seconds']:.2g} s", "select": f"{fast['ttft_seconds']:.2g} s ({fast['speedup']:.1f}x)"}


def recall(rows: Sequence[Row]) -> Row:
    """How often the text kept by the first scorer at the first keep ratio holds the answer."""
    first = rows[0]
    return {
        "full": "100 %",
        "select": f"{first['recall']:.1f} % [{first['recall_low']:.1f}, {first['recall_high']:.1f}]",
    }


def confirmed(rows: Sequence[Row]) -> Row:
    """How often and how soon full prefill confirms the answer of `select`, at the first keep ratio."""
    first = rows[0]
    return {
        "full": f"{first['full_seconds']:.2g} s",
        "select": f"{first['confirmed']:.0f} % [{first['confirmed_low']:.0f}, {first['confirmed_high']:.0f}]; first token "
        f"{first['ttft_seconds']:.2g} s, confirmed {first['confirmed_seconds']:.2g} s",
    }


def interval_line(name: str, rows: Sequence[Row], key: str) -> Series:
    """A percentage with its interval against the keep ratio."""
    ordered = sorted(rows, key=lambda row: row["keep"])
    intervals = [(row[f"{key}_low"], row[f"{key}_high"]) for row in ordered]
    return Series(name, [(row["keep"], row[key]) for row in ordered], intervals=intervals)


def recall_plot(rows: Sequence[Row]) -> str:
    """Plot answers in the kept text against the keep ratio, by scorer, as SVG."""
    scorers = dict.fromkeys(row["scorer"] for row in rows)
    lines = [interval_line(name, [row for row in rows if row["scorer"] == name], "recall") for name in scorers]
    title = "Answers in the text that smollm2 reads, by scorer"
    return line_plot(title, "keep ratio", "answers kept, %", lines, x_percent=True)


def confirmed_plot(rows: Sequence[Row]) -> str:
    """Plot confirmed answers and the time to first token against the keep ratio, as SVG."""
    sooner = Series(
        "time to first token, % of the time to full prefill's answer",
        sorted((row["keep"], 100 * row["ttft_seconds"] / row["full_seconds"]) for row in rows),
    )
    lines = [interval_line("confirmed", rows, "confirmed"), sooner]
    return line_plot(
        "Answers of select that full prefill confirms, pair tiny", "keep ratio", "%", lines, x_percent=True
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A row of the table. what: text of its first cell, `{n}` for the first result's n; plot: file in docs/, and its function."""

    what: str
    command: str
    cells: Callable[[Sequence[Row]], Row]
    plot: tuple[str, Callable[[Sequence[Row]], str]] | None = None


EVALUATE, PREFILL = "specprefill evaluate {questions} --pair", "specprefill bench prefill --pair"
PLAN: tuple[Step, ...] = (
    Step(
        what="`smollm2`: answers, SQuAD 1.1 dev, one paragraph, n = {n}",
        command=f"{EVALUATE} smollm2 --limit 500 --modes full --max-new-tokens 32",
        cells=answers,
    ),
    Step(
        what="`smollm2`: answers, SQuAD 1.1 dev, among 19 other paragraphs, n = {n}, keep 0.1",
        command=f"{EVALUATE} smollm2 --limit 60 --distractors 19 --modes full,select --keep 0.1 --max-new-tokens 32",
        cells=answers,
    ),
    Step(
        what="`smollm2`: answers, SQuAD 1.1 dev, among 19 other paragraphs, n = {n}, keep auto",
        command=f"{EVALUATE} smollm2 --limit 200 --distractors 19 --modes select --keep auto --max-new-tokens 32",
        cells=answers,
    ),
    Step(
        what="`smollm2`: TTFT, new document of 8,000 tokens, keep 0.05",
        command=f"{PREFILL} smollm2 --lengths 2048,4096,8000 --keep 0.05,0.1,0.2 --repeat 3 --no-baseline",
        cells=speed,
    ),
    Step(
        what="`smollm2`: answers in the kept text, among 19 others, n = {n}, keep 0.05",
        command="specprefill bench recall {questions} --pair smollm2 --limit 100 --distractors 19 "
        "--scorer blend,heads,lexical --keep 0.05,0.02,0.1,0.2 --no-baseline",
        cells=recall,
        plot=("answers-kept.svg", recall_plot),
    ),
    Step(
        what="`tiny`: TTFT, new document of 16,000 tokens, keep 0.1",
        command=f"{PREFILL} tiny --lengths 4096,8192,16000 --keep 0.1,0.2 --repeat 5 --no-baseline",
        cells=speed,
        plot=("speedup.svg", speedup_plot),
    ),
    Step(
        what="`tiny`: answers that full prefill confirms, n = {n}, keep 0.1",
        command=f"{EVALUATE} tiny --limit 40 --distractors 19 --confirm --dtype float32 --max-new-tokens 32 "
        "--keep 0.1,0.05,0.2,0.3",
        cells=confirmed,
        plot=("confirmed.svg", confirmed_plot),
    ),
)


def run_command(arguments: Sequence[str]) -> str:
    """Run a command of specprefill in a new process. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", "specprefill_cli", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def measure(plan: Sequence[Step], questions: Path, folder: Path, run: Run = run_command) -> dict[str, Any]:
    """Measure all figures and return them as JSON values; write the plots to `folder`."""
    table = []
    for step in plan:
        arguments = shlex.split(step.command.format(questions=shlex.quote(str(questions))))[1:]
        rows = json.loads(run([*arguments, "--json", "--quiet"]))["rows"]
        cells = {"what": step.what.format(n=rows[0].get("n")), **step.cells(rows)}
        cells["command"] = step.command.format(questions=questions.name)
        print(cells, file=sys.stderr)
        table.append({**cells, "measured": rows})
        if step.plot is not None:
            name, draw = step.plot
            (folder / name).write_text(draw(rows), encoding="utf-8")
    return {"rows": table, "host": host(), "versions": versions()}


def with_table(readme: str, figures: Mapping[str, Any]) -> str:
    """Replace the table in the README's text."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _match: f"{BEGIN}\n{markdown(figures['rows'], COLUMNS)}{END}", readme)


def main(
    questions: Annotated[Path, typer.Argument(help="SQuAD 1.1 dev as JSONL (or .xz).")],
    folder: Annotated[Path, typer.Option(help="The repository.")] = REPOSITORY,
) -> None:
    """Measure the figures of the README's table, and rewrite the table, its plots and docs/readme-numbers.json."""
    figures = measure(PLAN, questions, folder / "docs")
    (folder / "docs" / "readme-numbers.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    readme = folder / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
