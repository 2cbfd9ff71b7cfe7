"""Answers of `longrope` models end before the threshold at which the rotary embedding changes."""

from types import SimpleNamespace

import pytest
from transformers import LlamaConfig, Phi3Config

from specprefill_cli.answering.resolve import cap_answer
from specprefill_cli.models.adapter import longrope_threshold

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
    ("length", "max_new_tokens", "expected"), [(60, 41, 41), (60, 42, 41), (100, 9, 1), (101, 90, 90), (10, 20, 20)]
)
def test_answer_ends_at_the_longrope_threshold(length, max_new_tokens, expected):
    longest, warnings = cap_answer(max_new_tokens, request(LONGROPE, length))
    assert longest == expected
    assert len(warnings) == (expected < max_new_tokens)
    assert all("it reaches 100" in warning for warning in warnings)


def test_other_rope_types_have_no_threshold():
    plain = LlamaConfig(max_position_embeddings=100)
    assert longrope_threshold(plain) is None
    assert cap_answer(90, request(plain, 60)) == (90, ())
