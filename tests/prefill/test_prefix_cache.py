"""Document state reuse: same logits, plans and answers as without a cache."""

import pytest
import torch

from specprefill_cli.prefill.prefix_cache import DRAFT_PREFIX, TARGET_PREFIX, TOKENS, PrefixCache
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES, failing
from tests.helpers.sessions import GATES, collection_of
from tests.prefill.helpers import caching

TEXT = GATES * 6
COLLECTION = collection_of(TEXT)
OTHER = collection_of(TEXT.replace("nine", "ten"))
QUESTIONS = ("When does it open?", "What do tickets cost, and where does the keeper live?", "Who?")
SLIDING_WINDOW_ONLY = "mistral"


def ask(session, question, collection=COLLECTION, **settings):
    stream = session.ask(collection, question, Settings(**{"max_new_tokens": 6, "keep": 0.4, **settings}))
    return stream, stream.finished()


@pytest.mark.slow
@pytest.mark.parametrize("random_pair", sorted(ARCHITECTURES), indirect=True)
@pytest.mark.parametrize(("mode", "reused"), [("full", TARGET_PREFIX), ("select", DRAFT_PREFIX)])
def test_reuse_does_not_change_answers(random_session, mode, reused):
    if mode == "select" and SLIDING_WINDOW_ONLY in random_session.pair.target.name:
        pytest.skip("no layer of this draft sees the whole document")
    shared = caching(random_session)
    for number, question in enumerate(QUESTIONS):
        first, cold = ask(random_session, question, mode=mode, scorer="question")
        second, warm = ask(shared, question, mode=mode, scorer="question")
        torch.testing.assert_close(first.prefilled.logits, second.prefilled.logits, atol=1e-4, rtol=1e-4)
        assert first.prefilled.plan == second.prefilled.plan
        assert first.tokens == second.tokens
        assert cold.reused == []
        assert warm.reused == ([TOKENS, reused] if number else [])


def test_a_state_with_fewer_layers_is_not_reused_when_more_are_needed(random_session):
    shared = caching(random_session)
    ask(shared, "Who?", mode="select", scorer="heads")
    later = [ask(shared, "When?", mode="select", scorer=scorer)[1] for scorer in ("heads", "question", "heads")]
    assert [DRAFT_PREFIX in answer.reused for answer in later] == [True, False, True]


def test_length_dependent_rope_is_never_reused(random_session):
    shared = caching(random_session)
    config = random_session.pair.target.model.config
    config.rope_parameters = {**config.rope_parameters, "rope_type": "dynamic"}
    used = [ask(shared, question, mode="full")[1].reused for question in QUESTIONS]
    assert used == [[], [TOKENS], [TOKENS]]


def test_an_old_state_without_room_is_evicted_before_the_new_one_is_computed(random_session):
    shared = caching(random_session)
    shared.cache.target = PrefixCache(capacity_bytes=1)
    ask(shared, "Who?", OTHER, mode="full")
    assert len(shared.cache.target.prefixes) == 1
    seen = []
    layer = random_session.pair.target.model.model.layers[0]
    hook = layer.register_forward_hook(lambda *_: seen.append(len(shared.cache.target.prefixes)))
    ask(shared, "Who?", COLLECTION, mode="full")
    hook.remove()
    assert seen[0] == 0


def test_an_interrupted_prefill_leaves_the_cached_state_usable(random_session):
    shared = caching(random_session)
    ask(shared, "Who?", mode="full")
    with failing(random_session.pair.target.model.model.layers[1].mlp, KeyboardInterrupt):
        ask(shared, "When?", mode="full")
    assert ask(shared, "When?", mode="full")[0].tokens == ask(random_session, "When?", mode="full")[0].tokens
