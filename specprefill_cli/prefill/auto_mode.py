"""The mode that `--mode auto` takes, and whether a prompt fits the pair."""

from __future__ import annotations

from specprefill_cli.errors import PromptTooLong
from specprefill_cli.models.loaded import LoadedModel, ModelOutline
from specprefill_cli.prefill.importance import WHOLE_TOKENS, is_about_everything
from specprefill_cli.prefill.registry import MODES, SCORERS, runs_draft
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prompting import Prompt
from specprefill_cli.record import BASELINE, ORIGINAL
from specprefill_cli.settings import AUTO

# Expected speedup over `full` from which `auto` takes another mode.
SMALLEST_SPEEDUP = 1.2
# What to do about a prompt that does not fit.
REMEDY = "give shorter documents or a shorter question, use --mode select, or lower --max-new-tokens"


def automatic_modes() -> tuple[str, ...]:
    """The modes that `auto` chooses from by cost; `full` comes first."""
    return (BASELINE, *(name for name, mode in MODES.items() if mode.automatic))


def choose_mode(mode: str, request: PrefillRequest) -> tuple[str, str | None]:
    """The mode that a prompt is prefilled in, and the reason where `auto` chose it.

    Raises PromptTooLong for a prompt that does not fit the pair in this mode.
    """
    name, reason = automatic_mode(request) if mode == AUTO else (mode, None)
    check_fits(request, name)
    return name, reason


def automatic_mode(request: PrefillRequest) -> tuple[str, str]:
    """The mode in which this prompt costs least, and the reason in words; cached tokens cost nothing."""
    target, length = request.pair.target, request.prompt.length
    full_cost = MODES[BASELINE].cost(request) or 0.0
    best, best_speedup, obstacle = BASELINE, 0.0, None
    for name in automatic_modes()[1:]:
        reason = MODES[name].obstacle(request)
        cost = MODES[name].cost(request) if reason is None else None
        if cost and full_cost / cost > best_speedup:
            best, best_speedup = name, full_cost / cost
        obstacle = obstacle or reason
    if not fits_target(request):
        any_length_mode = best if MODES[best].any_length else next(name for name in MODES if MODES[name].any_length)
        prompt = f"{length:,} tokens with {request.max_new_tokens:,} of answer"
        return any_length_mode, f"auto: {prompt} do not fit {target.name}'s context of {target.context:,}"
    if length <= WHOLE_TOKENS and request.keep is None and is_about_everything(request.question):
        return BASELINE, f"auto: the question is about the whole document, of {length:,} tokens"
    if best == BASELINE:
        return BASELINE, f"auto: {obstacle or 'no other mode is available'}"
    cold = request.without_caches()
    cached = [name for name in (BASELINE, best) if (MODES[name].cost(request) or 0.0) < (MODES[name].cost(cold) or 0.0)]
    situation = f"at {length:,} tokens" + (
        f" with the document's KV cached for {' and '.join(cached)}" if cached else ""
    )
    if best_speedup >= SMALLEST_SPEEDUP:
        return best, f"auto: {best} promises {best_speedup:.1f}x {situation}"
    return BASELINE, f"auto: {best} promises only {best_speedup:.1f}x {situation} ({SMALLEST_SPEEDUP}x is worth it)"


def expected_speedup(mode: str, request: PrefillRequest) -> float | None:
    """Time of `full` divided by that of a mode, by the cost model; None for an unknown cost, or where `full` cannot run."""
    if not fits_target(request):
        return None
    full_cost, cost = MODES[BASELINE].cost(request), MODES[mode].cost(request)
    return full_cost / cost if full_cost and cost else None


def fits_target(request: PrefillRequest) -> bool:
    """Whether the whole prompt and the longest answer fit the target's context."""
    return request.prompt.length <= request.prompt_room


def check_fits(request: PrefillRequest, mode: str) -> None:
    """Raises PromptTooLong when the mode cannot fit prompt and answer into the contexts of target and draft."""
    prompt, any_length = request.prompt, MODES[mode].any_length
    needed = with_one_chunk(request, prompt) if any_length and request.positions != ORIGINAL else prompt.length
    check_context(request.pair.target, prompt.length, needed, request.max_new_tokens)
    if runs_draft(mode, request.scorer):
        check_draft_fits(request, any_length)


def check_draft_fits(request: PrefillRequest, in_parts: bool = True) -> None:
    """Raises PromptTooLong when the draft cannot read the prompt; in_parts: it may read the document in parts."""
    draft, scorer, prompt = request.pair.draft, SCORERS[request.scorer], request.draft_prompt
    if draft is not None:
        needed = with_one_chunk(request, prompt) if in_parts and scorer.any_length else prompt.length
        check_context(draft, prompt.length, needed, request.look_ahead if scorer.looks_ahead else 0)


def with_one_chunk(request: PrefillRequest, prompt: Prompt) -> int:
    """Tokens of a prompt with a single chunk of its document."""
    start, end = prompt.document
    return prompt.length - max(0, end - start - request.chunk_size)


def check_context(
    model: LoadedModel | ModelOutline, prompt_tokens: int, needed: int, reserve: int, remedy: str = REMEDY
) -> None:
    """Raises PromptTooLong where `needed` tokens of a prompt and `reserve` tokens after it exceed a model's context."""
    if needed + reserve > model.context:
        part = " with a single chunk of its document" if needed < prompt_tokens else ""
        raise PromptTooLong(
            f"the prompt has {needed:,} tokens{part}, and with {reserve:,} after it does not fit {model.name}'s context of "
            f"{model.context:,}; {remedy}"
        )
