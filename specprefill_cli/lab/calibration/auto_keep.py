"""How much of the importance mass `--keep auto` must hold: found by the answers that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from specprefill_cli.answering.answer import Answer
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration.heads import HELD_OUT, usable_cases
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.runner import Configuration, row, run
from specprefill_cli.lab.study.conditions import LONGEST_ANSWER
from specprefill_cli.prefill.auto_mode import check_fits
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scoring_heads import ScoringHeads
from specprefill_cli.settings import OFF, Settings

# Shares of the importance mass that are tried.
MASSES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
# The share of the F1 of `full` that the mass taken must reach.
ENOUGH = 0.99
FULL = Configuration("full")
AUTO_KEEP = Configuration("select", None, HeadsScorer.name)


@dataclass(frozen=True)
class Tried:
    """What `--keep auto` gave when it held this share of the mass: mean F1 in percent, mean kept ratio."""

    mass: float
    f1: float
    kept_ratio: float


@dataclass(frozen=True)
class AutoKeep:
    """What the answers to some questions say of `--keep auto`.

    full: mean F1 of mode `full` in percent; tried: by mass, ascending; mass: the smallest that sufficed, None where no
    answer had a word right
    """

    questions: int
    full: float
    tried: tuple[Tried, ...]
    mass: float | None

    def applied(self, heads: ScoringHeads) -> ScoringHeads:
        """The heads with the mass that was found where it is above their own, and with the figures as evidence."""
        figures = {"auto_questions": self.questions, "auto_f1_full": round(self.full, 2)}
        for one in self.tried:
            figures[f"auto_f1_{one.mass:g}"] = round(one.f1, 2)
            figures[f"auto_kept_{one.mass:g}"] = round(one.kept_ratio, 4)
        # A weak target answers as well from sets that often lose the passage: recall has a say too.
        mass = max(heads.auto_mass, self.mass or 0.0)
        return replace(heads, auto_mass=mass, evidence={**heads.evidence, **figures})


def mass_for_answers(full: float, tried: Sequence[Tried]) -> float | None:
    """The smallest mass whose F1 reaches ENOUGH of that of `full`.

    Where no mass reaches so much, the one that comes nearest, of equals the largest; None where every F1 is 0 and
    nothing can be told.

    full: F1 of mode `full`, in the unit of the others; tried: at least one
    """
    nearest = max(one.f1 for one in tried)
    if max(full, nearest) == 0:
        return None
    enough = [one.mass for one in tried if one.f1 >= ENOUGH * full]
    return min(enough) if enough else max(one.mass for one in tried if one.f1 == nearest)


def tuning_items(session: Session, items: Sequence[Item], settings: Settings, most: int) -> list[Item]:
    """At most `most` of the questions that `calibrate_heads` did not search on and whose prompts fit both models.

    Given the same items. The share that it finds by recall, and the window, did see these questions.
    """
    cases = list(usable_cases(session, items, settings))[HELD_OUT]
    wanted = AUTO_KEEP.settings(answer_settings(settings))
    return [case.item for case in cases if fits(case.request, wanted)][:most]


def fits(request: PrefillRequest, settings: Settings) -> bool:
    try:
        check_fits(request, settings, with_draft=True)
    except SpecprefillError:
        return False
    return True


def answer_settings(settings: Settings) -> Settings:
    """Greedy short answers, without speculation, which changes no greedy answer."""
    return replace(settings, temperature=0.0, speculate=OFF, max_new_tokens=LONGEST_ANSWER)


def tune_auto_keep(
    session: Session, heads: ScoringHeads, items: Sequence[Item], settings: Settings, step: Callable[[int], None]
) -> AutoKeep:
    """Answer every question in mode `full`, and in `select` with `heads` and `--keep auto` at each of MASSES.

    The session is left as it is: each mass is asked in a copy of it. items: with answers; step: called with the number of
    questions done

    Raises SpecprefillError without questions or for a prompt that does not fit, KeyboardInterrupt when an answer was
    interrupted.
    """
    if not items:
        raise SpecprefillError("no questions to tune --keep auto on; give more of them, or shorter documents")
    base = answer_settings(settings)
    plain = replace(session, shared=None)
    by_mass = sessions_by_mass(session, heads)
    full: list[tuple[Item, Answer]] = []
    answers: dict[float, list[tuple[Item, Answer]]] = {mass: [] for mass in by_mass}
    # Question by question, so that no more than one document's state of the draft need be kept.
    for number, item in enumerate(items):
        step(number)
        full += ask(plain, item, FULL, base)
        for mass, one in by_mass.items():
            answers[mass] += ask(one, item, AUTO_KEEP, base)
    return summary(full, answers)


def sessions_by_mass(session: Session, heads: ScoringHeads) -> dict[float, Session]:
    """Copies of the session, one for each mass; the draft reads a document once for all of them."""
    shared = DocumentCache()
    return {
        mass: replace(session, pair=replace(session.pair, scoring_heads=replace(heads, auto_mass=mass)), shared=shared)
        for mass in MASSES
    }


def ask(session: Session, item: Item, configuration: Configuration, base: Settings) -> list[tuple[Item, Answer]]:
    return run(session, [item], [configuration], base, lambda *_: None).complete()[configuration]


def summary(full: Sequence[tuple[Item, Answer]], answers: Mapping[float, Sequence[tuple[Item, Answer]]]) -> AutoKeep:
    """Means over the questions, and the mass they speak for. answers: by mass, of the same questions as in `full`."""
    figures = {mass: row(AUTO_KEEP, given, None) for mass, given in answers.items()}
    tried = tuple(Tried(mass, one.f1, one.kept_ratio) for mass, one in sorted(figures.items()))
    plain = row(FULL, full, None).f1
    return AutoKeep(len(full), plain, tried, mass_for_answers(plain, tried))
