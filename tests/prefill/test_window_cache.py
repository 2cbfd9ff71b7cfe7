"""Documents read in windows: each window is read once, and later questions reuse its KV."""

import pytest
import torch

from specprefill_cli.models.cache import state_bytes
from specprefill_cli.prefill.disk_cache import SUFFIX, DiskCache
from specprefill_cli.prefill.prefix_cache import DRAFT_PREFIX, TOKENS, DocumentCache, PrefixCache
from specprefill_cli.settings import Settings
from tests.prefill.helpers import collection_of
from tests.prefill.test_windows import shorten_context

# No two windows are alike.
TEXT = " ".join(
    f"Gate {number} opens at nine. The keeper of house {2 * number} lives by the mill." for number in range(90)
)
COLLECTION = collection_of(TEXT)
SETTINGS = Settings(mode="select", scorer="heads", keep=0.1, max_new_tokens=4)
QUESTIONS = ("When does it open?", "What do tickets cost, and where does the keeper live?", "Who?")


def cached(session, store=None, capacity=2**30):
    return session.with_cache(DocumentCache(draft=PrefixCache(store, capacity_bytes=capacity)))


def disk(folder, capacity=2**30):
    return DiskCache(folder, capacity, pytest.fail)


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_later_questions_find_the_windows_and_get_the_same_answers(random_session, tmp_path, place):
    cold = shorten_context(random_session, 400)
    shared = cached(cold)
    for number, question in enumerate(QUESTIONS):
        if place == "disk":
            shared = cached(cold, disk(tmp_path))
        first, second = (session.ask(COLLECTION, question, SETTINGS) for session in (cold, shared))
        importances = first.prefilled.importance, second.prefilled.importance
        torch.testing.assert_close(*importances, rtol=1e-3, atol=1e-6)
        assert first.finished().answer == (answer := second.finished()).answer
        tokens = [TOKENS] if place == "memory" else []
        assert answer.reused == ([*tokens, DRAFT_PREFIX] if number else [])


def test_a_document_larger_than_the_memory_does_not_evict_its_own_windows(random_session):
    roomy = cached(shorten_context(random_session, 400))
    roomy.ask(COLLECTION, "When?", SETTINGS).finished()
    states = list(roomy.cache.draft.prefixes.values())
    limit = 3 * max(map(state_bytes, states))
    assert len(states) > 4
    session = cached(shorten_context(random_session, 400), capacity=limit)
    for number in range(3):
        answer = session.ask(COLLECTION, "When?", SETTINGS).finished()
        assert (DRAFT_PREFIX in answer.reused) == bool(number)
        assert session.cache.draft.prefixes.bytes <= limit


def test_a_document_larger_than_the_disk_limit_keeps_its_first_windows(random_session, tmp_path):
    roomy = cached(shorten_context(random_session, 400), disk(tmp_path / "roomy"))
    roomy.ask(COLLECTION, "When?", SETTINGS).finished()
    files = sorted((tmp_path / "roomy").glob(f"*{SUFFIX}"))
    limit = sum(path.stat().st_size for path in files) // 2
    for number in range(2):
        session = cached(roomy, disk(tmp_path / "half", limit))
        answer = session.ask(COLLECTION, "When?", SETTINGS).finished()
        assert (DRAFT_PREFIX in answer.reused) == bool(number)
        assert 0 < len(list((tmp_path / "half").glob(f"*{SUFFIX}"))) < len(files)


def test_files_that_another_process_removes_are_no_fault(tmp_path):
    (tmp_path / f"gone{SUFFIX}").symlink_to(tmp_path / "nowhere")
    disk(tmp_path).trim()
