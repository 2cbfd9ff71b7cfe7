"""Measures the figures of the README's table: `python -m specprefill_cli.lab.readme_numbers squad11_dev.jsonl.xz`.

Rewrites the table, its plots, and docs/readme-numbers.json with all that was measured. Run it on a quiet machine.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.lab.benchmarks.plot import speedup_plot
from specprefill_cli.lab.benchmarks.prefill import BenchRow, bench_prefill
from specprefill_cli.lab.benchmarks.recall import RecallRow, bench_recall
from specprefill_cli.lab.evaluation import confirming
from specprefill_cli.lab.evaluation.datasets import read_items
from specprefill_cli.lab.evaluation.runner import Row, configurations, rows, run
from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.lab.tables import Columns, host, markdown, versions
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.settings import AUTO, Settings

REPOSITORY = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- figures of python -m specprefill_cli.lab.readme_numbers -->", "<!-- end of the figures -->"
COLUMNS: Columns = {
    "what": lambda row: row["what"],
    "`full`": lambda row: row.get("full", ""),
    "`select`": lambda row: row.get("select", ""),
    "command": lambda row: f"`{row['command']}`",
}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """F1 over `limit` questions with `distractors` other paragraphs; keep: of `select`, None for `auto`."""

    pair: str
    limit: int
    distractors: int = 0
    modes: tuple[str, ...] = ("full", "select")
    keep: float | None = None

    def measure(self, session: Session, base: Settings, questions: Path) -> tuple[dict[str, str], list[Row]]:
        """The cells of the table's row, and all figures."""
        cases = [case.named(session) for case in configurations(self.modes, [self.keep], [base.scorer])]
        items = read_items(questions, self.limit, self.distractors, 0)
        outcome = run(session, items, cases, base.varied(max_new_tokens=32), lambda *_: None)
        measured = rows(outcome.complete(), outcome.kept)
        others = f", among {self.distractors} other paragraphs" if self.distractors else ", one paragraph"
        keep = "auto" if self.keep is None else f"{self.keep:g}"
        selects, command = "select" in self.modes, f"specprefill evaluate {questions.name} --pair {self.pair}"
        command += f" --limit {self.limit}" + f" --distractors {self.distractors}" * bool(self.distractors)
        command += f" --modes {','.join(self.modes)}" + f" --keep {keep}" * selects + " --max-new-tokens 32"
        scores = {row.mode: f"F1 {row.f1:.1f} [{row.f1_low:.1f}, {row.f1_high:.1f}]" for row in measured}
        what = f"`{self.pair}`: answers, SQuAD 1.1 dev{others}, n = {len(items)}" + f", keep {keep}" * selects
        return {"what": what, "command": command, **scores}, measured

    def plot(self, measured: Sequence[Row]) -> str | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Speed:
    """TTFT of a new document; the table has the last length with the first keep ratio. plotted: whether it is drawn."""

    pair: str
    lengths: tuple[int, ...]
    keeps: tuple[float, ...]
    repeat: int
    plotted: bool = False

    def measure(self, session: Session, base: Settings, _questions: Path) -> tuple[dict[str, str], list[BenchRow]]:
        """The cells of the table's row, and all figures."""
        cases = [case.named(session) for case in configurations(("full", "select"), self.keeps, [base.scorer])]
        base = base.varied(max_new_tokens=1)
        measured = bench_prefill(session, self.lengths, cases, self.repeat, base, lambda _text: None)
        last = [row for row in measured if row.length == self.lengths[-1]]
        full = next(row for row in last if row.mode == "full")
        fast = next(row for row in last if row.keep == self.keeps[0])
        command = f"specprefill bench prefill --pair {self.pair} --lengths {','.join(map(str, self.lengths))}"
        command += f" --keep {','.join(f'{keep:g}' for keep in self.keeps)} --repeat {self.repeat} --no-baseline"
        cells = {
            "what": f"`{self.pair}`: TTFT, new document of {full.length:,} tokens, keep {fast.keep:g}",
            "full": f"{full.ttft_seconds:.2g} s",
            "select": f"{fast.ttft_seconds:.2g} s ({fast.speedup:.1f}x)",
        }
        return {**cells, "command": command}, measured

    def plot(self, measured: Sequence[BenchRow]) -> str | None:
        return speedup_plot(measured) if self.plotted else None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How often the kept text holds the answer; the table has the first scorer with the first keep ratio."""

    pair: str
    limit: int
    distractors: int
    scorers: tuple[str, ...]
    keeps: tuple[float, ...]

    def measure(self, session: Session, base: Settings, questions: Path) -> tuple[dict[str, str], list[RecallRow]]:
        """The cells of the table's row, and all figures."""
        items = read_items(questions, self.limit, self.distractors, 0)
        scorers = [SCORERS[name] for name in self.scorers]
        settings = base.varied(mode="select")
        measured = bench_recall(session, items, scorers, self.keeps, settings, lambda _text: None)
        first = measured[0]
        command = f"specprefill bench recall {questions.name} --pair {self.pair} --limit {self.limit}"
        command += f" --distractors {self.distractors} --scorer {','.join(self.scorers)}"
        command += f" --keep {','.join(f'{keep:g}' for keep in self.keeps)} --no-baseline"
        cells = {
            "what": f"`{self.pair}`: answers in the kept text, among {self.distractors} others, n = {first.n}, "
            f"keep {first.keep:g}",
            "full": "100 %",
            "select": f"{first.recall:.1f} % [{first.recall_low:.1f}, {first.recall_high:.1f}]",
        }
        return {**cells, "command": command}, measured

    def plot(self, measured: Sequence[RecallRow]) -> str:
        series = [self.series(name, [row for row in measured if row.scorer == name]) for name in self.scorers]
        title = f"Answers in the text that {self.pair} reads, by scorer"
        return line_plot(title, "keep ratio", "answers kept, %", series, x_percent=True)

    def series(self, name: str, measured: Iterable[RecallRow]) -> Series:
        """The line of one scorer."""
        ordered = sorted(measured, key=lambda row: row.keep or 0.0)
        return Series(
            name,
            [(row.keep or 0.0, row.recall) for row in ordered],
            intervals=[(row.recall_low, row.recall_high) for row in ordered],
        )


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """How often full prefill confirms the answer of `select`; the table has the first keep ratio."""

    pair: str
    limit: int
    distractors: int
    keeps: tuple[float, ...]

    def measure(
        self, session: Session, base: Settings, questions: Path
    ) -> tuple[dict[str, str], list[confirming.ConfirmedRow]]:
        """The cells of the table's row, and all figures."""
        items = read_items(questions, self.limit, self.distractors, 0)
        settings = base.varied(max_new_tokens=32)
        outcomes = confirming.measure(session, items, self.keeps, settings, lambda _outcome: None)
        measured = confirming.figures(outcomes)
        first = measured[0]
        command = f"specprefill evaluate {questions.name} --pair {self.pair} --limit {self.limit}"
        command += f" --distractors {self.distractors} --confirm --dtype float32 --max-new-tokens 32"
        command += f" --keep {','.join(f'{keep:g}' for keep in self.keeps)}"
        cells = {
            "what": f"`{self.pair}`: answers that full prefill confirms, n = {first.n}, keep {first.keep:g}",
            "full": f"{first.full_seconds:.2g} s",
            "select": f"{first.confirmed:.0f} % [{first.confirmed_low:.0f}, {first.confirmed_high:.0f}]; first token "
            f"{first.ttft_seconds:.2g} s, confirmed {first.confirmed_seconds:.2g} s",
        }
        return {**cells, "command": command}, measured

    def plot(self, measured: Sequence[confirming.ConfirmedRow]) -> str:
        ordered = sorted(measured, key=lambda row: row.keep or 0.0)
        line = Series(
            "confirmed",
            [(row.keep or 0.0, row.confirmed) for row in ordered],
            intervals=[(row.confirmed_low, row.confirmed_high) for row in ordered],
        )
        sooner = Series(
            "time to first token, % of the time to full prefill's answer",
            [(row.keep or 0.0, 100 * row.ttft_seconds / row.full_seconds) for row in ordered],
        )
        title = f"Answers of select that full prefill confirms, pair {self.pair}"
        return line_plot(title, "keep ratio", "%", [line, sooner], x_percent=True)


