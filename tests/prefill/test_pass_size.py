"""Tokens of a pass: as set, or chosen from memory."""

import pytest
import torch

from specprefill_cli.cli.sources import merge_settings
from specprefill_cli.models.adapter import free_memory, prefill
from specprefill_cli.models.cost import cost_of
from specprefill_cli.prefill import pass_size as module
from specprefill_cli.prefill.pass_size import LARGEST, LARGEST_ON_CPU, SMALLEST, choose_pass_size, pass_bytes, pass_size
from specprefill_cli.settings import Settings


@pytest.mark.parametrize(
    ("free", "cache", "token_bytes", "expected"),
    [
        (64 * 2**30, 0, 1_000, LARGEST),
        # A quarter of 1 GiB holds 2,684 tokens of 100 kB.
        (2**30, 0, 100_000, 2_048),
        (2 * 2**30, 2**30, 100_000, 2_048),
        (2**30, 2**31, 100_000, SMALLEST),
        (4 * 4_096 * 1_000, 0, 1_000, 4_096),
        (4 * 4_096 * 1_000 - 4, 0, 1_000, 2_048),
    ],
)
def test_the_largest_power_of_two_that_fits(free, cache, token_bytes, expected):
    assert choose_pass_size(free, cache, token_bytes) == expected


def test_more_memory_or_a_narrower_model_never_makes_a_pass_shorter():
    sizes = [choose_pass_size(free, 2**20, 5_000) for free in range(0, 2**30, 2**24)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 3
    narrow = [choose_pass_size(2**30, 2**20, width) for width in (10**6, 10**5, 10**4)]
    assert narrow == sorted(narrow)


def test_a_cpu_gains_nothing_from_passes_that_suit_a_gpu(random_pair, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda _: 2**40)
    assert pass_size("auto", random_pair, 100_000) == LARGEST_ON_CPU < LARGEST
    assert choose_pass_size(2**40, 0, 1_000) == LARGEST


def test_what_is_set_is_taken(random_pair, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda _: pytest.fail("nobody asked"))
    assert pass_size(48, random_pair, 4_000) == 48


def test_auto_leaves_room_for_the_cache_and_takes_the_wider_models_size(random_pair, monkeypatch):
    assert Settings().prefill_chunk == "auto"
    token = pass_bytes(cost_of(random_pair.target), 4)
    monkeypatch.setattr(module, "free_memory", lambda _: 4 * 1_024 * token)
    assert pass_size("auto", random_pair, 0) == 1_024
    # A prompt whose cache takes some of it leaves less than that.
    assert pass_size("auto", random_pair, 500) == 512
    random_pair.draft.model.config.intermediate_size *= 8
    assert pass_size("auto", random_pair, 0) == SMALLEST
    random_pair.draft = None
    assert pass_size("auto", random_pair, 0) == 1_024


def test_a_prompt_whose_keys_turn_with_its_length_is_read_at_once(random_pair, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda _: 0)
    monkeypatch.setattr(module, "rotation_depends_on_length", lambda _: True)
    assert pass_size("auto", random_pair, 100_000) == 100_000
    assert pass_size(512, random_pair, 100_000) == 100_000


def test_the_cpus_free_memory_is_the_machines():
    assert 2**20 < free_memory(torch.device("cpu")) < 2**50


def test_a_pass_takes_no_more_than_was_counted(random_pair):
    """Twice the tokens in one pass take at most the counted bytes more, at their peak, beside cache and logits."""
    model = random_pair.target.model
    token = pass_bytes(cost_of(random_pair.target), 4)

    def peak(tokens):
        with torch.profiler.profile(profile_memory=True) as trace:
            prefill(model, torch.arange(3, 3 + tokens), torch.arange(tokens), tokens)
        held = most = 0
        for event in memory_events(trace):
            held += event
            most = max(most, held)
        return most

    grown = peak(4_000) - peak(2_000)
    cache = 3 * 2 * 2 * 16 * 4
    assert 0 < grown <= 2_000 * 1.5 * (token + cache)


def memory_events(trace):
    """Bytes allocated (or freed, negative), in order of time."""
    found = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(found, key=lambda event: event.start_ns())]


def test_auto_and_numbers_are_read_from_everywhere():
    assert merge_settings({"prefill_chunk": "auto"}, {}).prefill_chunk == "auto"
    assert merge_settings({"prefill_chunk": "4096"}, {}).prefill_chunk == 4_096
    assert merge_settings({}, {"SPECPREFILL_PREFILL_CHUNK": "64"}).prefill_chunk == 64
