"""Dry runs: the plan of `select` without the target's weights, and estimates by the cost model."""

import json
from dataclasses import asdict

import dacite
import pytest

from specprefill_cli.answering.session import open_session
from specprefill_cli.answering.tasks import KEEP_RATIOS, dry_run
from specprefill_cli.engine.http import JSON
from specprefill_cli.models import loading
from specprefill_cli.models.loaded import ModelOutline
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.record import DryRun, json_line
from specprefill_cli.settings import Settings
from tests.helpers.samples import collection_of

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 20
COLLECTION = collection_of(TEXT)
QUESTION = "What do tickets cost?"


@pytest.fixture(scope="module")
def planner():
    return open_session(Settings(), True, target_weights=False)


def test_plan_equals_that_of_select(planner, tiny_session):
    settings = Settings(mode="select", keep=0.3, max_new_tokens=1)
    run = dry_run(planner, COLLECTION, QUESTION, settings)
    answer = tiny_session.ask(COLLECTION, QUESTION, settings).finished()
    for name in ("spans", "prompt_tokens", "kept_tokens", "kept_ratio"):
        assert getattr(run, name) == getattr(answer, name)
    assert run.phases["draft_prefill"] > 0
    assert run.phases["target_prefill"] == 0


def test_weights_are_loaded_only_for_a_draft_that_scores(planner, monkeypatch):
    assert isinstance(planner.pair.target, ModelOutline)
    assert planner.pair.same_tokenizer
    monkeypatch.setattr(loading, "load_model", None)
    dry_run(open_session(Settings(), False, target_weights=False), COLLECTION, QUESTION, Settings(scorer="lexical"))


def test_estimates_match_the_cost_model(planner):
    settings = Settings(keep=0.3)
    run = dry_run(planner, COLLECTION, QUESTION, settings)
    assert [estimate.keep for estimate in run.estimates] == [0.3, *(keep for keep in KEEP_RATIOS if keep != 0.3)]
    assert run.estimates[0].kept_tokens == run.kept_tokens
    target = cost_of(planner.pair.target)
    request = planner.request(COLLECTION, QUESTION, settings)
    scoring = SCORERS[request.scorer].cost(request, with_overhead=True)
    full = target.prefill_with_overhead(run.prompt_tokens)
    for estimate in run.estimates:
        expected = full / (scoring + target.prefill_with_overhead(estimate.kept_tokens))
        assert estimate.speedup == pytest.approx(expected)
        assert estimate.ttft_seconds * estimate.speedup == pytest.approx(run.full_ttft_seconds)
    # Seconds scale with the measured draft prefill. The target is larger than the draft.
    assert run.full_ttft_seconds > run.phases["draft_prefill"]


def test_estimates_without_a_draft_have_speedups_but_no_seconds(planner):
    run = dry_run(planner, COLLECTION, QUESTION, Settings(scorer="random", keep=0.2))
    assert run.pair["draft"] is None
    assert run.full_ttft_seconds is None
    assert all(estimate.ttft_seconds is None and estimate.speedup > 1 for estimate in run.estimates)


def test_chunks_cover_the_document_and_the_record_survives_json(planner):
    run = dry_run(planner, COLLECTION, QUESTION, Settings(keep=0.3))
    record = json.loads(json_line(asdict(run)))
    assert dacite.from_dict(DryRun, record, JSON) == run
    assert record["pair"] == {"draft": "tiny:draft", "target": "tiny:target"}
    assert record["auto"]["mode"] in ("select", "full")
    chunks = record["chunks"]
    assert [chunk["start"] for chunk in chunks[1:]] == [chunk["end"] for chunk in chunks[:-1]]
    assert (chunks[0]["start"], chunks[-1]["end"]) == (run.spans[0].start, run.spans[-1].end)
    kept = sum(chunk["end"] - chunk["start"] for chunk in chunks if chunk["fate"] == "recompute")
    assert kept == sum(span["end"] - span["start"] for span in record["spans"] if span["fate"] == "recompute")
    assert {tuple(chunk["pages"]) for chunk in chunks} == {(1,)}
    assert max(chunks, key=lambda chunk: chunk["importance"])["fate"] == "recompute"
    assert set(record["estimates"][0]) == {"keep", "kept_tokens", "kept_ratio", "speedup", "ttft_seconds"}


@pytest.mark.parametrize(("question", "warned"), [("Why?", False), ("Why is the north gate open? " * 40, True)])
def test_a_question_that_pushes_the_total_above_the_keep_ratio_is_warned_of(random_session, question, warned):
    settings = Settings(mode="select", scorer="lexical", keep=0.1, max_new_tokens=2)
    answer = random_session.ask(collection_of("The north gate opens at nine. " * 100), question, settings).finished()
    assert (answer.kept_ratio > 0.15) == warned
    assert any("question and instruction alone take" in warning for warning in answer.warnings) == warned