Step = Answers | Speed | Kept | Confirmed
# Steps that are drawn, and their files in docs/.
PLOTS: Mapping[type, str] = {Speed: "speedup.svg", Kept: "answers-kept.svg", Confirmed: "confirmed.svg"}
PLAN: tuple[Step, ...] = (
    Answers(pair="smollm2", limit=500, modes=("full",)),
    Answers(pair="smollm2", limit=60, distractors=19, keep=0.1),
    Answers(pair="smollm2", limit=200, distractors=19, modes=("select",)),
    Speed(pair="smollm2", lengths=(2_048, 4_096, 8_000), keeps=(0.05, 0.1, 0.2), repeat=3),
    Kept(
        pair="smollm2", limit=100, distractors=19, scorers=("blend", "heads", "lexical"), keeps=(0.05, 0.02, 0.1, 0.2)
    ),
    Speed(pair="tiny", lengths=(4_096, 8_192, 16_000), keeps=(0.1, 0.2), repeat=5, plotted=True),
    Confirmed(pair="tiny", limit=40, distractors=19, keeps=(0.1, 0.05, 0.2, 0.3)),
)


def measure(plan: Sequence[Step], questions: Path, folder: Path) -> dict[str, Any]:
    """All figures as JSON; plots go to `folder`. Raises SpecprefillError where a pair cannot be loaded."""
    table = []
    for step in plan:
        base = Settings(pair=step.pair, scorer=AUTO)
        cells, measured = step.measure(open_session(base, draft=True), base, questions)
        print(cells, file=sys.stderr)
        table.append({**cells, "measured": [asdict(row) for row in measured]})
        # Each step draws the rows that it measured.
        if svg := step.plot(measured):  # type: ignore[arg-type]
            (folder / PLOTS[type(step)]).write_text(svg, encoding="utf-8")
    return {"rows": table, "host": host(), "versions": versions()}


def with_table(readme: str, figures: Mapping[str, Any]) -> str:
    """The README with its table replaced."""
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
