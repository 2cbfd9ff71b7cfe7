"""How many questions run at once: as many as memory holds, and as much of a prompt in one pass as others can wait for."""

from __future__ import annotations

from dataclasses import replace

from specprefill_cli.answering.resolve import Prepared
from specprefill_cli.models.adapter import pass_overhead, rotation_depends_on_length
from specprefill_cli.models.cost import cost_of
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.prefill.auto_mode import runs_draft
from specprefill_cli.prefill.cache_limit import token_bytes
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.pass_size import SMALLEST, pass_bytes
from specprefill_cli.prefill.prefix_cache import cached_tokens
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.selection import expected_tokens

# What `--concurrency auto` runs at once. On a CPU 16 sequences share the fixed cost of a pass well enough; on a GPU memory
# decides sooner.
MOST_ON_CPU, MOST_ON_GPU = 16, 64
# Multiples of a pass's fixed cost that are packed into one: beyond, packing gains less than 5 %.
PACKED_OVERHEADS = 20
# Seconds that one pass of prefill may take while answers wait for their next token.
LONGEST_WAIT = 1.0


def automatic_concurrency(pair: CalibratedPair) -> int:
    """Questions at once for `--concurrency auto`: one where ranks share the target, which are sent pass by pass."""
    if pair.ranks.size > 1:
        return 1
    return MOST_ON_GPU if all(device.type == "cuda" for device in pair.devices) else MOST_ON_CPU


def packed_tokens(pair: CalibratedPair) -> int:
    """Tokens of several questions that are packed into one pass."""
    return PACKED_OVERHEADS * pass_overhead(pair.loaded_target.device)


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
    elif prepared.mode == "full":
        target -= cached_tokens(request.target_prefixes, pair.target, prompt, cost_of(pair.target).layers)
    total = (target + answer) * token_bytes(pair.target)
    if pair.draft is not None and (runs_draft(prepared.mode, request.scorer) or request.keep_draft_state):
        draft = request.draft_prompt
        cached = cached_tokens(request.draft_prefixes, pair.draft, draft, 1, request.draft_window)
        total += (draft.length - cached + answer) * token_bytes(pair.draft)
    return total


def largest_pass_bytes(prepared: Prepared) -> int:
    """Bytes that the largest pass of a prompt takes beside keys and values."""
    request, target = prepared.request, prepared.request.pair.loaded_target
    tokens = min(request.prefill_chunk, request.prompt.length)
    return tokens * pass_bytes(cost_of(target), target.model.dtype.itemsize)


def bounded_passes(prepared: Prepared, seconds_per_token: float) -> Prepared:
    """The question with passes that keep others waiting for LONGEST_WAIT at most, as far as passes can be shortened.

    Powers of two, as in `pass_size`. Models that rotate keys by the length of a pass read the whole prompt at once.
    """
    request = prepared.request
    fitting = int(LONGEST_WAIT / max(seconds_per_token, 1e-9))
    chunk = max(SMALLEST, 1 << max(0, fitting.bit_length() - 1))
    models = [model for model in (request.pair.target, request.pair.draft) if isinstance(model, LoadedModel)]
    if chunk >= request.prefill_chunk or any(rotation_depends_on_length(model.config) for model in models):
        return prepared
    return replace(prepared, resolved=replace(prepared.resolved, request=replace(request, prefill_chunk=chunk)))
