"""The mode that `--mode auto` takes, and whether a prompt fits the pair."""

from specprefill_cli.errors import PromptTooLong
from specprefill_cli.models.loaded import LoadedModel, ModelOutline
from specprefill_cli.prefill.importance import WHOLE_TOKENS
from specprefill_cli.prefill.intent import is_about_everything
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prompting import Prompt
from specprefill_cli.record import BASELINE, ORIGINAL, PLANNED_MODE
from specprefill_cli.settings import AUTO

# The modes that `auto` chooses from, and the expected speedup over `full` from which it takes `select`.
AUTOMATIC_MODES, SMALLEST_SPEEDUP = (BASELINE, PLANNED_MODE), 1.2
# What to do about a prompt that does not fit.
REMEDY = "give shorter documents or a shorter question, use --mode select, or lower --max-new-tokens"


def choose_mode(mode: str, request: PrefillRequest) -> tuple[str, str | None]:
    """The mode of a prefill, and why `auto` chose it. Raises PromptTooLong if the prompt does not fit."""
    name, reason = automatic_mode(request) if mode == AUTO else (mode, None)
    check_fits(request, name)
    return name, reason


def automatic_mode(request: PrefillRequest) -> tuple[str, str]:
    """`full` or `select`, whichever costs less with what is cached, and the reason in words."""
    target, length = request.pair.target, request.prompt.length
    if not fits_target(request):
        prompt = f"{length:,} tokens with {request.max_new_tokens:,} of answer"
        return PLANNED_MODE, f"auto: {prompt} do not fit {target.name}'s context of {target.context:,}"
    if length <= WHOLE_TOKENS and request.keep is None and is_about_everything(request.question):
        return BASELINE, f"auto: the question is about the whole document, of {length:,} tokens"
    if obstacle := SCORERS[request.scorer].obstacle(request):
        return BASELINE, f"auto: {obstacle}"
    speedup = MODES[BASELINE].cost(request) / MODES[PLANNED_MODE].cost(request)
    promise = f"{speedup:.1f}x at {length:,} tokens"
    if speedup >= SMALLEST_SPEEDUP:
        return PLANNED_MODE, f"auto: {PLANNED_MODE} promises {promise}"
    return BASELINE, f"auto: {PLANNED_MODE} promises only {promise} ({SMALLEST_SPEEDUP}x is worth it)"


def expected_speedup(mode: str, request: PrefillRequest) -> float | None:
    """Time of `full` divided by that of a mode, by the cost model; None for an unknown cost, or where `full` cannot run."""
    cost = MODES[mode].cost(request)
    return MODES[BASELINE].cost(request) / cost if cost and fits_target(request) else None


def fits_target(request: PrefillRequest) -> bool:
    """Whether the whole prompt and the longest answer fit the target's context."""
    return request.prompt.length <= request.prompt_room


def check_fits(request: PrefillRequest, mode: str) -> None:
    """Raises PromptTooLong when the mode cannot fit prompt and answer into the contexts of target and draft."""
    prompt, any_length = request.prompt, mode == PLANNED_MODE
    is_original = any_length and request.positions == ORIGINAL
    needed = with_one_chunk(request, prompt) if any_length and not is_original else prompt.length
    remedy = "use --positions compact, or give shorter documents" if is_original else REMEDY
    check_context(request.pair.target, prompt.length, needed, request.max_new_tokens, remedy)
    if MODES[mode].uses_draft:
        check_draft_fits(request, any_length)


def check_draft_fits(request: PrefillRequest, in_parts: bool = True) -> None:
    """Raises PromptTooLong when the scorer's draft cannot read the prompt, in_parts if it may."""
    draft, scorer, prompt = request.pair.draft, SCORERS[request.scorer], request.draft_prompt
    if draft is not None and scorer.uses_draft:
        needed = with_one_chunk(request, prompt) if in_parts and scorer.any_length else prompt.length
        remedy = "use --scorer auto, or give shorter documents" if in_parts and not scorer.any_length else REMEDY
        check_context(draft, prompt.length, needed, request.look_ahead if scorer.looks_ahead else 0, remedy)


def with_one_chunk(request: PrefillRequest, prompt: Prompt) -> int:
    """Tokens of a prompt with a single chunk of its document."""
    start, end = prompt.document
    return prompt.length - max(0, end - start - request.chunk_size)


def check_context(
    model: LoadedModel | ModelOutline, prompt_tokens: int, needed: int, reserve: int, remedy: str = REMEDY
) -> None:
    """Raises PromptTooLong where `needed` tokens of a prompt and `reserve` tokens after it exceed a model's context."""
    if needed + reserve > model.context:
        part = ""
        if needed < prompt_tokens:
            part, remedy = " with a single chunk of its document", "give a shorter question, or lower --max-new-tokens"
        raise PromptTooLong(
            f"the prompt has {needed:,} tokens{part}, and with {reserve:,} after it does not fit {model.name}'s context of "
            f"{model.context:,}; {remedy}"
        )
