"""Tokens per prefill pass, explicit or chosen from the free memory."""

from itertools import accumulate

import torch

from specprefill_cli.models.machine import memory_plan as module
from specprefill_cli.models.machine.memory_plan import LARGEST, LARGEST_ON_CPU, SMALLEST, pass_bytes, pass_size
from specprefill_cli.models.running.adapter import prefill


def test_an_explicit_size_is_used_and_a_cpu_has_a_lower_maximum(random_pair, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda _: 2**40)
    assert pass_size(random_pair, 48, 4_000) == 48
    assert pass_size(random_pair, "auto", 100_000) == LARGEST_ON_CPU < LARGEST


def test_auto_leaves_room_for_the_cache_and_fits_the_larger_model(random_pair, monkeypatch):
    token = pass_bytes(random_pair.target)
    monkeypatch.setattr(module, "free_memory", lambda _: 4 * 1_024 * token - 4)
    assert pass_size(random_pair, "auto", 0) == 512
    monkeypatch.setattr(module, "free_memory", lambda _: 4 * 1_024 * token)
    assert pass_size(random_pair, "auto", 0) == 1_024
    # The cache of a prompt leaves less memory for the pass.
    assert pass_size(random_pair, "auto", 500) == 512
    random_pair.draft.model.config.intermediate_size *= 8
    assert pass_size(random_pair, "auto", 0) == SMALLEST
    random_pair.draft = None
    assert pass_size(random_pair, "auto", 0) == 1_024


def test_length_dependent_rope_prefills_in_a_single_pass(random_pair, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda _: 0)
    monkeypatch.setattr(module, "rotation_depends_on_length", lambda _: True)
    assert pass_size(random_pair, "auto", 100_000) == 100_000
    assert pass_size(random_pair, 512, 100_000) == 100_000


def test_pass_memory_stays_within_the_estimate(random_pair):
    """Doubling the tokens of a pass raises its peak memory by at most 1.5 times the estimate plus the cache."""
    model = random_pair.target.model
    token = pass_bytes(random_pair.target)

    def peak(tokens):
        with torch.profiler.profile(profile_memory=True) as trace:
            prefill(model, torch.arange(3, 3 + tokens), torch.arange(tokens), tokens)
        events = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
        # Bytes are negative when freed.
        return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))

    growth = peak(4_000) - peak(2_000)
    cache = 3 * 2 * 2 * 16 * 4
    assert 0 < growth <= 2_000 * 1.5 * (token + cache)
