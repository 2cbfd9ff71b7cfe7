"""What runs before the first question on a GPU, and that nothing more does on a CPU."""

import pytest

from specprefill_cli.answering import warm_up
from specprefill_cli.answering.warm_up import shapes_to_warm
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.models.reserve import reserve_cache
from specprefill_cli.settings import Settings

LONG = Collection((one_page_document("doc", "The gate opens at nine. " * 400, "text/plain"),))
SETTINGS = Settings(mode="select", scorer="question", prefill_chunk=1_024, max_new_tokens=2, speculate=4, keep=0.3)


@pytest.mark.parametrize(
    ("tokens", "pass_tokens", "context", "passes", "room"),
    [
        # As short as the prompt that warms up everywhere.
        (900, 16_384, 131_072, None, None),
        # One pass; two; and no more than two, however long the prompt.
        (8_000, 16_384, 131_072, ((0, 8_000),), 8_000),
        (16_500, 16_384, 131_072, ((0, 16_384), (16_384, 116)), 16_500),
        (120_000, 16_384, 131_072, ((0, 16_384), (16_384, 1_024)), 120_000),
        # A context has room for the question.
        (120_000, 4_096, 32_768, ((0, 4_096), (4_096, 1_024)), 32_256),
    ],
)
def test_shapes_are_those_of_the_prompt(tokens, pass_tokens, context, passes, room):
    shapes = shapes_to_warm(tokens, pass_tokens, context, speculates=True)
    if passes is None:
        assert shapes is None
        return
    assert (shapes.passes, shapes.room) == (passes, room)
    assert shapes.prompt == sum(own for _, own in passes)
    assert shapes.widths == (1, 2, 5, 17)
    assert shapes_to_warm(tokens, pass_tokens, context, speculates=False).widths == (1,)


def pass_lengths(model):
    """A list that gets the number of tokens of every pass from now on."""
    lengths = []
    model.get_decoder().register_forward_pre_hook(
        lambda _module, _arguments, keywords: lengths.append(keywords["input_ids"].shape[1]), with_kwargs=True
    )
    return lengths


def test_a_cpu_warms_up_with_the_short_prompt_alone(random_session):
    lengths = pass_lengths(random_session.pair.draft.model)
    random_session.ask(LONG, "When?", SETTINGS)
    assert random_session.warmed_long == set()
    assert random_session.startup_seconds == 0
    # One long reading, in passes, behind the short prompt's.
    assert lengths.count(1_024) == len(LONG.text) // 4 // 1_024


def test_a_gpu_runs_the_passes_of_the_prompt_once_and_counts_them_as_startup(random_session, monkeypatch):
    monkeypatch.setattr(warm_up, "on_gpu", lambda _: True)
    reserved = []
    monkeypatch.setattr(warm_up, "reserve_cache", lambda _pair, tokens: reserved.append(tokens))
    expected = random_session.ask(LONG, "When?", SETTINGS.varied(seed=1)).finished().answer
    random_session.warmed_long.clear()
    draft, target = (pass_lengths(loaded.model) for loaded in (random_session.pair.draft, random_session.pair.target))
    warm_up.warm_up_long(random_session, SETTINGS, len(LONG.text))
    assert max(draft) == 1_024
    assert {1, 2, 5, 17} <= set(draft) & set(target)
    assert random_session.startup_seconds > 0
    assert reserved[-1] == len(LONG.text) // warm_up.CHARACTERS
    before = len(draft)
    warm_up.warm_up_long(random_session, SETTINGS, len(LONG.text))
    assert len(draft) == before
    assert random_session.ask(LONG, "When?", SETTINGS.varied(seed=1)).finished().answer == expected


def test_reserves_the_caches_of_both_models_where_they_fit(random_pair):
    # Keys and values of three layers with two heads each of 16 numbers, in float32, of both models.
    token = 2 * 2 * 3 * 2 * 16 * 4
    assert token * 1_000 < reserve_cache(random_pair, 1_000) < token * 1_400
    assert reserve_cache(random_pair, 10**12) == 0
