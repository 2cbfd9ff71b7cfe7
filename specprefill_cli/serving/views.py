"""A session as a command of its own would have loaded it, made from the engine's: the same answers, figures and refusals."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from specprefill_cli.answering.session import Session
from specprefill_cli.decoding.adaptive import SpeculationState
from specprefill_cli.models.loading import ModelOutline
from specprefill_cli.prefill.cache_limit import document_cache

if TYPE_CHECKING:
    from specprefill_cli.prefill.calibration import CalibratedPair
    from specprefill_cli.prompting import Template
    from specprefill_cli.serving.messages import Open


def command_session(session: Session, opening: Open, pair: CalibratedPair) -> Session:
    """The session of one command; pair: as loaded for it.

    What the engine has learnt from other questions decides nothing, so that an answer does not depend on them: the mode
    is chosen as if no document were cached, and acceptance of proposals is learnt anew.
    """
    fresh = fresh_speculation(session)
    if opening.memory_cache is not None:
        # Its own documents alone, which do decide about modes.
        return replace(session, pair=pair, speculation=fresh, cache=document_cache(opening.memory_cache, pair))
    return replace(session, pair=pair, speculation=fresh, cold_choice=True)


def request_session(session: Session, template: Template | None = None) -> Session:
    """The session of one HTTP request: answers do not depend on earlier ones."""
    fresh = fresh_speculation(session)
    return replace(session, speculation=fresh, cold_choice=True, template=template or session.template)


def fresh_speculation(session: Session) -> SpeculationState:
    """What warm-up measured, without what answers showed."""
    return SpeculationState(costs=deepcopy(session.speculation.costs))


def as_loaded(pair: CalibratedPair, draft: bool, target_weights: bool) -> CalibratedPair:
    """The pair with no more of it loaded than asked for; `full` without a draft proposes no drafted tokens, for one."""
    target = pair.target
    if not target_weights:
        device = next(iter(target.devices)).type
        target = ModelOutline(name=target.name, config=target.config, tokenizer=target.tokenizer, device=device)
    if not draft:
        return replace(pair, target=target, draft=None, scoring_heads=None)
    return replace(pair, target=target)
