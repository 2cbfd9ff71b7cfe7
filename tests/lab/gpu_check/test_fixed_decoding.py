"""Decoding with fixed buffers: the usual tokens, and the same work in every step."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specprefill_cli.lab.gpu_check.fixed_decoding import FixedDecoder
from specprefill_cli.models.adapter import prefill, run
from specprefill_cli.models.one_token import SUPPORTED_TYPES

PROMPT, STEPS, ROOM = 40, 6, 64


class Recorder(TorchDispatchMode):
    """Records each operation with the shapes of its inputs, and the addresses of those that live between steps."""

    def __init__(self, held):
        super().__init__()
        self.held, self.calls = held, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        addresses = [tensor.data_ptr() for tensor in tensors if tensor.untyped_storage().data_ptr() in self.held]
        self.calls.append((str(function), [tuple(tensor.shape) for tensor in tensors], addresses))
        return function(*args, **(kwargs or {}))


def decoder_of(model):
    prompt = torch.randint(3, 500, (PROMPT,), generator=torch.Generator().manual_seed(1))
    logits, state = prefill(model, prompt, torch.arange(PROMPT), 1_000)
    decoder = FixedDecoder(model, state, int(logits.argmax()), PROMPT, ROOM)
    expected = []
    for step in range(STEPS):
        logits = run(model, logits.argmax()[None], torch.tensor([PROMPT + step]), state, rows=1)[0]
        expected.append(int(logits.argmax()))
    return decoder, expected


@pytest.mark.parametrize("model", SUPPORTED_TYPES, indirect=True)
def test_decodes_the_same_tokens_as_the_usual_pass(model):
    decoder, expected = decoder_of(model)
    assert [int(decoder.step()) for _ in range(STEPS)] == expected


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_every_step_has_the_same_operations_shapes_and_addresses(model):
    decoder, _ = decoder_of(model)
    held = [decoder.token, decoder.position, decoder.slots, decoder.cache.slot]
    held += [tensor for pair in decoder.cache.buffers for tensor in pair]
    steps = []
    for _ in range(2):
        with Recorder({tensor.untyped_storage().data_ptr() for tensor in held}) as recorder:
            decoder.step()
        steps.append(recorder.calls)
    assert steps[0] == steps[1]
    assert any(addresses for *_, addresses in steps[0])
