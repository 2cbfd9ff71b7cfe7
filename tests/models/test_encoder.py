"""The sentence encoder: the same states as transformers' BERT, stretches that divide a text, vectors that mean something."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models import encoder as module
from specprefill_cli.models.encoder import HEADS, LAYERS, OVERLAP, STRETCH, WIDTH, divide, load_encoder, unpack_weights
from specprefill_cli.training.encoder import packed, rename_weights


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("cpu")


def test_states_are_those_of_transformers():
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH}
    config = BertConfig(vocab_size=50, num_hidden_layers=LAYERS, num_attention_heads=HEADS, **sizes)
    model = BertModel(config, add_pooling_layer=False).eval()
    ours = module.Encoder(rename_weights(model.state_dict()), tokenizer=None)
    ids = torch.randint(0, 50, (2, 40))
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(ours.states(ids), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tokens", [0, 1, 100, STRETCH - 2, STRETCH - 1, 700, 5_000])
def test_stretches_of_one_size_divide_a_text(tokens):
    stretches = divide(tokens)
    assert [place for stretch in stretches for place in range(*stretch.core)] == list(range(tokens))
    assert len({stretch.end - stretch.start for stretch in stretches}) <= 1
    for number, stretch in enumerate(stretches):
        low, high = stretch.core
        # What is read at an inner edge has text beside it.
        assert low - stretch.start >= (OVERLAP // 2 if number else 0)
        assert stretch.end - high >= (OVERLAP // 2 if number + 1 < len(stretches) else 0)


def test_packed_weights_are_near_the_original():
    weight = torch.randn(8, 64) * torch.logspace(-3, 1, 8)[:, None]
    restored = unpack_weights(packed({"a": weight, "words": weight, "b": weight[0]}), torch.float32)
    assert set(restored) == {"a", "words", "b"}
    largest = weight.abs().amax(1, keepdim=True)
    assert ((restored["a"] - weight).abs() <= largest / 127).all()
    assert ((restored["words"] - weight).abs() <= largest / 13).all()
    torch.testing.assert_close(restored["b"], weight[0], rtol=1e-3, atol=1e-5)


def test_other_words_for_the_same_are_nearer_than_other_things(encoder):
    question = encoder.text_vector("How long can I send it back for?")
    same, other = map(encoder.text_vector, ("Returns are accepted within 30 days.", "The pump needs oil every year."))
    assert question @ same > question @ other + 0.1


def test_chunk_vectors_follow_the_text(encoder):
    oil, back = "The pump needs oil every year. ", "Returns are accepted within 30 days of the purchase. "
    text = oil * 60 + back + oil * 60 + "     "
    starts = np.array([0, 30 * len(oil), 60 * len(oil), 60 * len(oil) + len(back), len(text) - 5])
    vectors = encoder.chunk_vectors(text, starts)
    assert vectors.shape == (5, WIDTH)
    torch.testing.assert_close(vectors.norm(dim=1), torch.tensor([1.0, 1, 1, 1, 0]), atol=1e-3, rtol=0)
    assert int((vectors @ encoder.text_vector("How long can I send it back for?")).argmax()) == 2


def test_a_text_without_words_has_zero_vectors(encoder):
    assert not encoder.chunk_vectors("   ", np.array([0])).any()
    assert torch.isfinite(encoder.text_vector("")).all()


def test_missing_files_are_an_error(tmp_path):
    with pytest.raises(SpecprefillError, match="install specprefill again"):
        load_encoder("cpu", tmp_path)
