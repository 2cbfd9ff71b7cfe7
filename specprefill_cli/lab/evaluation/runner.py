"""Asking a question set in several configurations, and a row of figures for each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from specprefill_cli.answering.resolve import resolve_scorer
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import EvidenceFigures, answer_kept, evidence_figures
from specprefill_cli.lab.evaluation.metrics import contains_answer, exact_match, f1
from specprefill_cli.lab.evaluation.statistics import mean_interval
from specprefill_cli.lab.session import Control
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.record import BASELINE, Record
from specprefill_cli.settings import Settings

AnsweredItems = list[tuple[Item, Record]]


@dataclass(frozen=True)
class Configuration:
    """One way to answer questions: a mode with its keep ratio (None: `auto`) and scorer, where it has them.

    control: prefills in place of the mode; by_draft: the draft answers alone, as a target
    """

    mode: str
    keep: float | None = None
    scorer: str | None = None
    _: KW_ONLY
    name: str = ""
    control: Control | None = None
    by_draft: bool = False

    @property
    def label(self) -> str:
        """The name, or the mode if there is none."""
        return self.name or self.mode

    def settings(self, base: Settings) -> Settings:
        """The base settings with this configuration's values."""
        values: dict[str, Any] = {"mode": self.mode}
        if may_use_keep(self.mode):
            values["keep"] = self.keep
        if self.scorer is not None:
            values["scorer"] = self.scorer
        return base.varied(**values)

    def named(self, session: Session) -> Configuration:
        """The configuration with the scorer `auto` resolved for the session's pair."""
        if self.scorer is None:
            return self
        return replace(self, scorer=resolve_scorer(self.scorer, session.pair, self.mode))


def may_use_keep(mode: str) -> bool:
    """Whether a mode has a keep ratio; `auto`, which is no registered mode, may choose one that has."""
    return mode not in MODES or MODES[mode].uses_keep


def may_use_scorer(mode: str) -> bool:
    """Whether a mode scores the document; `auto` may choose one that does."""
    return mode not in MODES or MODES[mode].uses_draft


def configurations(modes: Sequence[str], keeps: Sequence[float | None], scorers: Sequence[str]) -> list[Configuration]:
    """Every mode with each scorer and each keep ratio, where it uses them."""
    return [
        Configuration(mode, keep, scorer)
        for mode in modes
        for scorer in (scorers if may_use_scorer(mode) else (None,))
        for keep in (keeps if may_use_keep(mode) else (None,))
    ]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures of one configuration over n questions; EM and F1 in percent, with 95 % intervals.

    f1_delta: mean difference from `full` on the same questions; right: answers that contain a reference
    ttft_ratio: median of the TTFT of `full` divided by this one's; None without `full`, like the differences
    answer_kept: percentage of the questions whose answer stands in their own text for which the target computed all
    tokens of one such place; None without such questions
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
    answer_kept: float | None
    answer_kept_low: float | None
    answer_kept_high: float | None
    evidence: EvidenceFigures


@dataclass
class Run:
    """The answers of each configuration to the same questions in the same order.

    kept: in the same order, whether the answer was kept, as `answer_kept` defines it
    left_out: questions whose prompts are too long; interrupted: Ctrl-C ended the run before the last question
    """

    results: dict[Configuration, AnsweredItems]
    kept: dict[Configuration, list[bool | None]] = field(default_factory=dict)
    left_out: list[tuple[Item, PromptTooLong]] = field(default_factory=list)
    interrupted: bool = False

    def complete(self) -> dict[Configuration, AnsweredItems]:
        """The answers. Raises PromptTooLong if a question was left out, KeyboardInterrupt if interrupted."""
        if self.left_out:
            raise self.left_out[0][1]
        if self.interrupted:
            raise KeyboardInterrupt
        return self.results


def run(
    session: Session,
    items: Iterable[Item],
    asked: Sequence[Configuration],
    base: Settings,
    step: Callable[[int, Item, Configuration, Record], None],
) -> Run:
    """Ask every question in every configuration, question by question, so that machine drift affects all alike.

    step: called with the question's number and each of its answers, once it has all of them

    Raises SpecprefillError for a failure that other questions would meet too.
    """
    outcome = Run({configuration: [] for configuration in asked}, {configuration: [] for configuration in asked})
    for number, item in enumerate(items):
        try:
            answers = {case: ask_and_check(session, item, case.settings(base)) for case in asked}
        except PromptTooLong as error:
            outcome.left_out.append((item, error))
            continue
        except KeyboardInterrupt:
            outcome.interrupted = True
            break
        for configuration, (answer, kept) in answers.items():
            outcome.results[configuration].append((item, answer))
            outcome.kept[configuration].append(kept)
            step(number, item, configuration, answer)
    return outcome


def ask(session: Session, item: Item, settings: Settings) -> Record:
    """One answer; its caches are freed, so that they do not count in the next answer's memory."""
    return ask_and_check(session, item, settings)[0]


def ask_and_check(session: Session, item: Item, settings: Settings) -> tuple[Record, bool | None]:
    """One answer, and whether the target computed the text that holds the right one."""
    stream = session.ask(item.collection, item.question, settings)
    return stream.finished(), answer_kept(item, stream.prefilled.plan, stream.request.prompt.offsets)


def rows(
    results: dict[Configuration, AnsweredItems], kept: Mapping[Configuration, Sequence[bool | None]] | None = None
) -> list[Row]:
    """One row of figures for each configuration; kept: as in `Run`."""
    kept = {} if kept is None else kept
    full = next((answers for configuration, answers in results.items() if configuration.mode == BASELINE), None)
    return [row(case, answers, full, kept.get(case, ())) for case, answers in results.items()]


def row(
    configuration: Configuration,
    answers: AnsweredItems,
    full: AnsweredItems | None,
    kept: Sequence[bool | None] = (),
) -> Row:
    """The figures of one configuration; full: the baseline's answers to the same questions; kept: as in `Run`."""
    scores = [100 * f1(answer.answer, item.answers) for item, answer in answers]
    mean, low, high = mean_interval(scores)
    delta = delta_low = delta_high = ratio = None
    if full is not None and configuration.mode != BASELINE:
        baseline = [100 * f1(answer.answer, item.answers) for item, answer in full]
        differences = [score - other for score, other in zip(scores, baseline, strict=True)]
        delta, delta_low, delta_high = mean_interval(differences)
        ratio = statistics.median(
            plain.ttft_seconds / answer.ttft_seconds for (_, plain), (_, answer) in zip(full, answers, strict=True)
        )
    recalls = [100.0 * value for value in kept if value is not None]
    recall, recall_low, recall_high = mean_interval(recalls) if recalls else (None, None, None)
    return Row(
        mode=configuration.mode,
        keep=configuration.keep,
        scorer=configuration.scorer,
        n=len(answers),
        em=statistics.fmean(100 * exact_match(answer.answer, item.answers) for item, answer in answers),
        f1=mean,
        f1_low=low,
        f1_high=high,
        f1_delta=delta,
        f1_delta_low=delta_low,
        f1_delta_high=delta_high,
        ttft_seconds=statistics.median(answer.ttft_seconds for _, answer in answers),
        ttft_ratio=ratio,
        kept_ratio=statistics.fmean(answer.kept_ratio for _, answer in answers),
        right=sum(contains_answer(answer.answer, item.answers) for item, answer in answers),
        answer_kept=recall,
        answer_kept_low=recall_low,
        answer_kept_high=recall_high,
        evidence=evidence_figures(answers),
    )
