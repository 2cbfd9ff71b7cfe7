"""What `auto` stands for: the scorer, positions, the budget of `--keep auto`; and the longest answer of `longrope` models."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from transformers import LlamaConfig, Phi3Config

from specprefill_cli.answering.resolve import LONGEST_ENCODED, cap_answer, resolve_positions, resolve_scorer
from specprefill_cli.models.loaded import ModelOutline
from specprefill_cli.models.loading import load_outline
from specprefill_cli.models.machine.placement import Placement
from specprefill_cli.models.running.adapter import longrope_threshold
from specprefill_cli.prefill.calibration import TargetCalibration, load_target_calibration, weights_fingerprint
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.settings import AUTO, Settings
from tests.helpers.samples import collection_of


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


@pytest.mark.parametrize(("scorer", "device", "tokens", "expected"), [
    ("auto", "cpu", LONGEST_ENCODED, "blend"), ("auto", "cpu", LONGEST_ENCODED + 1, "heads"),
    ("auto", "cuda", LONGEST_ENCODED + 1, "blend"), ("blend", "cpu", LONGEST_ENCODED + 1, "blend"),
])  # fmt: skip
def test_a_cpu_does_not_encode_very_long_documents(tiny_session, scorer, device, tokens, expected):
    pair = replace_target(tiny_session.pair, 30, device)
    assert resolve_scorer(scorer, pair, "select", tokens) == expected


ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 100,
}
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 400}
LONGROPE = Phi3Config(**SIZES, original_max_position_embeddings=100, rope_parameters=ROPE, pad_token_id=0)


def request_of_length(config, length):
    target = SimpleNamespace(config=config, name="phi")
    return SimpleNamespace(pair=SimpleNamespace(target=target), prompt=SimpleNamespace(length=length))


@pytest.mark.parametrize(
    ("length", "max_new_tokens", "expected"), [(60, 41, 41), (60, 42, 41), (100, 9, 1), (101, 90, 90), (10, 20, 20)]
)
def test_answer_ends_at_the_longrope_threshold(length, max_new_tokens, expected):
    longest, warnings = cap_answer(max_new_tokens, request_of_length(LONGROPE, length))
    assert longest == expected
    assert len(warnings) == (expected < max_new_tokens)
    assert all("it reaches 100" in warning for warning in warnings)


def test_other_rope_types_have_no_threshold():
    plain = LlamaConfig(max_position_embeddings=100)
    assert longrope_threshold(plain) is None
    assert cap_answer(90, request_of_length(plain, 60)) == (90, ())


COLLECTION = collection_of("The gate opens at nine. " * 20)


def write(folder, **values):
    (folder / "calibration.json").write_text(json.dumps({"schema": 2, **values}))


def test_it_belongs_to_the_weights_that_it_names(random_pair, tmp_path):
    assert load_target_calibration(tmp_path, random_pair) is None
    write(tmp_path, positions="compact")
    assert load_target_calibration(tmp_path, random_pair).positions == "compact"
    write(tmp_path, positions="compact", target=weights_fingerprint(random_pair.target.model))
    assert load_target_calibration(tmp_path, random_pair).positions == "compact"
    write(tmp_path, positions="compact", target="0" * 16)
    assert load_target_calibration(tmp_path, random_pair) is None
    # An outline has no weights to compare.
    outlined = replace(random_pair, target=load_outline("tiny:target", Placement(None), offline=True))
    assert load_target_calibration(tmp_path, outlined) is not None


@pytest.mark.parametrize(("setting", "calibrated", "resolved"), [
    (AUTO, "compact", "compact"), (AUTO, "original", "original"), (AUTO, None, "original"),
    ("original", "compact", "original"),
])  # fmt: skip
def test_positions_are_the_calibrated_ones_unless_asked_for(random_pair, setting, calibrated, resolved):
    random_pair.target_calibration = TargetCalibration(positions=calibrated)
    settings = Settings(positions=setting)
    assert resolve_positions(settings, random_pair, 100) == resolved
    beyond = resolve_positions(settings, random_pair, random_pair.target.context)
    assert beyond == ("compact" if setting == AUTO else setting)


def test_its_mass_replaces_that_of_the_heads(random_session):
    request = random_session.request(COLLECTION, "When does the gate open?", Settings())
    assert HeadsScorer().auto_budget(request).share == 0.7
    request.pair.target_calibration = TargetCalibration(auto_mass=0.4, auto_tokens=2_000)
    budget = HeadsScorer().auto_budget(request)
    assert (budget.share, budget.tokens) == (0.4, 2_000)
