"""The decoding pass of one token on a CPU, against transformers' modules."""

from unittest.mock import patch

import torch

from specprefill_cli.models.running import adapter
from specprefill_cli.models.running.adapter import prefill, run, window_layers
from specprefill_cli.models.running.cache import layer_keys
from specprefill_cli.models.running.one_token import SUPPORTED_TYPES, one_token_pass
from specprefill_cli.models.running.passes import ForwardInput


def decoded(model, steps=4):
    """Logits of some steps behind a prompt with a gap, and the keys that they left."""
    positions = torch.cat([torch.arange(20), torch.arange(60, 90)])
    ids = torch.randint(3, 8_000, (50 + steps,), generator=torch.Generator().manual_seed(0))
    _, state = prefill(model, ids[:50], positions, 1_000)
    logits = [run(model, ids[50 + step][None], torch.tensor([100 + step]), state, rows=1) for step in range(steps)]
    assert state.positions[50:].tolist() == [*range(100, 100 + steps)]
    return torch.cat(logits), torch.stack([layer_keys(state, layer) for layer in range(len(state.layers))])


def pass_of(model, **changes):
    state = prefill(model, torch.arange(3, 9), torch.arange(6), 100)[1]
    step = {"tokens": torch.tensor([3]), "positions": torch.tensor([6]), "rows": 1}
    return ForwardInput(model=model, state=state, **{**step, **changes})


def test_equals_the_pass_of_transformers(model):
    ours = decoded(model)
    with patch.object(adapter, "one_token_pass", lambda _step: None):
        expected = decoded(model)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_known_architectures_are_decoded_without_modules_of_transformers(model):
    calls = []
    prompt = pass_of(model)
    for layer in model.get_decoder().layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    is_supported = model.config.model_type in SUPPORTED_TYPES and not any(window_layers(model.config))
    assert (one_token_pass(prompt) is not None) == is_supported
    run(model, prompt.tokens, prompt.positions, prompt.state, rows=1)
    assert len(calls) == (0 if is_supported else len(model.get_decoder().layers))
