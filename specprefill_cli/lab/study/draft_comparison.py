"""How much the kinship of draft and target matters: maps of several drafts' KV, fitted and held out on the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from specprefill_cli.lab.calibration.draft_kv import calibrate_kv
from specprefill_cli.models.loading import LoadedModel, LoadedPair, random_like

OWN, COMPARED, UNRELATED = "own", "compared", "unrelated"
SEED = 0


@dataclass(frozen=True)
class Kin:
    """One draft against the target: shares of the variance of keys and values missed on held-out text, by target layer.

    role: the pair's own draft, one given for comparison, or the unrelated one (random weights: what is left is what
        the tokens themselves tell); reason: why nothing could be fitted
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


def kinship(
    pair: LoadedPair, texts: Sequence[str], others: Iterable[LoadedModel], step: Callable[[str], None]
) -> list[Kin]:
    """The pair's own draft, each of the others, and one of the own's shape that has learnt nothing.

    others: may load each draft only when its turn comes

    Raises SpecprefillError when the text is too short.
    """
    found = [kin(pair, pair.draft, OWN, texts, step)]
    found += [kin(pair, draft, COMPARED, texts, step) for draft in others]
    return [*found, kin(pair, random_like(pair.draft, SEED), UNRELATED, texts, step)]


def kin(pair: LoadedPair, draft: LoadedModel, role: str, texts: Sequence[str], step: Callable[[str], None]) -> Kin:
    """One draft's map into the pair's target; nothing of it is stored."""
    both = LoadedPair(pair.pair, pair.target, draft)
    text, target = draft.config.get_text_config(), pair.target.config.get_text_config()
    known = Kin(
        draft.name,
        role,
        both.same_tokenizer,
        text.model_type == target.model_type,
        text.num_hidden_layers,
        text.hidden_size,
    )
    if not both.same_tokenizer:
        return replace(known, reason="another tokenizer: its tokens are not the target's, so no KV can be mapped")
    window = pair.scoring_heads.window if pair.scoring_heads is not None else None
    found = calibrate_kv(both, texts, (), lambda number: step(f"mapping {draft.name}: sequence {number:,}"), window)
    fits = found.maps["exact-0-draft"].fits
    return replace(
        known,
        target_layers=tuple(fit.layer for fit in fits),
        key_errors=tuple(fit.key_error for fit in fits),
        value_errors=tuple(fit.value_error for fit in fits),
    )
