"""The mode of a prompt: what `--mode auto` takes, what modes need, and whether a prompt fits the pair."""

from __future__ import annotations

from collections.abc import Sequence

from specprefill_cli.errors import PromptTooLong
from specprefill_cli.prefill.registry import BASELINE, MODES, SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.settings import AUTO

# Expected speedup over `full` from which `auto` takes another mode.
SMALLEST_SPEEDUP = 1.2


def automatic_modes() -> tuple[str, ...]:
    """The modes that `auto` chooses from; `full` comes first."""
    return (BASELINE, *(name for name, mode in MODES.items() if mode.automatic))


def runs_draft(mode: str, scorer: str) -> bool:
    """Whether the draft may run during prefill; either name may be `auto`."""
    may_score = mode == AUTO or MODES[mode].uses_draft
    return may_score and (scorer == AUTO or SCORERS[scorer].uses_draft)


def choose_mode(mode: str, request: PrefillRequest, max_new_tokens: int) -> tuple[str, str | None]:
    """The mode that a prompt is prefilled in, and the reason where `auto` chose it.

    Raises PromptTooLong for a prompt that does not fit the pair in this mode.
    """
    name, reason = automatic_mode(request) if mode == AUTO else (mode, None)
    check_fits(request, max_new_tokens, runs_draft(name, request.scorer))
    return name, reason


def automatic_mode(request: PrefillRequest) -> tuple[str, str]:
    """The mode in which this prompt costs least, and the reason in words; what earlier questions left costs nothing."""
    full_cost = MODES[BASELINE].cost(request) or 0.0
    best, best_speedup, obstacle = BASELINE, 0.0, None
    for name in automatic_modes()[1:]:
        blocked = MODES[name].obstacle(request)
        cost = MODES[name].cost(request) if blocked is None else None
        if cost and full_cost / cost > best_speedup:
            best, best_speedup = name, full_cost / cost
        obstacle = obstacle or blocked
    if best == BASELINE:
        return BASELINE, f"auto: {obstacle or 'no other mode is available'}"
    situation = f"at {request.prompt.length:,} tokens{cached_for(request, (BASELINE, best))}"
    if best_speedup >= SMALLEST_SPEEDUP:
        return best, f"auto: {best} promises {best_speedup:.1f}x {situation}"
    return BASELINE, f"auto: {best} promises only {best_speedup:.1f}x {situation} ({SMALLEST_SPEEDUP}x is worth it)"


def cached_for(request: PrefillRequest, modes: Sequence[str]) -> str:
    """The modes that find the document's KV in a cache, in words; empty where none does."""
    cold = request.cold()
    cheaper = [name for name in modes if (MODES[name].cost(request) or 0.0) < (MODES[name].cost(cold) or 0.0)]
    return f" with the document's KV cached for {' and '.join(cheaper)}" if cheaper else ""


def expected_speedup(mode: str, request: PrefillRequest) -> float | None:
    """Time of `full` over that of a mode, by the cost model; None where it knows no cost."""
    full_cost, cost = MODES[BASELINE].cost(request), MODES[mode].cost(request)
    return full_cost / cost if full_cost and cost else None


def check_fits(request: PrefillRequest, max_new_tokens: int, with_draft: bool) -> None:
    """Raises PromptTooLong when prompt and answer exceed the target's context, or the draft's where it runs."""
    pair = request.pair
    needs = [(pair.target, request.prompt.length, max_new_tokens, "tokens of answer")]
    if with_draft and pair.draft is not None:
        steps = request.look_ahead if SCORERS[request.scorer].looks_ahead else 0
        needs.append((pair.draft, request.draft_prompt.length, steps, "tokens of look-ahead"))
    for model, tokens, more, purpose in needs:
        if tokens + more > model.context:
            raise PromptTooLong(
                f"the prompt has {tokens:,} tokens and with {more:,} {purpose} does not fit {model.name}'s context of "
                f"{model.context:,}; give fewer or shorter documents, or a pair with a longer context"
            )
