"""The cache that counts bytes."""

from specprefill_cli.caches import ByteCache
from specprefill_cli.prefill.prefix_cache import DocumentCache


def test_the_least_recently_used_values_go_and_the_latest_stays_whatever_its_size():
    cache = ByteCache(10, len)
    for key, value in (("a", "x" * 4), ("b", "y" * 4)):
        cache.store(key, value)
    assert cache.find("a") == "xxxx"
    cache.store("c", "z" * 4)
    assert list(cache) == ["a", "c"]
    cache.store("d", "w" * 40)
    assert list(cache) == ["d"]
    assert (cache.bytes, cache.find("a")) == (40, None)
    cache.evict(0)
    assert not cache


def test_values_may_grow_while_they_are_kept():
    cache = ByteCache(10, len)
    growing = []
    cache.store("a", growing)
    cache.store("b", [1])
    growing += range(10)
    cache.store("c", [1])
    assert list(cache) == ["b", "c"]


def test_a_cache_without_room_keeps_nothing():
    cache = ByteCache(0, len)
    assert [cache.find_or("a", lambda: "x") for _ in range(2)] == ["x", "x"]
    assert not cache


def test_texts_count_by_their_size(tiny_session):
    cache = DocumentCache()
    tokenizer = tiny_session.pair.target.tokenizer
    cache.encode(tokenizer, "short")
    cache.encodings.capacity_bytes = 2_000
    texts = [f"number {number} " + "a long text " * 20 for number in range(3)]
    for text in texts:
        cache.encode(tokenizer, text)
    assert [(tokenizer, text) in cache.encodings for text in texts] == [False, False, True]
