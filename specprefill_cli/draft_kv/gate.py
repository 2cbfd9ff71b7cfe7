"""Which mapped KV of a prompt is accepted: the risk that may remain, by calibration or the user, and the fates of chunks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specprefill_cli.prefill.selection import rank_chunks
from specprefill_cli.record import Fate, GateVerdict
from specprefill_cli.settings import OFF

# Fates are stored as indices into this tuple.
FATES = (Fate.RECOMPUTE, Fate.ACCEPT, Fate.DROP)
RECOMPUTE, ACCEPT, DROP = range(3)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The calibrated limit for accepting the KV of a map.

    threshold: the largest risk up to which the mean KL of the first token to `full` stays within `target` (nats); 0
    where nothing can be accepted
    n: prompts that it rests on; auroc: of the risk for a KL above the target; None with too few above or below
    smallest_risks: by budget (share of the prompt recomputed, as text), the smallest remaining risk of any prompt
    """

    threshold: float
    target: float
    n: int
    auroc: float | None
    smallest_risks: Mapping[str, float] = field(default_factory=dict)

    def smallest_risk(self, share: float) -> float:
        """A lower bound of the risk with `share` recomputed, by the next larger budget tried; 0 if unknown."""
        larger = [(float(budget), risk) for budget, risk in self.smallest_risks.items() if float(budget) >= share]
        return min(larger)[1] if larger else 0.0


@dataclass(frozen=True, kw_only=True)
class RiskLimit:
    """The risk that may remain in a prompt.

    threshold: infinite for any risk; source: where the threshold comes from, in words
    chosen: whether the user gave the threshold: then no more is recomputed than brings the risk down to it. For
    prompts brought just below it, a calibrated one does not hold
    refusal: why calibration rules out draft KV, whatever the prompt; empty where it does not
    """

    threshold: float = math.inf
    source: str = "any that can be accepted"
    chosen: bool = False
    refusal: str = ""

    def verdict(self, risk: float | None) -> GateVerdict:
        """The decision about a remaining risk; None: none was estimated, because nothing can be accepted."""
        threshold = self.threshold if self.threshold < math.inf else None
        return GateVerdict(risk=risk, threshold=threshold, accepted=risk is not None and risk <= self.threshold)

    def reason(self, risk: float) -> str:
        """Why a risk was not accepted."""
        return f"a risk of {risk:.3g} would remain, above {self.source}"


def risk_limit(accept_risk: float | str, gate: Gate | None, share: float | None = None) -> RiskLimit:
    """The limit of a setting; `auto`: the calibrated gate's, else any risk. share: that is recomputed, if known."""
    if isinstance(accept_risk, float | int):
        return RiskLimit(threshold=accept_risk, source=f"accept_risk {accept_risk:g}", chosen=True)
    if accept_risk == OFF or gate is None:
        return RiskLimit()
    evidence, refusal = f"first-token KL to full within {gate.target:g} nats, n = {gate.n}", ""
    if not gate.threshold:
        refusal = f"calibration found no draft KV of this pair that could be accepted ({evidence})"
    elif share is not None and (smallest := gate.smallest_risk(share)) > gate.threshold:
        refusal = (
            f"with {share:.0%} recomputed, no prompt of the calibration had a risk below {smallest:.3g}, and at most "
            f"{gate.threshold:.3g} may remain ({evidence})"
        )
    source = f"the calibrated {gate.threshold:.3g} ({evidence}); accept_risk off accepts any"
    return RiskLimit(threshold=gate.threshold, source=source, refusal=refusal)


def fates_by_risk(
    risks: Tensor, *, prompt_tokens: int, chunk_size: int, share: float, accept_risk: float | None = None
) -> Tensor:
    """Fates [chunks]: the riskiest are recomputed, within a share or down to `accept_risk`, the others accepted."""
    # The small constant keeps a share in binary floating point from losing a chunk that it exactly allows.
    count = math.floor(share * prompt_tokens / chunk_size + 1e-9)
    count = len(risks) if share >= 1 else min(len(risks), count)
    if accept_risk is not None:
        count = min(count, chunks_to_recompute(risks, accept_risk))
    fates = torch.full((len(risks),), ACCEPT)
    fates[rank_chunks(risks)[:count]] = RECOMPUTE
    return fates


def chunks_to_recompute(risks: Tensor, limit: float) -> int:
    """How many of the riskiest chunks must be recomputed until the others' risk is at most `limit`."""
    remaining = risks.sum() - risks[rank_chunks(risks)].cumsum(0)
    remaining[-1:] = 0
    return 0 if risks.sum() <= limit else int((remaining > limit).sum()) + 1


def drop_riskiest(fates: Tensor, risks: Tensor, limit: float) -> Tensor:
    """The fates [chunks] after dropping the riskiest accepted chunks until the others' risk is at most `limit`."""
    accepted = (fates == ACCEPT).nonzero()[:, 0]
    count = chunks_to_recompute(risks[accepted], limit)
    dropped = fates.clone()
    dropped[accepted[rank_chunks(risks[accepted])[:count]]] = DROP
    return dropped


def remaining_risk(risks: Tensor, fates: Tensor) -> float:
    """Summed risk of the accepted chunks."""
    return float(risks[fates == ACCEPT].sum())


def chunk_tokens(chunks: Tensor, chunk_size: int, document: tuple[int, int]) -> Tensor:
    """Prompt tokens, ascending, of the chunks that a boolean mask [chunks] marks."""
    start, end = document
    return start + chunks.repeat_interleave(chunk_size)[: end - start].nonzero()[:, 0]
