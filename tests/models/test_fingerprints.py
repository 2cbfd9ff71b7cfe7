"""A checkpoint has one fingerprint, whatever dtype the model runs in."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specprefill_cli.prefill.calibration import weights_fingerprint
from tests.helpers.architectures import SIZES


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_fingerprint_depends_on_weights_and_not_on_dtype(stored):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES | {"vocab_size": 300}))
    state = {name: value.to(stored) for name, value in model.state_dict().items()}
    fingerprints = set()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model.float().load_state_dict(state)
        fingerprints.add(weights_fingerprint(model.to(dtype)))
    assert len(fingerprints) == 1
    model.float().load_state_dict(state)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    assert weights_fingerprint(model) not in fingerprints
