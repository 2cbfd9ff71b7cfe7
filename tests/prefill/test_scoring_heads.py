"""Scoring heads: scores against eager attention, the search for heads, and their files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specprefill_cli.answering.resolve import resolve_scorer
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration.files import save_heads
from specprefill_cli.lab.calibration.head_search import Sighting, search_heads, search_lexical, smallest_mass
from specprefill_cli.lab.calibration.heads import calibrate_heads
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.models.running.adapter import window_layers
from specprefill_cli.prefill.calibration import Head, load_heads
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.scorers.attention import DEFAULT_WINDOW
from specprefill_cli.prefill.scorers.base import AutoBudget
from specprefill_cli.settings import Settings
from tests.helpers.sessions import GATES, collection_of, request_for
from tests.prefill.helpers import make_heads


@pytest.mark.parametrize("random_pair", ["llama", "qwen3", "gemma3", "phi3"], indirect=True)
@pytest.mark.parametrize("chunk", [10_000, 64])
def test_scores_match_eager_attention_of_the_chosen_heads(random_session, chunk):
    pair = random_session.pair
    pair.scoring_heads = make_heads(pair.draft, (1, 3, 0.75), (1, 0, 0.25))
    request = request_for(random_session, prefill_chunk=chunk)
    ours = SCORERS["heads"].score(request)
    model, prompt = pair.draft.model, request.draft_prompt
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attention = model(prompt.tokens[None], use_cache=False, output_attentions=True).attentions[1][0]
    rows = [*range(*prompt.question), prompt.length - 1]
    attention_mass = attention[:, rows, prompt.document[0] : prompt.document[1]].mean(1)
    expected = F.avg_pool1d(0.75 * attention_mass[3][None] + 0.25 * attention_mass[0][None], 13, stride=1, padding=6)[0]
    assert window_layers(model.config)[1] is None
    torch.testing.assert_close(ours.importance, expected, atol=1e-5, rtol=1e-4)
    assert ours.auto_budget == AutoBudget(share=0.7)


def test_the_draft_runs_only_the_layers_below_its_scoring_heads(random_session):
    pair = random_session.pair
    pair.scoring_heads = make_heads(pair.draft, (0, 1, 1.0))
    reached = []
    for number, layer in enumerate(pair.draft.model.model.layers):
        layer.register_forward_hook(lambda *_, number=number: reached.append(number))
    SCORERS["heads"].score(request_for(random_session))
    assert reached == []
    pair.scoring_heads = make_heads(pair.draft, (2, 1, 1.0))
    SCORERS["heads"].score(request_for(random_session))
    assert reached == [0, 1]


def test_auto_uses_heads_only_when_calibrated_as_default(random_session):
    pair = random_session.pair
    for uncalibrated in (None, make_heads(pair.draft, (0, 1, 1.0), default=False)):
        pair.scoring_heads = uncalibrated
        chosen = {mode: resolve_scorer("auto", pair, mode) for mode in ("auto", "select", "draft-kv", "hybrid")}
        assert chosen == {"auto": "lexical", "select": "lexical", "draft-kv": "question", "hybrid": "question"}
    pair.scoring_heads = make_heads(pair.draft, (0, 1, 1.0))
    assert {resolve_scorer("auto", pair, mode) for mode in ("auto", "select", "draft-kv")} == {"heads"}
    assert resolve_scorer("paper", pair, "select") == "paper"


def test_rejects_missing_heads_and_names_the_calibration_command(random_session):
    random_session.pair.scoring_heads = None
    with pytest.raises(SpecprefillError, match=r"no heads are known .*calibrate --heads"):
        SCORERS["heads"].score(request_for(random_session))


@pytest.mark.parametrize("random_pair", ["gemma3"], indirect=True)
def test_rejects_heads_in_short_window_layers(random_session):
    pair = random_session.pair
    pair.scoring_heads = make_heads(pair.draft, (0, 1, 1.0))
    with pytest.raises(SpecprefillError, match=r"window shorter than this prompt.*--scorer question"):
        SCORERS["heads"].score(request_for(random_session))


def test_heads_file_round_trips_and_rejects_other_drafts_and_damage(random_pair, tmp_path):
    draft = random_pair.draft
    heads = make_heads(draft, (1, 3, 0.75), (1, 0, 0.25))
    path = save_heads(heads, tmp_path)
    assert load_heads(tmp_path, draft) == heads
    assert load_heads(tmp_path / "nowhere", draft) is None
    with pytest.raises(SpecprefillError, match=r"made for another draft .*calibrate --heads"):
        load_heads(tmp_path, random_pair.target)
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "layers": 99}))
    with pytest.raises(SpecprefillError, match="layers '99', this one has '3'"):
        load_heads(tmp_path, draft)
    path.write_text("{")
    with pytest.raises(SpecprefillError, match="not a file of scoring heads"):
        load_heads(tmp_path, draft)


def importance(session, scorer="heads", *arguments, **settings):
    return SCORERS[scorer].score(request_for(session, *arguments, **settings)).importance


def make_sightings(good, count=60, heads=6, chunks=40, seed=0, lexical=False):
    """Make cases with noisy heads. Heads in `good` find the gold chunk in a range of cases, words in every second case."""
    generator = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        scores = generator.random((heads, chunks)).astype(np.float32)
        gold = int(generator.integers(chunks))
        for head, (low, high) in good.items():
            if low <= number / count < high:
                scores[head, gold] = 5
        words = np.eye(chunks)[gold if lexical and number % 2 else 0]
        cases.append(Sighting(scores, np.array([gold]), scores[0], words))
    return cases


def test_search_finds_and_combines_the_informative_heads():
    assert search_heads(make_sightings({4: (0, 1)}), heads=2) == (Head(2, 0, 1.0),)
    chosen = search_heads(make_sightings({1: (0, 0.5), 5: (0.5, 1)}), heads=3)
    assert chosen == (Head(0, 1, 0.5), Head(1, 2, 0.5))


def test_lexical_weight_is_positive_only_where_it_helps_the_heads():
    blind, chosen = {3: (0, 0.4)}, (Head(1, 1, 1.0),)
    assert search_lexical(make_sightings(blind, lexical=True), chosen, heads=2) > 0
    assert search_lexical(make_sightings(blind), chosen, heads=2) == 0


def test_lexical_scores_are_added_with_their_weight(random_session):
    pair = random_session.pair
    unmixed, lexical = importance(random_session), importance(random_session, "lexical")
    pair.scoring_heads = replace(pair.scoring_heads, lexical=0.5)
    torch.testing.assert_close(importance(random_session), unmixed / unmixed.sum() + 0.5 * lexical / lexical.sum())


def test_smallest_mass_reaches_the_requested_recall():
    scores = [np.array([6.0, 3.0, 1.0]), np.array([2.0, 7.0, 1.0])]
    assert smallest_mass(scores, [np.array([0]), np.array([1])], 0.98) == pytest.approx(0.7, abs=1e-4)
    assert smallest_mass(scores, [np.array([1]), np.array([1])], 0.98) == pytest.approx(0.9, abs=1e-4)


def test_calibration_rejects_answers_missing_from_the_documents(random_session):
    missing = [Item("1", "Who?", ("a zebra",), collection_of(GATES * 6), (0, len(GATES) * 6))] * 30
    with pytest.raises(SpecprefillError, match="only 0 of 30 questions"):
        calibrate_heads(random_session, missing, Settings(), lambda _: None)


@pytest.mark.parametrize(
    ("scorer", "calibrated", "windows"),
    [
        ("heads", 64, [64, None, 80]),
        ("heads", None, [DEFAULT_WINDOW, None, 80]),
        ("question", 64, [DEFAULT_WINDOW, None, 80]),
        ("paper", 64, [None, None, None]),
    ],
)
def test_an_explicit_draft_window_overrides_the_calibrated_one(random_session, scorer, calibrated, windows):
    pair = random_session.pair
    pair.scoring_heads = replace(pair.scoring_heads, window=calibrated) if calibrated else None
    assert [SCORERS[scorer].window(pair, value) for value in ("auto", "off", 80)] == windows


def test_a_draft_window_changes_scores(random_session):
    full, narrow, wide = (
        importance(random_session, "heads", GATES * 48, "When?", draft_window=value) for value in ("off", 64, 10_000)
    )
    assert torch.equal(full, wide)
    assert not torch.allclose(full, narrow)
