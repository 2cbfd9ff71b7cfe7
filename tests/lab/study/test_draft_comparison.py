"""Comparing drafts by how well their KV maps to the target; random models only test the mechanics."""

from dataclasses import replace

import pytest
import torch

from specprefill_cli.draft_kv.projection import maps_of
from specprefill_cli.lab.study.draft_comparison import COMPARED, OWN, UNRELATED, fit_drafts, random_like
from specprefill_cli.prefill.calibration import weights_fingerprint
from tests.helpers.architectures import build_model


@pytest.fixture(scope="module")
def text(tokenizer):
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(300, 8_000, (1_000, 12), generator=generator)
    return " ".join(tokenizer.decode(ids) for ids in words)


def test_unrelated_draft_has_the_same_shape_and_other_weights(random_pair):
    state = torch.random.get_rng_state()
    first, same, other = (random_like(random_pair.draft, seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    shapes = [
        {name: tuple(value.shape) for name, value in loaded.model.named_parameters()}
        for loaded in (first, random_pair.draft)
    ]
    assert shapes[0] == shapes[1]
    fingerprints = [weights_fingerprint(loaded.model) for loaded in (random_pair.draft, first, same, other)]
    assert fingerprints[1] == fingerprints[2]
    assert len(set(fingerprints)) == 3
    assert first.model.dtype == random_pair.draft.model.dtype
    assert not first.model.training


def test_every_draft_is_fitted_to_the_same_target(random_pair, two_tokenizers, text):
    loaded = []

    def others():
        loaded.append("qwen2")
        yield replace(random_pair.draft, name="cousin", model=build_model("qwen2", seed=5))
        loaded.append("bytes")
        yield replace(two_tokenizers[1], name="bytes")

    progress = []
    own_calibration = maps_of(random_pair).calibration
    fits = fit_drafts(random_pair, [text], others(), lambda message: progress.append((message, tuple(loaded))))
    assert [fit.role for fit in fits] == [OWN, COMPARED, COMPARED, UNRELATED]
    own, cousin, other_tokenizer, unrelated = fits
    # Each draft is loaded only when it is compared.
    assert progress[0][1] == ()
    assert own.target_layers == cousin.target_layers == unrelated.target_layers == (1, 2)
    assert all(len(fit.key_errors) == len(fit.value_errors) == 2 for fit in (own, cousin, unrelated))
    assert len({fit.key_errors for fit in (own, cousin, unrelated)}) == 3
    assert (own.same_family, cousin.same_family) == (True, False)
    assert not other_tokenizer.same_tokenizer
    assert other_tokenizer.target_layers == ()
    assert "another tokenizer" in other_tokenizer.reason
    assert maps_of(random_pair).calibration is own_calibration
