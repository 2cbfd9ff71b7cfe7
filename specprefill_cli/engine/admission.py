"""How many questions run at once: as many as memory holds."""

from __future__ import annotations

from dataclasses import replace

from specprefill_cli.answering.resolve import Prepared
from specprefill_cli.models.cost import cost_of
from specprefill_cli.prefill.auto_mode import runs_draft
from specprefill_cli.prefill.cache_limit import token_bytes
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.pass_size import pass_bytes
from specprefill_cli.prefill.prefix_cache import cached_tokens
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.selection import expected_tokens
from specprefill_cli.record import BASELINE

# What `--concurrency auto` runs at once. On a CPU 16 sequences share the fixed cost of a pass well enough; on a GPU memory
# decides sooner.
MOST_ON_CPU, MOST_ON_GPU = 16, 64


def automatic_concurrency(pair: CalibratedPair) -> int:
    """Questions at once for `--concurrency auto`: one where ranks share the target, which are sent pass by pass."""
    if pair.ranks.size > 1:
        return 1
    return MOST_ON_GPU if all(device.type == "cuda" for device in pair.devices) else MOST_ON_CPU


def answer_bytes(prepared: Prepared) -> int:
    """Bytes of the keys and values that an answer is expected to hold while it runs, in both models.

    What other questions share with it counts once, for the one that computes it.
    """
    request, mode = prepared.request, MODES[prepared.mode]
    pair, prompt = request.pair, request.prompt
    answer = prepared.resolved.decoding.max_new_tokens
    target = prompt.length
    if mode.uses_keep and not mode.uses_draft_kv:
        target = expected_tokens(request)
    elif prepared.mode == BASELINE:
        target -= cached_tokens(request.target_prefixes, pair.target, prompt, cost_of(pair.target).layers)
    total = (target + answer) * token_bytes(pair.target)
    if pair.draft is not None and (runs_draft(prepared.mode, request.scorer) or request.keep_draft_state):
        draft = request.draft_prompt
        cached = cached_tokens(request.draft_prefixes, pair.draft, draft, 1, request.draft_window)
        total += (draft.length - cached + answer) * token_bytes(pair.draft)
    return total


def confirmation_bytes(prepared: Prepared) -> int:
    """Bytes of the keys and values that an answer holds while full prefill confirms it."""
    return answer_bytes(replace(prepared, resolved=replace(prepared.resolved, mode=BASELINE)))


def largest_pass_bytes(prepared: Prepared) -> int:
    """Bytes that the largest pass of a prompt takes beside keys and values."""
    request, target = prepared.request, prepared.request.pair.loaded_target
    tokens = min(request.prefill_chunk, request.prompt.length)
    return tokens * pass_bytes(cost_of(target), target.model.dtype.itemsize)
