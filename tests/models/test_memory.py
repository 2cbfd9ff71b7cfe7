"""What the program does about memory and garbage."""

import gc
import weakref

import pytest

from specprefill_cli.models.memory import loaded_for_good, loading


class Node:
    """Something that can refer to itself."""


def ring() -> weakref.ref:
    """Garbage that only the collector finds."""
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_while_loading_no_garbage_is_looked_for_and_afterwards_again():
    before = ring()
    with loading():
        assert before() is None, "what was garbage before is gone"
        assert not gc.isenabled()
        frozen = gc.get_freeze_count()
        kept = Node()
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    after = ring()
    gc.collect()
    assert after() is None
    assert all(one is not kept for one in gc.get_objects()), "what was loaded is spared"


def test_loading_that_fails_leaves_the_collector_on():
    with pytest.raises(RuntimeError), loading():
        raise RuntimeError
    assert gc.isenabled()


def test_what_is_loaded_for_good_is_spared_until_the_end_only():
    kept = Node()
    kept.itself = kept
    with loaded_for_good():
        assert all(one is not kept for one in gc.get_objects())
    gone = weakref.ref(kept)
    del kept
    gc.collect()
    assert gone() is None
