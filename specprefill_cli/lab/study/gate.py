"""Calibrates the gate of draft KV: how much risk may remain before the first token drifts from `full`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.tasks import kl_divergence
from specprefill_cli.draft_kv.gate import RECOMPUTE, Gate, chunk_tokens, fates_by_risk, remaining_risk
from specprefill_cli.draft_kv.mapped_cache import inspect, repair, score_and_map
from specprefill_cli.draft_kv.modes import DraftKvMode
from specprefill_cli.draft_kv.projection import KvCalibration, find_map, pair_calibration
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.statistics import auroc
from specprefill_cli.lab.session import questions_that_fit
from specprefill_cli.lab.study.controls import cache_of, copy_cache
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import BASELINE
from specprefill_cli.settings import AUTO, Settings

# Recompute budgets, as shares of the prompt.
BUDGETS = (0.05, 0.15, 0.3, 0.5)
# With fewer accepted prompts, a threshold is due to chance.
FEWEST_PROMPTS = 20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A prompt at a budget: the remaining risk, and KL(full || draft KV) of the first token in nats."""

    prompt: int
    budget: float
    risk: float
    kl: float


def calibrate_gate(
    session: Session, items: Sequence[Item], settings: Settings, target: float, step: Callable[[str], None]
) -> KvCalibration:
    """Fit a gate and return the pair's calibration with it.

    target: the highest mean first-token KL to accept, in nats

    Raises SpecprefillError for a pair without maps, or if too few questions fit the pair.
    """
    calibration = pair_calibration(session.pair)
    if calibration is None:
        raise SpecprefillError("--gate: this pair has no maps of draft KV; give --text FILES too")
    settings = settings.varied(mode=DraftKvMode.name, scorer=AUTO)
    fitting, _ = questions_that_fit(session, items, settings)
    if len(fitting) < FEWEST_PROMPTS:
        raise SpecprefillError(
            f"--gate: {len(fitting)} questions fit the pair; give at least {FEWEST_PROMPTS}, with shorter documents"
        )
    outcomes = []
    for number, item in enumerate(fitting):
        step(f"gate: prompt {number:,} of {len(fitting):,}")
        outcomes += prompt_outcomes(session.request(item.collection, item.question, settings), number)
    return replace(calibration, kv_map=replace(calibration.kv_map, gate=fit_gate(outcomes, target)))


def prompt_outcomes(request: PrefillRequest, number: int) -> list[Outcome]:
    """A prompt's outcomes with every budget, which recomputes the riskiest chunks."""
    full = MODES[BASELINE].prefill(request).logits
    scores, state = score_and_map(request, find_map(request, DraftKvMode.name))
    risks = inspect(request, state, scores).risks
    checked = copy_cache(state)
    outcomes = []
    for budget in BUDGETS:
        fates = fates_by_risk(risks, prompt_tokens=request.prompt.length, chunk_size=request.chunk_size, share=budget)
        slots = chunk_tokens(fates == RECOMPUTE, request.chunk_size, request.prompt.document)
        kl = kl_divergence(full, repair(request, cache_of(checked), slots))
        outcomes.append(Outcome(prompt=number, budget=budget, risk=remaining_risk(risks, fates), kl=kl))
    return outcomes


def fit_gate(outcomes: Sequence[Outcome], target: float, fewest: int = FEWEST_PROMPTS) -> Gate:
    """The gate of outcomes, with how well risk separates those with a KL above the target (AUROC over all budgets).

    smallest_risks: by budget, the smallest remaining risk of any prompt
    """
    area = auroc([outcome.risk for outcome in outcomes], [outcome.kl > target for outcome in outcomes])
    budgets = sorted({outcome.budget for outcome in outcomes})
    return Gate(
        threshold=largest_threshold(outcomes, target, fewest),
        target=target,
        n=len({outcome.prompt for outcome in outcomes}),
        auroc=None if area is None else round(area, 4),
        smallest_risks={
            f"{budget:g}": min(outcome.risk for outcome in outcomes if outcome.budget == budget) for budget in budgets
        },
    )


def largest_threshold(outcomes: Sequence[Outcome], target: float, fewest: int) -> float:
    """The largest observed risk up to which the mean KL is at most `target` at every budget with such outcomes.

    The mean is checked for every budget, because outcomes of large budgets, low in risk and KL, would otherwise hide those
    of small budgets.
    0 if there is no such risk, or fewer than `fewest` prompts have it.
    """
    threshold, prompts, sums = 0.0, set(), dict.fromkeys((outcome.budget for outcome in outcomes), (0.0, 0))
    ordered = sorted(outcomes, key=lambda outcome: outcome.risk)
    for outcome, following in zip_longest(ordered, ordered[1:]):
        total, count = sums[outcome.budget]
        sums[outcome.budget] = total + outcome.kl, count + 1
        prompts.add(outcome.prompt)
        # Outcomes of equal risk are accepted together or not at all.
        last = following is None or following.risk > outcome.risk
        if last and len(prompts) >= fewest and all(total <= target * count for total, count in sums.values()):
            threshold = outcome.risk
    return threshold
