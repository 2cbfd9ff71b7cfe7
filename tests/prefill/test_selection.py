"""Selection of chunks: budgets, order, spans."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.errors import UsageError
from specprefill_cli.prefill.fates import Fate, full_plan
from specprefill_cli.prefill.selection import (
    chunk_budget,
    chunk_scores,
    chunks_for_mass,
    select,
    selected_spans,
    with_neighbours,
)

importances = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=300).map(torch.tensor)


@given(importances, st.integers(1, 50))
def test_chunk_scores_are_the_means_of_their_tokens(importance, size):
    scores = chunk_scores(importance, size)
    assert len(scores) == math.ceil(len(importance) / size)
    for number, score in enumerate(scores):
        part = importance[number * size : (number + 1) * size]
        assert score.item() == pytest.approx(part.double().mean().item(), abs=1e-6)


@given(importances, st.floats(0.01, 1), st.integers(1, 40), st.integers(0, 30), st.integers(0, 30))
def test_a_plan_covers_the_document_and_keeps_to_the_budget(importance, keep, size, head, tail):
    document = (head, head + len(importance))
    prompt = head + len(importance) + tail
    chosen = select(importance, keep=keep, chunk_size=size, prompt_tokens=prompt, document=document)
    spans = chosen.plan.spans
    assert spans[0].start == document[0]
    assert spans[-1].end == document[1]
    assert all(one.end == other.start and one.fate != other.fate for one, other in itertools.pairwise(spans))
    kept = chosen.plan.kept_positions()
    assert len(kept) == chosen.plan.kept_tokens
    assert set(range(head)) | set(range(document[1], prompt)) <= set(kept.tolist())
    # One chunk is always kept, and a chunk is not split: at most a chunk more than the ratio allows.
    assert chosen.plan.kept_tokens <= max(keep * prompt, head + tail + keep * len(importance) / 2) + size + 1e-6
    if chosen.warnings == ():
        assert chosen.plan.kept_ratio <= keep + size / prompt + 1e-9


@given(importances, st.integers(1, 40))
def test_keep_one_keeps_everything(importance, size):
    document = (3, 3 + len(importance))
    plan = select(importance, keep=1.0, chunk_size=size, prompt_tokens=document[1] + 2, document=document).plan
    assert plan.kept_tokens == document[1] + 2
    assert plan.kept_positions().tolist() == full_plan(document[1] + 2, document).kept_positions().tolist()


def test_the_best_chunks_are_kept_and_ties_go_to_the_earlier():
    importance = torch.tensor([0.0, 0.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0, 9.0])
    plan = select(importance, keep=0.7, chunk_size=2, prompt_tokens=9, document=(0, 9)).plan
    kept = [(span.start, span.end) for span in plan.spans if span.fate is Fate.RECOMPUTE]
    assert kept == [(2, 8), (8, 9)] or kept == [(2, 9)]
    plan = select(importance, keep=0.5, chunk_size=2, prompt_tokens=9, document=(0, 9)).plan
    assert [(span.start, span.end) for span in plan.spans if span.fate is Fate.RECOMPUTE] == [(2, 6), (8, 9)]


def test_prefix_and_suffix_count_in_the_budget():
    assert chunk_budget(0.3, prompt_tokens=1_000, document_tokens=1_000, chunk_size=10) == 30
    assert chunk_budget(0.3, prompt_tokens=1_000, document_tokens=900, chunk_size=10) == 20
    assert chunk_budget(0.1, prompt_tokens=100, document_tokens=60, chunk_size=10) == 1


def test_long_question_does_not_starve_the_document():
    plenty = select(torch.rand(6_001), keep=0.1, chunk_size=32, prompt_tokens=6_041, document=(20, 6_021))
    starved = select(torch.rand(6_001), keep=0.1, chunk_size=32, prompt_tokens=6_641, document=(20, 6_021))
    assert plenty.warnings == ()
    assert starved.plan.kept_tokens - 640 >= 300
    assert "of 6,001 document tokens" in starved.warnings[0]


def test_a_budget_that_question_and_instruction_use_up_is_said():
    chosen = select(torch.rand(40), keep=0.1, chunk_size=8, prompt_tokens=140, document=(50, 90))
    assert "could not be held" in chosen.warnings[0]


@pytest.mark.parametrize("keep", [0, -0.1, 1.7, float("nan")])
def test_a_keep_ratio_out_of_range_is_refused(keep):
    with pytest.raises(UsageError, match="above 0 and at most 1"):
        chunk_budget(keep, 100, 90, 10)


@given(importances.map(lambda scores: scores + 0.01), st.floats(0.05, 1))
def test_auto_takes_the_smallest_set_with_the_mass(scores, share):
    count = chunks_for_mass(scores, share)
    ordered = scores.sort(descending=True).values.double()
    assert ordered[:count].sum() >= share * ordered.sum() * (1 - 1e-5)
    if count > 1:
        assert ordered[: count - 1].sum() < share * ordered.sum() * (1 + 1e-5)


def test_an_empty_document_has_no_spans():
    assert select(torch.empty(0), keep=0.3, chunk_size=32, prompt_tokens=20, document=(10, 10)).plan.kept_tokens == 20


def test_spans_end_with_the_document_not_with_the_last_chunk():
    spans = selected_spans(torch.tensor([True, False]), 32, (5, 45))
    assert [(span.start, span.end) for span in spans] == [(5, 37), (37, 45)]


def test_neighbours_lift_a_chunk_beside_a_good_one_and_edges_have_one():
    scores = torch.tensor([0.0, 4.0, 1.0, 0.0, 2.0])
    assert with_neighbours(scores, 0.5).tolist() == [2.0, 4.5, 3.0, 1.5, 2.0]
    importance = scores.repeat_interleave(2)
    plain, lifted = (
        select(importance, keep=0.45, chunk_size=2, prompt_tokens=10, document=(0, 10), neighbours=weight).chunks
        for weight in (0.0, 0.5)
    )
    assert (plain.tolist(), lifted.tolist()) == ([1, 2, 4], [0, 1, 2])


def test_scores_that_tell_nothing_are_told():
    found = select(torch.zeros(200), keep=0.5, chunk_size=32, prompt_tokens=220, document=(10, 210))
    assert "scored 0" in found.warnings[0]
    assert select(torch.rand(200), keep=0.5, chunk_size=32, prompt_tokens=220, document=(10, 210)).warnings == ()


def test_a_chunk_larger_than_the_document_takes_no_memory():
    found = select(torch.rand(200), keep=0.5, chunk_size=10**12, prompt_tokens=220, document=(10, 210))
    assert found.plan.kept_tokens == 220


def test_chunks_too_coarse_for_the_ratio_are_said():
    assert (
        "chunks of 100 tokens are too coarse; kept 0.55"
        in select(torch.rand(200), keep=0.2, chunk_size=100, prompt_tokens=220, document=(10, 210)).warnings[0]
    )
    assert select(torch.rand(2_000), keep=0.2, chunk_size=100, prompt_tokens=2_020, document=(10, 2_010)).warnings == ()
    assert select(torch.rand(200), keep=0.2, chunk_size=32, prompt_tokens=220, document=(10, 210)).warnings == ()
