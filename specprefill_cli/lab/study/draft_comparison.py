"""How much the relation of draft and target matters: maps of several drafts' KV, fitted and held out on the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch

from specprefill_cli.lab.calibration.draft_kv import calibrate_kv
from specprefill_cli.models.attention import ATTENTION
from specprefill_cli.models.hub import auto_class
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.prefill.calibration import CalibratedPair

OWN, COMPARED, UNRELATED = "own", "compared", "unrelated"
SEED = 0


@dataclass(frozen=True, kw_only=True)
class DraftFit:
    """The map of one draft's KV: ratios of the variance of keys and values missed on held-out text, by target layer.

    role: the pair's own draft, one given for comparison, or one with random weights, whose map can only use the tokens
    reason: why no map could be fitted
    """

    draft: str
    role: str
    same_tokenizer: bool
    same_family: bool
    layers: int
    hidden_size: int
    target_layers: tuple[int, ...] = ()
    key_errors: tuple[float, ...] = ()
    value_errors: tuple[float, ...] = ()
    reason: str | None = None


def fit_drafts(
    pair: CalibratedPair, texts: Sequence[str], others: Iterable[LoadedModel], step: Callable[[str], None]
) -> list[DraftFit]:
    """Fit the pair's own draft, each of the others, and one of the own draft's shape with random weights.

    others: may load each draft when its turn comes

    Raises SpecprefillError if the text is too short.
    """
    own = pair.loaded_draft
    return [
        fit_draft(pair, own, OWN, texts, step),
        *(fit_draft(pair, draft, COMPARED, texts, step) for draft in others),
        fit_draft(pair, random_like(own, SEED), UNRELATED, texts, step),
    ]


def fit_draft(
    pair: CalibratedPair, draft: LoadedModel, role: str, texts: Sequence[str], step: Callable[[str], None]
) -> DraftFit:
    """Fit one draft's map into the pair's target; the map is not stored."""
    tested = CalibratedPair(pair.pair, pair.target, draft)
    text, target = draft.config.get_text_config(), pair.target.config.get_text_config()
    unfitted = DraftFit(
        draft=draft.name,
        role=role,
        same_tokenizer=tested.same_tokenizer,
        same_family=text.model_type == target.model_type,
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
    )
    if not tested.same_tokenizer:
        return replace(unfitted, reason="another tokenizer: its tokens are not the target's, so no KV can be mapped")
    window = pair.scoring_heads.window if pair.scoring_heads is not None else None
    fits = calibrate_kv(tested, texts, (), step, window).maps["exact-0-draft"].fits
    return replace(
        unfitted,
        target_layers=tuple(fit.layer for fit in fits),
        key_errors=tuple(fit.key_error for fit in fits),
        value_errors=tuple(fit.value_error for fit in fits),
    )


def random_like(loaded: LoadedModel, seed: int) -> LoadedModel:
    """A model of the same shape and tokenizer with random weights."""
    config = deepcopy(loaded.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class(config).from_config(config, attn_implementation=ATTENTION, dtype=loaded.model.dtype)
    return replace(loaded, name=f"{loaded.name} with random weights", model=model.to(loaded.device).eval())
