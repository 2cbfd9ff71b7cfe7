"""Asks a question set in several configurations, and makes a row of figures for each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specprefill_cli.answering.resolve import resolve_scorer
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import answer_kept, evidence_figures, likely_text
from specprefill_cli.lab.evaluation.metrics import contains_answer, exact_match, f1
from specprefill_cli.lab.evaluation.statistics import mean_figures, share_figures
from specprefill_cli.lab.tables import Columns, Row, figure, keep_text
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.record import BASELINE, Record
from specprefill_cli.settings import Settings

AnsweredItems = list[tuple[Item, Record]]
# A question and why it could not be asked.
LeftOut = tuple[Item, PromptTooLong]
COLUMNS: Columns = {
    "mode": figure("mode"),
    "keep": keep_text,
    "scorer": figure("scorer"),
    "n": figure("n"),
    "right": figure("right"),
    "EM": figure("em", ".1f"),
    "F1 [95 %]": figure("f1", ".1f", interval=True),
    "answer kept [95 %]": figure("answer_kept", ".1f", interval=True),
    "in passages": lambda row: figure("passage_recall", ".1f")(row["evidence"]),
    "likely, right": lambda row: likely_text(row["evidence"]),
    "F1 - full [95 %]": figure("f1_delta", "+.1f", interval=True),
    "kept": figure("kept_ratio", ".2f"),
    "TTFT": lambda row: f"{row['ttft_seconds'] * 1000:,.0f} ms",
    "x full": figure("ttft_ratio", ".2f"),
}


@dataclass(frozen=True)
class Configuration:
    """How to answer questions: a mode with its keep ratio (None: `auto`) and scorer, where it has them."""

    mode: str
    keep: float | None = None
    scorer: str | None = None

    def settings(self, base: Settings) -> Settings:
        """The base settings with this configuration's values."""
        overrides: dict[str, Any] = {"mode": self.mode}
        if may_use_keep(self.mode):
            overrides["keep"] = self.keep
        if self.scorer is not None:
            overrides["scorer"] = self.scorer
        return base.varied(**overrides)

    def resolve(self, session: Session) -> Configuration:
        """Resolve the scorer `auto` for the session's pair."""
        if self.scorer is None:
            return self
        return replace(self, scorer=resolve_scorer(self.scorer, session.pair, self.mode))


def may_use_keep(mode: str) -> bool:
    """Whether a mode may use a keep ratio. True for `auto`: it is not registered, and may choose such a mode."""
    return mode not in MODES or MODES[mode].uses_keep


def may_use_scorer(mode: str) -> bool:
    """Whether a mode may score the document. True for `auto`, which may choose such a mode."""
    return mode not in MODES or MODES[mode].uses_draft


def configurations(modes: Sequence[str], keeps: Sequence[float | None], scorers: Sequence[str]) -> list[Configuration]:
    """Combine every mode with each scorer and keep ratio that it uses."""
    return [
        Configuration(mode, keep, scorer)
        for mode in modes
        for scorer in (scorers if may_use_scorer(mode) else (None,))
        for keep in (keeps if may_use_keep(mode) else (None,))
    ]


@dataclass
class Run:
    """The answers of each configuration to the same questions in the same order.

    kept: `answer_kept` of each question, in the same order
    left_out: questions whose prompts are too long; interrupted: Ctrl-C ended the run before the last question
    """

    results: dict[Configuration, AnsweredItems]
    kept: dict[Configuration, list[bool | None]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    interrupted: bool = False


def run(
    session: Session,
    items: Iterable[Item],
    cases: Sequence[Configuration],
    base: Settings,
    step: Callable[[int, Item, Configuration, Record], None],
) -> Run:
    """Ask every question in every configuration, question by question, so that machine drift affects all equally.

    step: called with the question's number and each of its answers, once it has all answers

    Raises SpecprefillError for a failure that would affect other questions too.
    """
    outcome = Run({case: [] for case in cases}, {case: [] for case in cases})
    for number, item in enumerate(items):
        try:
            answers = {case: ask_and_check(session, item, case.settings(base)) for case in cases}
        except PromptTooLong as error:
            outcome.left_out.append((item, error))
            continue
        except KeyboardInterrupt:
            outcome.interrupted = True
            break
        for case, (answer, kept) in answers.items():
            outcome.results[case].append((item, answer))
            outcome.kept[case].append(kept)
            step(number, item, case, answer)
    return outcome


def ask_and_check(session: Session, item: Item, settings: Settings) -> tuple[Record, bool | None]:
    """Answer a question; return the answer, and whether the target computed text that holds a reference answer.

    Frees the caches, so that they do not count in the next answer's memory.
    """
    stream = session.ask(item.collection, item.question, settings)
    return stream.finished(), answer_kept(item, stream.prefilled.plan, stream.request.prompt.offsets)


def rows(
    results: Mapping[Configuration, AnsweredItems], kept: Mapping[Configuration, Sequence[bool | None]] | None = None
) -> list[Row]:
    """A row of figures for each configuration, none without answers; kept: as in `Run`."""
    kept = kept or {}
    results = {case: answers for case, answers in results.items() if answers}
    full = next((answers for case, answers in results.items() if case.mode == BASELINE), None)
    return [row_of(case, answers, full, kept.get(case, ())) for case, answers in results.items()]


def row_of(case: Configuration, answers: AnsweredItems, full: AnsweredItems | None, kept: Sequence[bool | None]) -> Row:
    """The figures of a configuration over n questions; EM and F1 in percent, with 95 % intervals.

    full: the baseline's answers to the same questions; kept: as in `Run`

    f1_delta: mean difference from `full` on the same questions; right: answers that contain a reference
    ttft_ratio: median of the TTFT of `full` over this configuration's; None without `full`, like the differences
    answer_kept: among questions whose answer stands in their own text, percentage for which the target computed all
        tokens of such a place; None without such questions
    """
    answer_pairs = [] if full is None or case.mode == BASELINE else list(zip(full, answers, strict=True))
    ratios = [plain.ttft_seconds / answer.ttft_seconds for (_, plain), (_, answer) in answer_pairs]
    return {
        "mode": case.mode,
        "keep": case.keep,
        "scorer": case.scorer,
        "n": len(answers),
        "em": statistics.fmean(100 * exact_match(answer.answer, item.answers) for item, answer in answers),
        **mean_figures("f1", [f1_percent(pair) for pair in answers]),
        **mean_figures("f1_delta", [f1_percent(ours) - f1_percent(base) for base, ours in answer_pairs]),
        "ttft_seconds": statistics.median(answer.ttft_seconds for _, answer in answers),
        "ttft_ratio": statistics.median(ratios) if ratios else None,
        "kept_ratio": statistics.fmean(answer.kept_ratio for _, answer in answers),
        "right": sum(contains_answer(answer.answer, item.answers) for item, answer in answers),
        **share_figures("answer_kept", [value for value in kept if value is not None]),
        "evidence": evidence_figures(answers),
    }


def f1_percent(answered: tuple[Item, Record]) -> float:
    """The F1 of an answer, in percent."""
    item, answer = answered
    return 100 * f1(answer.answer, item.answers)
