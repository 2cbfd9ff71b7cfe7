"""The optimiser Muon: the same updates as torch's, in either precision."""

import pytest
import torch

from specprefill_cli.training.muon import Muon


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-4), (torch.float32, 1e-3)])
def test_updates_are_those_of_torch(dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator) for shape in ((32, 48), (48, 32), (32, 48), (16, 16))]
    our_parameters, torch_parameters = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    optimizers = [
        Muon(our_parameters, lr=1e-2, weight_decay=0.1, dtype=dtype),
        torch.optim.Muon(torch_parameters, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):
        for ours, reference in zip(our_parameters, torch_parameters, strict=True):
            ours.grad = torch.randn(ours.shape, generator=generator)
            reference.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for ours, reference, start in zip(our_parameters, torch_parameters, starts, strict=True):
        torch.testing.assert_close(ours, reference, atol=tolerance, rtol=0)
        assert (ours - start).abs().max() > 10 * tolerance
