"""What lets `--mode auto` take draft KV: a stored verdict, its settings, and nothing else."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from specprefill_cli.answering.resolve import resolve_scorer
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.draft_kv.gate import DraftKvVerdict, Gate
from specprefill_cli.draft_kv.projection import load_calibration, maps_of, pair_verdicts
from specprefill_cli.lab.calibration.files import save_maps
from specprefill_cli.lab.study.verdicts import find_verdicts
from specprefill_cli.prefill.auto_mode import automatic_mode, automatic_modes
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.lab.study.test_equal_cost import item

# Long enough for draft KV to promise something on random weights.
TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 60
COLLECTION = Collection((one_page_document("doc", TEXT, "text/plain"),))
MODES_WITH_DRAFT_KV = ("draft-kv", "hybrid")
BASE = Settings(recompute=0.05, keep=0.1, look_ahead=1, max_new_tokens=2, speculate="off", draft_window=64)


def verdict(mode="draft-kv", **changes):
    """A verdict that the mode wins, with `changes`."""
    values = {
        "mode": mode,
        "recompute": BASE.recompute,
        "keep": BASE.keep,
        "exact_layers": 0,
        "select_keep": 0.5,
        "n": 60,
        "f1_delta": 6.0,
        "f1_delta_low": 2.0,
        "f1_delta_high": 10.0,
        "ttft_ratio": 1.0,
    }
    return DraftKvVerdict(**values | changes)


def choice(session, *verdicts, **settings):
    """What `auto` takes, and the reason, on a pair with these verdicts; caches of draft and target costs are large."""
    maps_of(session.pair).verdicts = verdicts
    return automatic_mode(session.request(COLLECTION, "When does the gate open?", BASE.varied(**settings)))


@pytest.fixture
def session(random_session, monkeypatch):
    """A pair on which draft KV promises 2x, as only a large target gives."""
    monkeypatch.setattr("specprefill_cli.draft_kv.modes.draft_kv_cost", half_of_full)
    return random_session


def half_of_full(request, *_):
    return MODES["full"].cost(request) / 2


@pytest.mark.parametrize("mode", MODES_WITH_DRAFT_KV)
def test_auto_takes_draft_kv_where_it_beat_select_and_says_why(session, mode):
    taken, reason = choice(session, verdict(mode))
    assert taken == mode
    assert reason.startswith(f"auto: {mode} promises 2.0x at ")
    assert "F1 +6.0 [2.0, 10.0] against select in at most the same time, n = 60" in reason
    stream = session.ask(COLLECTION, "When does the gate open?", BASE.varied(mode="auto"))
    assert (stream.finished().mode, stream.prefilled.gate is not None) == (mode, True)


@pytest.mark.parametrize("mode", MODES_WITH_DRAFT_KV)
@pytest.mark.parametrize(
    "changes",
    [
        {"f1_delta": -6.0, "f1_delta_low": -10.0, "f1_delta_high": -2.0},
        {"f1_delta_low": -0.1},
        {"f1_delta_low": 0.0},
        {"ttft_ratio": 1.06},
        {"recompute": 0.15},
        {"keep": None},
        {"exact_layers": 1},
    ],
)
def test_auto_never_takes_it_where_it_did_not_win_or_with_other_settings(session, mode, changes):
    assert choice(session, verdict(mode, **changes))[0] not in MODES_WITH_DRAFT_KV


def test_auto_never_takes_it_without_a_verdict_a_map_a_gain_or_the_drafts_states(session, monkeypatch):
    assert choice(session)[0] not in MODES_WITH_DRAFT_KV
    assert choice(session, verdict(), scorer="lexical")[0] not in MODES_WITH_DRAFT_KV
    calibration = maps_of(session.pair).calibration
    maps_of(session.pair).calibration = None
    assert choice(session, verdict())[0] not in MODES_WITH_DRAFT_KV
    # A gate that accepts nothing makes the mode as slow as `full`.
    ((name, kv_map),) = calibration.maps.items()
    gate = Gate(signal="kv_error", threshold=0.0, target=0.1, n=60, auroc=None)
    maps_of(session.pair).calibration = replace(calibration, maps={name: replace(kv_map, gate=gate)})
    assert choice(session, verdict())[0] not in MODES_WITH_DRAFT_KV
    maps_of(session.pair).calibration = calibration
    assert choice(session, verdict())[0] == "draft-kv"
    monkeypatch.setattr("specprefill_cli.draft_kv.modes.draft_kv_cost", lambda request, *_: half_of_full(request) * 1.8)
    assert choice(session, verdict())[0] not in MODES_WITH_DRAFT_KV


def test_auto_scores_with_the_draft_where_it_may_take_draft_kv_and_warms_that_up(session):
    def scorer_and_modes(**settings):
        request = session.request(COLLECTION, "When does the gate open?", BASE.varied(mode="auto", **settings))
        return request.scorer, automatic_modes(request)

    maps_of(session.pair).verdicts = ()
    assert scorer_and_modes() == ("lexical", ("full", "select"))
    maps_of(session.pair).verdicts = (verdict("hybrid"),)
    assert scorer_and_modes() == ("question", ("full", "select", "hybrid"))
    assert resolve_scorer("auto", session.pair, "select") == "lexical"
    assert scorer_and_modes(scorer="lexical") == ("lexical", ("full", "select"))
    session.ask(COLLECTION, "When?", BASE.varied(mode="auto", scorer="lexical"))
    assert "hybrid" not in session.warmed


def test_on_the_bundled_pair_it_never_wins(tiny_session):
    assert pair_verdicts(tiny_session.pair) == ()
    assert automatic_mode(tiny_session.request(COLLECTION, "When?", Settings()))[0] == "select"


def test_verdicts_are_stored_with_the_maps_and_damaged_files_have_none(random_pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specprefill_cli.draft_kv.projection.calibration_folder", lambda _pair: tmp_path)
    stored = (verdict(), verdict("hybrid", f1_delta_low=-3.0))

    def winners(**changes):
        """What a pair says that has read nothing yet."""
        return pair_verdicts(replace(random_pair, mode_data={}, **changes))

    assert winners() == ()
    path = save_maps(replace(maps_of(random_pair).calibration, verdicts=stored), tmp_path)
    assert load_calibration(tmp_path, random_pair).verdicts == stored
    assert winners() == stored[:1]
    assert winners(draft=random_pair.target) == (), "the maps of another pair"
    assert winners(ranks=SimpleNamespace(size=2)) == ()
    description = json.loads(path.read_text())
    assert description["verdicts"] == [asdict(row) for row in stored]
    del description["verdicts"]
    path.write_text(json.dumps(description))
    assert load_calibration(tmp_path, random_pair).verdicts == ()
    path.write_text("{")
    assert winners() == ()


def test_calibration_compares_each_mode_with_select_in_the_same_time(random_session):
    questions = [item(text=TEXT[:800])] * 2
    asked = []

    def timer(_session, _items, settings):
        asked.append((settings.mode, settings.keep))
        return 1.0 if settings.mode != "select" else 2 * settings.keep

    found = find_verdicts(random_session, questions, BASE, lambda _: None, timer)
    assert [row.mode for row in found] == list(MODES_WITH_DRAFT_KV)
    assert {row.select_keep for row in found} <= {0.5, BASE.keep}
    assert all((row.n, row.recompute, row.keep) == (2, BASE.recompute, BASE.keep) for row in found)
    assert all(row.f1_delta_low <= row.f1_delta <= row.f1_delta_high and row.ttft_ratio > 0 for row in found)
    assert ("select", 0.5) in asked


@pytest.mark.parametrize(("best_keep", "delta"), [(0.5, -33.33), (BASE.keep, -33.33), (None, 66.67)])
def test_a_mode_must_beat_the_better_of_two_selects(random_session, monkeypatch, best_keep, delta):
    """One `select` takes as long as the mode, the other one keeps as much; the answer is `nine`."""

    def answer(_session, _item, settings):
        text = "nine euros" if settings.mode != "select" else "nine" if settings.keep == best_keep else "four"
        return SimpleNamespace(answer=text, ttft_seconds=1.0)

    monkeypatch.setattr("specprefill_cli.lab.study.verdicts.ask", answer)
    found = find_verdicts(random_session, [item()] * 2, BASE, lambda _: None, lambda *_: 1.0)
    assert {row.f1_delta for row in found} == {delta}
    assert {row.wins for row in found} == {delta > 0}
    # The stored keep ratio is that of the better one.
    assert best_keep is None or {row.select_keep for row in found} == {best_keep}
