"""The memory limit of documents' KV between questions, and documents that are read and cached in parts."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from specprefill_cli.models.machine import memory_plan as module
from specprefill_cli.models.machine.memory_plan import GIBIBYTE, kv_bytes, token_bytes
from specprefill_cli.models.running.cache import state_bytes
from specprefill_cli.prefill.prefix_cache import DRAFT_PREFIX, TARGET_PREFIX, TOKENS, document_cache
from specprefill_cli.settings import Settings
from tests.helpers.sessions import collection_of
from tests.prefill.helpers import caching, shorten_context

DOCUMENTS = [collection_of(f"Gate {number} opens at nine. " * 40, str(number)) for number in range(3)]


def described(target, draft):
    """A pair on devices that this machine lacks."""
    devices = [frozenset(map(torch.device, names)) for names in (target, draft)]
    return SimpleNamespace(target=SimpleNamespace(devices=devices[0]), devices=frozenset.union(*devices))


@pytest.mark.parametrize(
    ("target", "draft", "free", "expected"),
    [
        (["cpu"], ["cpu"], {"cpu": 500}, 2),
        # The draft of an endpoint.
        ([], ["cuda:0"], {"cuda:0": 100}, 25),
        (["cuda:0"], ["cuda:0"], {"cuda:0": 100}, 25),
        # A target on several GPUs has KV on each of them, and the fullest one sets the limit.
        (["cuda:0", "cuda:1"], ["cuda:0"], {"cuda:0": 20, "cuda:1": 60}, 10),
    ],
)
def test_auto_takes_a_share_of_what_the_devices_have_free(monkeypatch, target, draft, free, expected):
    monkeypatch.setattr(module, "free_memory", lambda device: free[str(device)] * GIBIBYTE)
    assert kv_bytes(described(target, draft), "auto") == expected * GIBIBYTE


def test_both_models_have_room_for_the_same_documents(tiny_session):
    pair = tiny_session.pair
    cache = document_cache(0.5, pair)
    sizes = cache.draft.capacity_bytes, cache.target.capacity_bytes
    assert sum(sizes) == GIBIBYTE // 2
    assert sizes[0] / token_bytes(pair.draft) == pytest.approx(sizes[1] / token_bytes(pair.target), rel=1e-6)
    without_draft = SimpleNamespace(draft=None, target=pair.target)
    assert document_cache(1, without_draft).target.capacity_bytes == GIBIBYTE


def ask_in_turn(session, *documents):
    settings = Settings(mode="full", max_new_tokens=1)
    return [session.ask(DOCUMENTS[number], "When?", settings).finished().reused for number in documents]


def test_the_limit_evicts_the_least_recently_used_document(random_session):
    pair = random_session.pair
    first = random_session.ask(DOCUMENTS[0], "When?", Settings(mode="full", max_new_tokens=1))
    document = state_bytes(first.prefilled.state)
    share = token_bytes(pair.target) / (token_bytes(pair.draft) + token_bytes(pair.target))
    cache = document_cache(2.5 * document / share / GIBIBYTE, pair)
    session = random_session.with_cache(cache)
    cached = [TOKENS, TARGET_PREFIX]
    assert ask_in_turn(session, 0, 1, 0, 1, 2, 1, 0) == [[], [], cached, cached, [], cached, [TOKENS]]
    assert cache.target.prefixes.bytes <= cache.target.capacity_bytes
    session = random_session.with_cache(document_cache(0, random_session.pair))
    assert ask_in_turn(session, 0, 0) == [[], [TOKENS]]
    assert not session.cache.target.prefixes


def test_other_ranks_have_the_same_limit(random_session):
    session = random_session.with_cache(document_cache(0.25, random_session.pair))
    ask_in_turn(session, 0)
    assert session.cache.target.prefixes
    for cache in (session.cache.draft, session.cache.target):
        received = pickle.loads(pickle.dumps(cache))
        assert (received.name, received.capacity_bytes, len(received.prefixes)) == (cache.name, cache.capacity_bytes, 0)


# No two parts are alike.
TEXT = " ".join(
    f"Gate {number} opens at nine. The keeper of house {2 * number} lives by the mill." for number in range(90)
)
COLLECTION = collection_of(TEXT)
SETTINGS = Settings(mode="select", scorer="heads", keep=0.1, max_new_tokens=4)
QUESTIONS = ("When does it open?", "What do tickets cost, and where does the keeper live?", "Who?")


@pytest.fixture
def short(random_session):
    return shorten_context(random_session, 400)


def test_later_questions_find_the_windows_and_get_the_same_answers(short):
    shared = caching(short)
    for number, question in enumerate(QUESTIONS):
        first, second = (session.ask(COLLECTION, question, SETTINGS) for session in (short, shared))
        importances = first.prefilled.importance, second.prefilled.importance
        torch.testing.assert_close(*importances, rtol=1e-3, atol=1e-6)
        assert first.finished().answer == (answer := second.finished()).answer
        assert answer.reused == ([TOKENS, DRAFT_PREFIX] if number else [])


def test_a_document_larger_than_the_memory_evicts_no_other(short):
    session = caching(short, capacity_bytes=2**20)
    session.ask(DOCUMENTS[0], "When?", SETTINGS).finished()
    kept = list(session.cache.draft.prefixes)
    session.ask(COLLECTION, "When?", SETTINGS).finished()
    assert list(session.cache.draft.prefixes) == kept != []
