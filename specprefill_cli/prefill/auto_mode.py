"""What `--mode auto` takes, and whether a prompt fits the pair."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specprefill_cli.errors import PromptTooLong
from specprefill_cli.models.adapter import longrope_threshold, window_layers
from specprefill_cli.models.cost import WORTHWHILE, ModelCost, promised_speedup
from specprefill_cli.prefill.importance import usable_layers
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scorers.paper import PaperScorer
from specprefill_cli.settings import AUTO, OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedModel, LoadedPair, ModelOutline


# The modes that `auto` chooses between; draft KV is taken by name only.
AUTOMATIC = ("full", "select")


def needs_draft(settings: Settings) -> bool:
    """Whether the draft may run during prefill."""
    may_run = settings.mode == AUTO or MODES[settings.mode].uses_draft
    return may_run and (settings.scorer == AUTO or SCORERS[settings.scorer].uses_draft)


def automatic_mode(settings: Settings, request: ScoringRequest) -> tuple[str, str]:
    """The mode that the cost model recommends for a prompt, and the reason in words."""
    prompt, pair = request.prompt, request.pair
    draft = pair.draft if SCORERS[settings.scorer].uses_draft else None
    look_ahead = looked_ahead(settings)
    if draft is not None:
        if not usable_layers(window_layers(draft.config), request.draft_prompt.length):
            return "full", f"auto: every layer of the draft sees less than the {request.draft_prompt.length:,} tokens"
        if request.draft_prompt.length + look_ahead > draft.context:
            return "full", f"auto: the draft's context of {draft.context:,} tokens is too short for the prompt"
    speedup = promised_speedup(
        cost_of(pair.target),
        scoring_flops(settings, request, with_overhead=True),
        prompt.length,
        expected_kept(settings, prompt.length, prompt.document[1] - prompt.document[0]),
    )
    if speedup >= WORTHWHILE:
        return "select", f"auto: select promises {speedup:.1f}x at {prompt.length:,} tokens"
    return "full", f"auto: select promises only {speedup:.1f}x at {prompt.length:,} tokens ({WORTHWHILE}x is worth it)"


def draft_window(settings: Settings, pair: LoadedPair) -> int | None:
    """How far back the draft sees while it reads the document, in tokens; None: to the start.

    `auto` is the window with which the pair's scoring heads were found to work as well, and none for other scorers;
    `paper` reads as published.
    """
    if settings.scorer == PaperScorer.name:
        return None
    if settings.draft_window == AUTO:
        heads = pair.scoring_heads if settings.scorer == HeadsScorer.name else None
        return heads.window if heads is not None else None
    return None if settings.draft_window == OFF else int(settings.draft_window)


def scoring_flops(settings: Settings, request: ScoringRequest, with_overhead: bool = False) -> float:
    """Operations of the draft while the scorer runs over the request's prompt; 0 for a scorer that needs no draft.

    Ranks share the target, and each runs the draft whole: there it counts once for each.

    with_overhead: count the fixed cost of each pass too, in operations
    """
    scorer, pair = SCORERS[settings.scorer], request.pair
    tokens, local = request.draft_prompt.length, request.local_reading
    if not scorer.uses_draft or pair.draft is None:
        return 0.0
    cost = cost_of(pair.draft)
    overhead = cost.overhead_flops() if with_overhead else 0.0
    if scorer.name == HeadsScorer.name and pair.scoring_heads is not None:
        found = cost.reading_flops(tokens, max(head.layer for head in pair.scoring_heads.heads), local) + overhead
    else:
        reading = cost.prefill_with_overhead(tokens, local) if with_overhead else cost.prefill_flops(tokens, local)
        found = reading + looked_ahead(settings) * (cost.pass_flops(1, tokens) + overhead)
    return found * pair.ranks.size


def looked_ahead(settings: Settings) -> int:
    """Tokens that the draft decodes before scoring."""
    return settings.look_ahead if SCORERS[settings.scorer].looks_ahead else 0


def cost_of(loaded: LoadedModel | ModelOutline) -> ModelCost:
    return ModelCost.of(loaded.config, loaded.device.partition(":")[0])


def expected_kept(settings: Settings, prompt_tokens: int, document_tokens: int) -> int:
    """Tokens that `select` will keep; with `--keep auto`, which is known only after scoring, half of them are assumed."""
    keep = settings.keep if settings.keep is not None else 0.5
    return min(prompt_tokens, max(int(keep * prompt_tokens), prompt_tokens - document_tokens + settings.chunk_size))


def before_turning(settings: Settings, request: ScoringRequest) -> tuple[Settings, tuple[str, ...]]:
    """The settings with as short an answer as a `longrope` target can give without turning the prompt's keys; warnings.

    Beyond its original context such a model turns all keys otherwise; those in the cache would have to be computed again.
    """
    target, length = request.pair.target, request.prompt.length
    turn = longrope_threshold(target.config)
    # The last token of an answer is not read.
    if turn is None or length > turn or length + settings.max_new_tokens - 1 <= turn:
        return settings, ()
    room = turn - length + 1
    warning = (
        f"the answer may have {room} tokens: with the prompt's {length:,} it reaches {turn:,}, beyond which "
        f"{target.name} turns its keys otherwise; shorten the documents by a little for a longer answer"
    )
    return replace(settings, max_new_tokens=room), (warning,)


def check_fits(request: ScoringRequest, settings: Settings, with_draft: bool) -> None:
    """Raises PromptTooLong when prompt and answer exceed the target's context, or the draft's where it runs."""
    pair = request.pair
    wanted = [(pair.target, request.prompt.length, settings.max_new_tokens, "tokens of answer")]
    if with_draft and pair.draft is not None:
        wanted.append((pair.draft, request.draft_prompt.length, looked_ahead(settings), "tokens of look-ahead"))
    for model, tokens, more, what in wanted:
        if tokens + more > model.context:
            raise PromptTooLong(
                f"the prompt has {tokens:,} tokens and with {more:,} {what} does not fit {model.name}'s context of "
                f"{model.context:,}; give fewer or shorter documents, or a pair with a longer context"
            )
