"""Published model shapes with random weights: sizes, names, and a measurement on small shapes."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.lab.benchmarks.shapes import CONTEXT, named_config, published_shapes, shape_pair, shaped_session
from specprefill_cli.settings import Settings

# Parameters in billions, as published with each model.
PUBLISHED_BILLIONS = {
    **{"qwen2.5-0.5b": 0.49, "qwen2.5-1.5b": 1.54, "qwen2.5-7b": 7.61, "qwen2.5-14b": 14.7, "qwen2.5-32b": 32.5},
    **{"qwen2.5-72b": 72.7, "qwen3-0.6b": 0.6, "qwen3-8b": 8.2, "qwen3-32b": 32.8},
    **{"llama-3.2-1b": 1.23, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6},
}


@pytest.mark.parametrize("name", sorted(published_shapes()))
def test_shapes_have_the_published_number_of_parameters(name):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(named_config(name, "target"))
    assert model.num_parameters() / 1e9 == pytest.approx(PUBLISHED_BILLIONS[name], rel=0.02)


def test_rejects_unknown_shapes_and_lists_the_known_ones():
    assert shape_pair("qwen3-0.6b:Qwen3-8B") == ("qwen3-0.6b", "qwen3-8b")
    with pytest.raises(UsageError, match=r"'qwen9' is unknown; give DRAFT:TARGET of tiny, qwen2\.5-0\.5b"):
        shape_pair("qwen9:qwen3-8b")
    with pytest.raises(UsageError, match="needs two names"):
        shape_pair("qwen3-8b")


def test_tiny_shapes_match_the_bundled_pair_with_a_longer_context(tiny_session):
    assert shape_pair("tiny:tiny") == ("tiny", "tiny")
    session = shaped_session("tiny:tiny", Settings(devices="cpu"))
    for role in ("draft", "target"):
        shaped, bundled = getattr(session.pair, role), getattr(tiny_session.pair, role)
        assert shaped.model.num_parameters() == bundled.model.num_parameters()
        assert shaped.context == shaped.config.max_position_embeddings == CONTEXT > 131_072 + 64
    assert named_config("tiny", "draft").hidden_size < named_config("tiny", "target").hidden_size


def test_rejects_shapes_larger_than_memory(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    with pytest.raises(SpecprefillError, match=r"--shapes qwen3-0.6b:qwen3-8b, target: its weights take 15\.3 GiB"):
        shaped_session("qwen3-0.6b:qwen3-8b", Settings(dtype="bfloat16", devices="cpu"))
