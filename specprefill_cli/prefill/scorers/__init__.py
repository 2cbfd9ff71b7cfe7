"""Scorers: one file a scorer."""

from dataclasses import replace

from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest


def agreed_scores(request: ScoringRequest, name: str, everywhere: bool = False) -> Scores:
    """Rank 0's scores, the same on every rank that prefills this prompt.

    everywhere: every rank runs its own draft, because it wants the draft's states too
    """
    ranks = request.pair.ranks
    own: Scores | None = None

    def score() -> Scores:
        nonlocal own
        own = SCORERS[name].score(request)
        return replace(own, draft_state=None)

    if everywhere and not ranks.leads:
        score()
    agreed = ranks.from_leader(score)
    return agreed if own is None else replace(agreed, draft_state=own.draft_state)
