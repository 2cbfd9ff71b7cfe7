"""A longer context by a static factor of the rotary embedding."""

import math

import pytest
import torch
from transformers import Qwen2Config

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.placement import Placement
from specprefill_cli.models.quantization import NONE
from specprefill_cli.models.rope_scaling import RopeScaling, context_length
from tests.helpers.architectures import ARCHITECTURES, build_model

YARN = RopeScaling(kind="yarn", factor=4.0)


def test_yarn_extends_the_context():
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768}
    assert context_length(Qwen2Config(max_position_embeddings=32_768, rope_parameters=rope)) == 131_072
    assert context_length(Qwen2Config(max_position_embeddings=32_768)) == 32_768


def test_scaling_is_written_as_kind_and_factor():
    assert RopeScaling.parse("none") is None
    assert RopeScaling.parse("yarn:4") == YARN
    assert RopeScaling.parse("linear:2.5") == RopeScaling(kind="linear", factor=2.5)


@pytest.mark.parametrize(
    "text", ["yarn", "yarn:", "yarn:1", "yarn:0.5", "yarn:65", "yarn:-4", "dynamic:4", "yarn:4x", ""]
)
def test_other_scalings_are_refused(text):
    with pytest.raises(UsageError, match=f"--rope-scaling {text}: unknown; use none, yarn:FACTOR"):
        RopeScaling.parse(text)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "gemma3"])
@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_every_architecture_gets_the_longer_context(name, kind):
    config = ARCHITECTURES[name]()
    RopeScaling(kind=kind, factor=4.0).apply(config, name)
    assert context_length(config) == 4 * 4_096
    assert not rotation_depends_on_length(config)


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        (ARCHITECTURES["gemma3"](), "one for each kind of layer"),
        (Qwen2Config(rope_parameters={"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}), "linear"),
    ],
)
def test_an_embedding_that_cannot_be_scaled_is_refused(config, cause):
    with pytest.raises(SpecprefillError, match=rf"big: --rope-scaling yarn:4 does not suit .*\({cause}\)"):
        YARN.apply(config, "big")


def test_a_loaded_model_rotates_more_slowly(tmp_path, tiny_session):
    build_model("qwen2").save_pretrained(tmp_path / "model")
    tiny_session.pair.target.tokenizer.save_pretrained(tmp_path / "model")
    frequencies = {}
    for factor in (None, 4.0):
        scaling = None if factor is None else RopeScaling(kind="linear", factor=factor)
        loaded = load_model(str(tmp_path / "model"), Placement(None), "float32", True, NONE, scaling)
        frequencies[factor] = loaded.model.model.rotary_emb.inv_freq
        assert loaded.context == 4_096 * (factor or 1)
    torch.testing.assert_close(frequencies[4.0], frequencies[None] / 4)


def test_yarn_keeps_fast_dimensions_and_slows_the_others(tmp_path, tiny_session):
    build_model("qwen2").save_pretrained(tmp_path / "model")
    tiny_session.pair.target.tokenizer.save_pretrained(tmp_path / "model")
    plain, scaled = (
        load_model(str(tmp_path / "model"), Placement(None), "float32", True, NONE, scaling).model.model.rotary_emb
        for scaling in (None, YARN)
    )
    ratio = plain.inv_freq / scaled.inv_freq
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(4.0)
    # Section 3.4 of arXiv 2309.00071: attention is sharpened by 0.1 ln(factor) + 1.
    assert scaled.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)
