"""The fixed cost of a pass: measured on GPUs only, counted by the cost model, and what `auto` then takes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.models import cost as cost_module
from specprefill_cli.models.cost import cost_of, measure, measure_passes
from specprefill_cli.prefill.auto_mode import automatic_mode
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.settings import Settings

DOCUMENT = Collection((one_page_document("doc", "The gate opens at nine. " * 400, "text/plain"),))


@pytest.fixture
def clock(monkeypatch):
    """Each pass takes `start` seconds, and `per_flop` for what it computes; the first of a length a minute more."""
    state = SimpleNamespace(now=0.0, start=0.0, per_flop=1e-12, lengths=[])

    def fake_prefill(model, tokens, positions, chunk):
        assert chunk >= len(tokens) == len(positions)
        cost = next(cost for known, cost in state.costs if known is model)
        state.now += state.start + state.per_flop * cost.prefill_flops(len(tokens))
        state.now += 60 * (len(tokens) not in state.lengths)
        state.lengths.append(len(tokens))

    monkeypatch.setattr(cost_module, "prefill", fake_prefill)
    return state


@pytest.fixture
def pair(random_pair, clock):
    clock.costs = [(loaded.model, cost_of(loaded)) for loaded in (random_pair.target, random_pair.draft)]
    return random_pair


def test_fixed_cost_is_that_of_as_many_tokens_as_take_as_long(pair, clock):
    cost = cost_of(pair.target)
    clock.start = clock.per_flop * cost.linear_flops(700)
    # The start-up of the long pass counts as computing, and so does the vocabulary of the short one.
    measure(pair.target, 4_096, lambda: clock.now)
    measured = pair.target.pass_tokens
    assert measured == pytest.approx(700, rel=0.3)
    assert pair.target.flops_per_second == pytest.approx(1 / clock.per_flop, rel=0.5)
    clock.start *= 4
    measure(pair.target, 4_096, lambda: clock.now)
    assert pair.target.pass_tokens > 2 * measured


def test_a_draft_that_computes_more_slowly_costs_its_time(tiny_session):
    pair = replace(tiny_session.pair)
    pair.draft, pair.target = replace(pair.draft), replace(pair.target)
    request = replace(tiny_session.request(DOCUMENT, "When?", Settings(scorer="question")), pair=pair)
    scorer = SCORERS["question"]
    operations, assumed = scorer.cost(request), scorer.cost(request, with_overhead=True)
    pair.draft.flops_per_second, pair.target.flops_per_second = 2e9, 8e9
    assert scorer.cost(request, with_overhead=True) == pytest.approx(4 * assumed)
    assert scorer.cost(request) == operations


def test_ranks_do_not_divide_the_fixed_cost_of_a_look_ahead_pass(tiny_session):
    """Eight ranks share both models: each pass of the draft takes them all as long as it takes one."""
    pair, shared = tiny_session.pair, SimpleNamespace(size=8)
    request = tiny_session.request(DOCUMENT, "When?", Settings(scorer="question"))
    cost = cost_of(pair.draft)
    single = step_cost(request)
    assert single == pytest.approx(cost.pass_flops(1, request.prompt.length) + cost.overhead_flops(), rel=1e-6)
    draft = replace(pair.draft, model=DividedModel(pair.draft.model, 8))
    divided = replace(
        pair, draft=draft, target=replace(pair.target, model=DividedModel(pair.target.model, 8)), ranks=shared
    )
    assert divided.draft_ranks.size == 8
    assert step_cost(replace(request, pair=divided)) == pytest.approx(single + 7 * cost.overhead_flops(), rel=1e-6)
    # A whole draft on every rank: each computes everything.
    undivided = replace(pair, ranks=shared)
    assert step_cost(replace(request, pair=undivided)) == pytest.approx(8 * single, rel=1e-6)


def step_cost(request):
    """What one more look-ahead token costs."""
    fewer = replace(request, look_ahead=request.look_ahead - 1)
    return SCORERS["question"].cost(request, True) - SCORERS["question"].cost(fewer, True)


class DividedModel:
    """A model as ranks that share it see it."""

    def __init__(self, model, ranks):
        self.model, self._tp_size = model, ranks

    def __getattr__(self, name):
        return getattr(self.model, name)


def test_passes_are_measured_once_and_on_gpus_only(pair, clock, monkeypatch):
    measure_passes(pair, 10_000, lambda: clock.now)
    assert pair.target.pass_tokens is pair.draft.pass_tokens is None
    monkeypatch.setattr(cost_module, "on_gpu", lambda loaded: loaded is pair.draft)
    measure_passes(pair, 10_000, lambda: clock.now)
    assert pair.target.pass_tokens is None
    assert pair.draft.pass_tokens > 0
    # Not more than the context.
    assert max(clock.lengths) == pair.draft.context
    passes = len(clock.lengths)
    measure_passes(pair, 10_000, lambda: clock.now)
    assert len(clock.lengths) == passes
    pair.draft.pass_tokens, pair.ranks = None, SimpleNamespace(size=2)
    measure_passes(pair, 10_000, lambda: clock.now)
    assert len(clock.lengths) == passes


def test_a_measured_cost_replaces_the_assumed_one_and_decides_for_auto(tiny_session):
    pair = replace(tiny_session.pair)
    pair.draft, pair.target = replace(pair.draft), replace(pair.target)
    request = replace(tiny_session.request(DOCUMENT, "When?", Settings(scorer="question")), pair=pair)
    assert automatic_mode(request)[0] == "select"
    cost = cost_of(pair.draft)
    pair.draft.pass_tokens = 5_000.0
    assert cost_of(pair.draft).overhead_flops() == cost.linear_flops(5_000)
    mode, reason = automatic_mode(request)
    assert mode == "full"
    assert "select promises only" in reason


def test_warm_up_measures_passes_for_auto_alone(random_session, monkeypatch):
    measured = []
    monkeypatch.setattr("specprefill_cli.answering.session.measure_passes", lambda *given: measured.append(given))
    for mode in ("full", "auto"):
        random_session.warm_up(Settings(mode=mode, prefill_chunk=640, speculate="off"))
    assert measured == [(random_session.pair, 640)]
