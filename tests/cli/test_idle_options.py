"""Warnings about options that have no effect beside the others."""

import pytest

from specprefill_cli.cli.options import NEEDS, idle_options
from specprefill_cli.settings import SETTINGS, Settings


@pytest.mark.parametrize(
    ("given", "settings", "warning"),
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
def test_warns_of_options_without_effect(given, settings, warning):
    warnings = idle_options(given, [Settings(**settings)])
    assert (warnings == []) if warning is None else (len(warnings) == 1 and warnings[0].startswith(warning))


def test_no_warning_if_one_mode_uses_the_option():
    assert idle_options({"keep": "0.2"}, [Settings(mode="full"), Settings(mode="select")]) == []
    assert idle_options({}, [Settings(mode="full")]) == []


def test_all_options_are_settings():
    assert {name for options, _ in NEEDS.values() for name in options} <= set(SETTINGS)
