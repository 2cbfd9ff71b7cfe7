"""The mode that `--mode auto` takes, and whether a prompt fits the pair."""

from __future__ import annotations

from specprefill_cli.errors import PromptTooLong
from specprefill_cli.models.loading import LoadedModel, ModelOutline
from specprefill_cli.prefill.registry import MODES, SCORERS, runs_draft
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import BASELINE, ORIGINAL
from specprefill_cli.settings import AUTO

# Expected speedup over `full` from which `auto` takes another mode.
SMALLEST_SPEEDUP = 1.2
# Remedies for a prompt that does not fit, and for a question that does not.
SHORTEN = "give fewer or shorter documents, or a pair with a longer context"
SHORTEN_QUESTION = "ask a shorter question, or use a pair with a longer context"
# The text after a prompt, and the option that limits it.
ANSWER, LOOK_AHEAD = ("answer", "--max-new-tokens"), ("look-ahead", "--look-ahead")


def automatic_modes() -> tuple[str, ...]:
    """The modes that `auto` chooses from by cost; `full` comes first."""
    return (BASELINE, *(name for name, mode in MODES.usable() if mode.automatic))


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
    any_length = MODES[mode].any_length
    advice = SHORTEN if any_length else f"use --mode select, or {SHORTEN}"
    tokens = request.prompt.length
    if any_length and request.positions == ORIGINAL:
        advice = f"use --positions auto, or {SHORTEN}"
    elif any_length and request.document_tokens > request.chunk_size:
        tokens += request.chunk_size - request.document_tokens
        advice = SHORTEN_QUESTION
    check_context(request.pair.target, request.prompt.length, tokens, request.max_new_tokens, ANSWER, advice)
    if runs_draft(mode, request.scorer):
        check_draft_fits(request, any_length, advice)


def check_draft_fits(request: PrefillRequest, in_windows: bool = True, advice: str = SHORTEN) -> None:
    """Raises PromptTooLong when the draft cannot read the prompt; in_windows: it may read the document in windows."""
    draft, scorer, prompt = request.pair.draft, SCORERS[request.scorer], request.draft_prompt
    if draft is None:
        return
    tokens = prompt.length
    start, end = prompt.document
    if in_windows and not scorer.any_length:
        advice = f"use another --scorer, or {SHORTEN}"
    elif in_windows and end - start > request.chunk_size:
        tokens += request.chunk_size - (end - start)
        advice = SHORTEN_QUESTION
    steps = request.look_ahead if scorer.looks_ahead else 0
    check_context(draft, prompt.length, tokens, steps, LOOK_AHEAD, advice)


def check_context(
    model: LoadedModel | ModelOutline,
    prompt_tokens: int,
    tokens: int,
    reserve: int,
    content: tuple[str, str],
    advice: str,
) -> None:
    """Raises PromptTooLong where `tokens` of a prompt and `reserve` tokens after it exceed a model's context.

    tokens: those that must fit at once; fewer than the prompt's where its document is read in windows
    content: the text after the prompt, and the option that limits it
    """
    if tokens + reserve <= model.context:
        return
    name, option = content
    subject = "the prompt has" if tokens == prompt_tokens else "with one chunk of its document, the prompt has"
    if tokens <= model.context:
        advice = f"lower {option}, or {advice}"
    raise PromptTooLong(
        f"{subject} {tokens:,} tokens and with {reserve:,} tokens of {name} does not fit "
        f"{model.name}'s context of {model.context:,}; {advice}"
    )
