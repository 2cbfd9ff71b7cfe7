"""A checkpoint has one fingerprint, whatever it is computed in."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specprefill_cli.models.calibration import weights_fingerprint
from tests.helpers.architectures import SIZES


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_dtypes_do_not_change_it_and_weights_do(stored):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES | {"vocab_size": 300}))
    state = {name: value.to(stored) for name, value in model.state_dict().items()}
    found = set()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model.float().load_state_dict(state)
        found.add(weights_fingerprint(model.to(dtype)))
    assert len(found) == 1
    model.float().load_state_dict(state)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    assert weights_fingerprint(model) not in found
