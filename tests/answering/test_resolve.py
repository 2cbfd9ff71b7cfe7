"""The scorer that `auto` stands for."""

from dataclasses import replace

import pytest
from transformers import LlamaConfig

from specprefill_cli.answering.resolve import LONGEST_ENCODED, prompt_scorer, resolve_scorer
from specprefill_cli.models.loading import ModelOutline
from specprefill_cli.settings import Settings


def replace_target(pair, layers, device="cpu"):
    """Replace the target by an outline of SmolLM2-135M's width."""
    config = LlamaConfig(hidden_size=576, intermediate_size=1_536, num_hidden_layers=layers, num_attention_heads=9)
    return replace(pair, target=ModelOutline("target", config, pair.target.tokenizer, device))


def test_the_encoder_helps_the_bundled_draft_where_the_target_is_large_enough(tiny_session):
    pair = tiny_session.pair
    assert resolve_scorer("auto", pair, "select") == "heads"
    assert resolve_scorer("auto", replace_target(pair, 4), "select") == "heads"
    assert resolve_scorer("auto", replace_target(pair, 30), "select") == "blend"
    foreign = replace(replace_target(pair, 30), draft=replace(pair.draft, name="other"))
    assert resolve_scorer("auto", foreign, "select") == "heads"
    assert resolve_scorer("lexical", replace_target(pair, 30), "select") == "lexical"


@pytest.mark.parametrize(
    ("scorer", "device", "tokens", "expected"),
    [
        ("auto", "cpu", LONGEST_ENCODED, "blend"),
        ("auto", "cpu", LONGEST_ENCODED + 1, "heads"),
        ("auto", "cuda", LONGEST_ENCODED + 1, "blend"),
        ("blend", "cpu", LONGEST_ENCODED + 1, "blend"),
    ],
)
def test_a_cpu_does_not_encode_very_long_documents(tiny_session, scorer, device, tokens, expected):
    pair = replace_target(tiny_session.pair, 30, device)
    assert prompt_scorer(Settings(scorer=scorer), pair, tokens) == expected
