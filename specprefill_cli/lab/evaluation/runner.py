"""Running a question set through modes, and the row of figures for each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from specprefill_cli.answering.answer import Answer
from specprefill_cli.answering.metrics import bootstrap_interval, contains_answer, exact_match, f1
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings


@dataclass(frozen=True)
class Configuration:
    """One line of the evaluation: a mode with its keep ratio and scorer (None where the mode has none)."""

    mode: str
    keep: float | None = None
    scorer: str | None = None

    def settings(self, base: Settings) -> Settings:
        settings = replace(base, mode=self.mode)
        return settings if self.scorer is None else replace(settings, keep=self.keep, scorer=self.scorer)

    def named(self, session: Session) -> Configuration:
        """The same with the scorer's own name in place of `auto`."""
        if self.scorer is None:
            return self
        return replace(self, scorer=session.with_scorer(replace(Settings(), scorer=self.scorer)).scorer)


@dataclass(frozen=True)
class Row:
    """Figures of one configuration over n questions; shares in percent, differences paired with `full` (None without).

    right: answers that equal or contain a reference
    ttft_ratio: median of the TTFT of `full` over that of this row, so that more is faster
    """

    mode: str
    keep: float | None
    scorer: str | None
    n: int
    em: float
    f1: float
    f1_low: float
    f1_high: float
    f1_delta: float | None
    f1_delta_low: float | None
    f1_delta_high: float | None
    ttft_seconds: float
    ttft_ratio: float | None
    kept_ratio: float
    right: int


def configurations(modes: Sequence[str], keeps: Sequence[float | None], scorers: Sequence[str]) -> list[Configuration]:
    """`full` once, every other mode with each scorer, and with each keep ratio where it takes one."""
    rows = []
    for mode in modes:
        if mode == "full":
            rows.append(Configuration(mode))
        else:
            own = keeps if mode not in MODES or MODES[mode].uses_keep else (None,)
            rows += [Configuration(mode, keep, scorer) for scorer in scorers for keep in own]
    return rows


@dataclass
class Run:
    """What came of a question set: the answers of each configuration, to the same questions in the same order.

    left_out: questions whose prompts are too long; interrupted: whether Ctrl-C ended it before the last question
    """

    results: dict[Configuration, list[tuple[Item, Answer]]]
    left_out: list[tuple[Item, PromptTooLong]] = field(default_factory=list)
    interrupted: bool = False

    def complete(self) -> dict[Configuration, list[tuple[Item, Answer]]]:
        """The answers; raises PromptTooLong for the first question left out, or KeyboardInterrupt."""
        if self.left_out:
            raise self.left_out[0][1]
        if self.interrupted:
            raise KeyboardInterrupt
        return self.results


def run(
    session: Session,
    items: Iterable[Item],
    wanted: Sequence[Configuration],
    base: Settings,
    step: Callable[[int, Item, Configuration, Answer], None],
) -> Run:
    """Ask every question in every configuration, question by question, so that drift of the machine hits all alike.

    step: called with each answer, and the number of questions before it, when its question has all answers

    Raises SpecprefillError for what would keep other questions from being asked too.
    """
    found = Run({configuration: [] for configuration in wanted})
    for number, item in enumerate(items):
        answers: dict[Configuration, Answer] = {}
        try:
            for configuration in wanted:
                answers[configuration] = ask(session, item, configuration.settings(base))
        except PromptTooLong as error:
            found.left_out.append((item, error))
            continue
        except KeyboardInterrupt:
            found.interrupted = True
            break
        for configuration, answer in answers.items():
            found.results[configuration].append((item, answer))
            step(number, item, configuration, answer)
    return found


def ask(session: Session, item: Item, settings: Settings) -> Answer:
    """One answer; its caches go with it: they must not stand in the memory that the next answer is measured in."""
    return session.ask(item.collection, item.question, settings, item.identifier).finished()


def rows(results: dict[Configuration, list[tuple[Item, Answer]]]) -> list[Row]:
    """One row of figures for each configuration."""
    full = next((answers for configuration, answers in results.items() if configuration.mode == "full"), None)
    return [row(configuration, answers, full) for configuration, answers in results.items()]


def row(
    configuration: Configuration, answers: Sequence[tuple[Item, Answer]], full: Sequence[tuple[Item, Answer]] | None
) -> Row:
    scores = [100 * f1(answer.answer, item.answers) for item, answer in answers]
    matches = [100 * exact_match(answer.answer, item.answers) for item, answer in answers]
    low, high = bootstrap_interval(scores)
    delta = delta_low = delta_high = ratio = None
    if full is not None and configuration.mode != "full":
        differences = [
            score - 100 * f1(answer.answer, item.answers) for score, (item, answer) in zip(scores, full, strict=True)
        ]
        delta = statistics.fmean(differences)
        delta_low, delta_high = bootstrap_interval(differences)
        ratio = statistics.median(
            plain.ttft_seconds / answer.ttft_seconds for (_, plain), (_, answer) in zip(full, answers, strict=True)
        )
    return Row(
        mode=configuration.mode,
        keep=configuration.keep,
        scorer=configuration.scorer,
        n=len(answers),
        em=statistics.fmean(matches),
        f1=statistics.fmean(scores),
        f1_low=low,
        f1_high=high,
        f1_delta=delta,
        f1_delta_low=delta_low,
        f1_delta_high=delta_high,
        ttft_seconds=statistics.median(answer.ttft_seconds for _, answer in answers),
        ttft_ratio=ratio,
        kept_ratio=statistics.fmean(answer.kept_ratio for _, answer in answers),
        right=sum(contains_answer(answer.answer, item.answers) for item, answer in answers),
    )
