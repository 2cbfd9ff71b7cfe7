"""Options that do nothing beside the others are told, and those that matter are not."""

import pytest

from specprefill_cli.cli.idle_options import NEEDS, without_effect
from specprefill_cli.settings import Settings


@pytest.mark.parametrize(
    ("given", "settings", "told"),
    [
        ({"keep": "0.2"}, {"mode": "full"}, "--keep: no effect without --mode select or hybrid"),
        ({"keep": "0.2"}, {"mode": "draft-kv"}, "--keep: no effect"),
        ({"keep": "0.2"}, {}, None),
        ({"recompute": 0.1}, {"mode": "hybrid"}, "--recompute: no effect without --mode draft-kv"),
        ({"recompute": 0.1}, {"mode": "draft-kv"}, None),
        ({"accept_risk": 1.0, "exact_layers": 2}, {"mode": "select"}, "--accept-risk, --exact-layers: no effect"),
        ({"accept_risk": 1.0}, {"mode": "hybrid"}, None),
        ({"look_ahead": 32}, {"scorer": "heads"}, "--look-ahead: no effect without a scorer that looks ahead"),
        ({"look_ahead": 32}, {"scorer": "question"}, None),
        ({"draft_window": "64"}, {"mode": "draft-kv", "scorer": "heads"}, "--draft-window: no effect"),
        ({"draft_window": "64"}, {"scorer": "lexical"}, "--draft-window: no effect"),
        ({"draft_window": "64"}, {"scorer": "heads"}, None),
        ({"top_k": 3}, {}, "--top-k: no effect without --temperature above 0"),
        ({"top_k": 3}, {"temperature": 0.5}, None),
        ({"proposer": "draft"}, {"speculate": "off"}, "--proposer: no effect"),
        ({"scorer": "heads", "chunk_size": 16}, {"mode": "full"}, "--scorer, --chunk-size: no effect"),
    ],
)
def test_what_has_no_effect_is_told(given, settings, told):
    found = without_effect(given, [Settings(**settings)])
    assert (found == []) if told is None else (len(found) == 1 and found[0].startswith(told))


def test_one_mode_that_uses_an_option_is_enough():
    assert without_effect({"keep": "0.2"}, [Settings(mode="full"), Settings(mode="select")]) == []
    assert without_effect({"keep": None}, [Settings(mode="full")]) == []


def test_all_names_are_settings():
    for names, _ in NEEDS.values():
        assert all(hasattr(Settings(), name) for name in names)
