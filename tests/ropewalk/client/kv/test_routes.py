"""The regions of a store as a client hears of them from members that have applied different cuts."""

from __future__ import annotations

import random

import pytest

from ropewalk.client.kv.routes import Route, Routes
from ropewalk.errors import RemoteProtocolError


def told(*cuts: tuple[int, str, str, int, str]) -> list[dict[str, object]]:
    return [
        {"id": id, "start": start.encode().hex(), "end": end.encode().hex(), "epoch": epoch, "leader": leader}
        for id, start, end, epoch, leader in cuts
    ]


def test_of_each_region_the_newest_epoch_counts_whoever_tells_of_it() -> None:
    routes = Routes(("a:1",))
    routes.learn(told((0, "", "m", 2, "a:1"), (1, "m", "", 2, "b:1")))
    routes.learn(told((0, "", "", 1, "c:1")))
    assert (routes.of(b"a"), routes.of(b"m")) == (
        Route(0, b"", b"m", 2, "a:1"),
        Route(1, b"m", b"", 2, "b:1"),
    )
    routes.learn(told((0, "", "m", 2, "c:1"), (1, "m", "t", 3, ""), (2, "t", "", 3, "")))
    assert routes.of(b"a").leader == "a:1", "what is known of the leader is newer than a table"
    assert [routes.of(key).id for key in (b"", b"a", b"m", b"s", b"t", b"z")] == [0, 0, 1, 1, 2, 2]
    routes.learn(told((2, "t", "", 3, "c:1")))
    assert routes.of(b"z").leader == "c:1"


@pytest.mark.parametrize("seed", range(20))
def test_what_members_tell_in_any_order_adds_up_to_every_key_in_one_region(seed: int) -> None:
    chance = random.Random(seed)
    table = {0: ("", "", 1)}
    tables = [dict(table)]
    for id in range(1, 16):
        key = f"{chance.randrange(100):02d}"
        parent = next(at for at, (start, end, _) in table.items() if start <= key and (not end or key < end))
        start, end, epoch = table[parent]
        if key != start:
            table[parent], table[id] = (start, key, epoch + 1), (key, end, epoch + 1)
        tables.append(dict(table))
    routes = Routes(("a:1",))
    for known in chance.sample(tables, 8):
        routes.learn(told(*((id, *cut, "") for id, cut in known.items())))
        for key in (f"{number:02d}" for number in range(100)):
            assert routes.of(key.encode()).has(key.encode())


def test_a_hole_in_what_members_tell_is_their_mistake() -> None:
    routes = Routes(("a:1",))
    with pytest.raises(RemoteProtocolError, match="no region that has"):
        routes.of(b"a")


@pytest.mark.parametrize(
    ("end", "clipped", "reaches"),
    [(b"", b"m", False), (b"z", b"m", False), (b"m", b"m", True), (b"c", b"c", True)],
)
def test_a_range_is_clipped_to_the_region(end: bytes, clipped: bytes, reaches: bool) -> None:
    route = Route(0, b"a", b"m", 1, "")
    assert (route.clip(end), route.reaches(end)) == (clipped, reaches)
    assert Route(0, b"a", b"", 1, "").clip(end) == end
