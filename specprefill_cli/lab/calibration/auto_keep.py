"""How much of the importance mass `--keep auto` must hold, chosen by the quality of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specprefill_cli.answering.session import Session
from specprefill_cli.errors import PromptTooLong, SpecprefillError
from specprefill_cli.lab.calibration.heads import HELD_OUT, usable_cases
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.runner import AnsweredItems, Configuration, ask, row
from specprefill_cli.lab.session import check_context, short_answers
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scoring_heads import ScoringHeads
from specprefill_cli.settings import Settings

# Candidate ratios of the importance mass.
MASSES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
# The F1 that a mass must reach, relative to that of `full`.
ENOUGH = 0.99
FULL, AUTO_KEEP = Configuration("full"), Configuration("select", None, "heads")


@dataclass(frozen=True)
class MassResult:
    """What `--keep auto` gave when it held this ratio of the mass: mean F1 in percent and mean kept ratio."""

    mass: float
    f1: float
    kept_ratio: float


@dataclass(frozen=True)
class AutoKeep:
    """The outcome of tuning `--keep auto`.

    full: mean F1 of mode `full` in percent; results: by mass, ascending
    mass: the smallest that sufficed, None if no answer had a correct word
    """

    questions: int
    full: float
    results: tuple[MassResult, ...]
    mass: float | None

    def applied(self, heads: ScoringHeads) -> ScoringHeads:
        """The heads with these figures as evidence, and with the mass if it is above their own."""
        figures: dict[str, float | int] = {"auto_questions": self.questions, "auto_f1_full": round(self.full, 2)}
        for result in self.results:
            figures[f"auto_f1_{result.mass:g}"] = round(result.f1, 2)
            figures[f"auto_kept_{result.mass:g}"] = round(result.kept_ratio, 4)
        # A weak target may answer as well without the passage, so the mass must also satisfy recall.
        mass = max(heads.auto_mass, self.mass or 0.0)
        return replace(heads, auto_mass=mass, evidence={**heads.evidence, **figures})


def mass_for_answers(full: float, results: Sequence[MassResult]) -> float | None:
    """The smallest mass whose F1 reaches `ENOUGH` of that of `full`, else the mass with the highest F1.

    The largest of equally high ones; None if every F1 is 0. full: F1 of mode `full`; results: at least one
    """
    highest = max(result.f1 for result in results)
    if max(full, highest) == 0:
        return None
    enough = [result.mass for result in results if result.f1 >= ENOUGH * full]
    return min(enough) if enough else max(result.mass for result in results if result.f1 == highest)


def tuning_items(session: Session, items: Sequence[Item], settings: Settings, limit: int) -> list[Item]:
    """At most `limit` questions that the search for heads held out, and whose prompts fit the target as a whole.

    items: the same as for `calibrate_heads`, whose recall figures and window do rest on the held-out questions
    """
    answering = short_answers(settings)
    cases = list(usable_cases(session, items, answering))[HELD_OUT]
    return [case.item for case in cases if fits(case.request, FULL.settings(answering))][:limit]


def fits(request: PrefillRequest, settings: Settings) -> bool:
    """Whether a prompt fits the models that the settings' mode runs."""
    try:
        check_context(request, settings)
    except PromptTooLong:
        return False
    return True


def tune_auto_keep(
    session: Session, heads: ScoringHeads, items: Sequence[Item], settings: Settings, step: Callable[[str], None]
) -> AutoKeep:
    """Answer every question in mode `full`, and in `select` with `heads` and `--keep auto` at each of `MASSES`.

    Works on copies of the session. items: with answers

    Raises SpecprefillError without questions or for a prompt that does not fit.
    """
    if not items:
        raise SpecprefillError("no questions to tune --keep auto on; give more of them, or shorter documents")
    base, plain, sessions = short_answers(settings), session.with_cache(None), sessions_by_mass(session, heads)
    full: AnsweredItems = []
    answers: dict[float, AnsweredItems] = {mass: [] for mass in sessions}
    # Question by question, so that the draft's state is kept for one document at a time.
    for number, item in enumerate(items):
        step(f"answering: {number:,} of {len(items):,}")
        full.append((item, ask(plain, item, FULL.settings(base))))
        for mass, mass_session in sessions.items():
            answers[mass].append((item, ask(mass_session, item, AUTO_KEEP.settings(base))))
    rows = {mass: row(AUTO_KEEP, answered, None) for mass, answered in answers.items()}
    results = tuple(MassResult(mass, figures.f1, figures.kept_ratio) for mass, figures in rows.items())
    baseline = row(FULL, full, None).f1
    return AutoKeep(len(full), baseline, results, mass_for_answers(baseline, results))


def sessions_by_mass(session: Session, heads: ScoringHeads) -> dict[float, Session]:
    """Copies of the session, one for each mass; the draft reads a document once for all of them."""
    cache = DocumentCache()
    pairs = {mass: replace(session.pair, scoring_heads=replace(heads, auto_mass=mass)) for mass in MASSES}
    return {mass: replace(session, pair=pair, cache=cache) for mass, pair in pairs.items()}
