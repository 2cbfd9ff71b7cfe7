"""Forward passes: the adapter to transformers; `attention`, `cache` and `packed` are beside it.

Only these modules touch transformers' internals; `tests/models/test_adapter.py` pins what they rely on.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specprefill_cli.models.running.cache import KvCacheState, device_of, layer_count, new_state, rollback
from specprefill_cli.models.running.packed import forward, last_token_runs_apart, one_token_pass, pass_overhead
from specprefill_cli.models.running.passes import BEFORE_PASS, ForwardInput

Item = TypeVar("Item")


def run(model: PreTrainedModel, tokens: Tensor, positions: Tensor, state: KvCacheState, **options: Any) -> Tensor:
    """Run tokens [N] at positions [N] after those of the state, which grows by N. options: other fields of `ForwardInput`.

    Returns float32 logits: [V] of the last token, or [rows, V] of the last `rows` tokens; empty where the pass ends early.
    """
    if act := BEFORE_PASS.get():
        act()
    return run_pass(ForwardInput(model=model, tokens=tokens, positions=positions, state=state, **options))


def run_pass(step: ForwardInput) -> Tensor:
    """Run a pass by itself; returns what `run` does. Where it fails, its state is as it was."""
    quick = one_token_pass(step)
    with step.announced(), extend_states([step]):
        return forward([step])[0] if quick is None else quick(step.tokens, step.positions, step.state.cache)


def run_together(passes: Sequence[ForwardInput]) -> list[Tensor | Exception]:
    """Run passes that end at the same layer as a packed pass; return the logits of each, or its error."""
    if len(passes) > 1:
        # If that fails, the faulty pass raises its error again below, and the others succeed.
        with suppress(Exception), extend_states(passes):
            return [*forward(passes)]
    outcomes: list[Tensor | Exception] = []
    for step in passes:
        try:
            outcomes.append(run_pass(step))
        except Exception as error:
            outcomes.append(error)
    return outcomes


@contextmanager
def extend_states(passes: Sequence[ForwardInput]) -> Iterator[None]:
    """Add positions of passes to their states; an error in the block undoes that."""
    lengths = [step.state.length for step in passes]
    try:
        for step in passes:
            step.state.positions = torch.cat([step.state.positions, step.positions])
        yield
    except BaseException:
        for length, step in zip(lengths, passes, strict=True):
            rollback(step.state, length)
        raise


def items_of(steps: Generator[ForwardInput | Item, Tensor, None]) -> Iterator[Item]:
    """Run the passes that a generator yields, raise their errors inside it, and yield its other items."""
    resume: Callable[[], ForwardInput | Item] = partial(next, steps)
    while True:
        try:
            item = resume()
        except StopIteration:
            return
        try:
            if isinstance(item, ForwardInput):
                resume = partial(steps.send, run_pass(item))
            else:
                yield item
                resume = partial(next, steps)
        except BaseException as error:
            resume = partial(steps.throw, error)


def prefill(
    model: PreTrainedModel,
    tokens: Tensor,
    positions: Tensor,
    pass_size: int,
    state: KvCacheState | None = None,
    last_layer: int | None = None,
    **options: Any,
) -> tuple[Tensor, KvCacheState]:
    """Run tokens [N] at positions [N], `pass_size` at a time; return the last token's logits [V], and the state.

    last_layer: of every pass; None: only the last runs to the end; options: other fields of `ForwardInput`
    """
    state = new_state(len(tokens)) if state is None else state
    logits, layers, count = torch.empty(0), layer_count(model), len(tokens)
    overhead = pass_overhead(device_of(model.get_input_embeddings()).type)
    apart = last_layer is None and last_token_runs_apart(count, layers, overhead)
    for start, end in pairwise(sorted({*range(0, count, pass_size), count - apart, count})):
        last = layers - 1 if last_layer is None and end < count else last_layer
        logits = run(model, tokens[start:end], positions[start:end], state, last_layer=last, **options)
    return logits, state


def window_layers(config: PretrainedConfig) -> Sequence[int | None]:
    """Per layer, the sliding window in tokens, or None for full attention."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if window is None or getattr(text, "use_sliding_window", True) is False:
        return [None] * text.num_hidden_layers
    layer_types = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return [window if layer_type == "sliding_attention" else None for layer_type in layer_types]


def rotation_depends_on_length(config: PretrainedConfig) -> bool:
    """Whether the rotary embedding of a token changes with the length of its prompt, as with `longrope` and `dynamic`."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    embeddings = [parameters, *(nested for nested in parameters.values() if isinstance(nested, dict))]
    return any(embedding.get("rope_type") in ("longrope", "dynamic") for embedding in embeddings)


def longrope_threshold(config: PretrainedConfig) -> int | None:
    """The prompt length beyond which `longrope` switches to its long factors, for all keys; None for other embeddings."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return parameters.get("original_max_position_embeddings") if parameters.get("rope_type") == "longrope" else None


def synchronize(used_devices: Iterable[torch.device]) -> None:
    """Wait until devices have finished their work, so that the measured time includes it."""
    for device in used_devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
