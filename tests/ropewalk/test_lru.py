"""`SizedCache`: bounds, and what goes first."""

from __future__ import annotations

from ropewalk.lru import SizedCache


def test_a_cache_has_so_many_values_and_bytes_and_drops_those_that_nobody_used() -> None:
    cache: SizedCache[int, str] = SizedCache(count_max=3, size_max=100)
    for key in range(4):
        cache.put(key, f"{key}", 10)
    assert [cache.get(key) for key in range(4)] == [None, "1", "2", "3"]
    cache.get(1)
    cache.put(4, "4", 80)
    assert (cache.get(1), cache.get(2), cache.size) == ("1", None, 100)
    cache.put(4, "5", 1_000)
    assert (cache.get(4), len(cache), cache.size) == ("5", 1, 1_000)
