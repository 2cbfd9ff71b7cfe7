"""Answers of `longrope` models end before the prompt's keys would have to turn."""

from types import SimpleNamespace

import pytest
from transformers import LlamaConfig, Phi3Config

from specprefill_cli.answering.resolve import cap_answer
from specprefill_cli.models.adapter import turning_point

ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 100,
}
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 400}
LONGROPE = Phi3Config(**SIZES, original_max_position_embeddings=100, rope_parameters=ROPE, pad_token_id=0)


def request(config, length):
    target = SimpleNamespace(config=config, name="phi")
    return SimpleNamespace(pair=SimpleNamespace(target=target), prompt=SimpleNamespace(length=length))


@pytest.mark.parametrize(
    ("length", "wanted", "given"), [(60, 41, 41), (60, 42, 41), (100, 9, 1), (101, 90, 90), (10, 20, 20)]
)
def test_an_answer_stays_below_the_length_at_which_keys_turn(length, wanted, given):
    longest, warnings = cap_answer(wanted, request(LONGROPE, length))
    assert longest == given
    assert len(warnings) == (given < wanted)
    assert all("rotates its keys" in warning for warning in warnings)


def test_other_models_do_not_turn():
    plain = LlamaConfig(max_position_embeddings=100)
    assert turning_point(plain) is None
    assert cap_answer(90, request(plain, 60)) == (90, ())
