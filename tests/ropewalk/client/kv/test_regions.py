"""A client of a store that is cut into ever more regions, while answers get lost, beside one plain dictionary."""

from __future__ import annotations

import json
import random

import pytest

from ha.kv.machine import KvMachine
from ha.kv.region import REGIONS_MAX, Region
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.kv.core import KvCore
from ropewalk.client.kv.results import KvLock
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError
from ropewalk.format.kv.commands import (
    Command as KvCommand,
)
from ropewalk.format.kv.commands import (
    OpenSession,
    Outcome,
    ReserveRegion,
    SplitRegion,
    Status,
    Write,
    encode_found,
    encode_outcome,
)
from ropewalk.format.kv.items import Count, Delete, DeleteRange, Put, decode_operations, decode_values
from ropewalk.format.remoting import Command
from tests.ropewalk.client.kv.cluster import CLUSTER, MEMBERS
from tests.ropewalk.client.scripted import Script

LETTERS = [b"%c" % letter for letter in range(ord("a"), ord("z") + 1)]


class Store:
    """Three members that are always of one mind; any of them takes writes."""

    def __init__(self, seed: int, cuts: float, losses: float) -> None:
        self.chance = random.Random(seed)
        self.cuts, self.losses = cuts, losses
        self.regions = {0: KvMachine(Region(0), 1 << 20)}
        self.asked = 0
        self.script = Script(self.answer)
        self.core = self.client()

    def client(self) -> KvCore:
        return KvCore("ns:9876", clock=self.script.clock, timeout_s=1000.0, broker=None, start=0)

    def cut(self, key: bytes) -> None:
        """Cut the region that has a key at it."""
        parent = next(each for each in self.regions.values() if each.region.has(key))
        if parent.region.start == key or len(self.regions) == REGIONS_MAX:
            return
        reserve = ReserveRegion(0, parent.region.id, parent.region.epoch)
        (id,) = self.apply(self.regions[0], reserve).results
        assert isinstance(id, Count)
        assert self.apply(parent, SplitRegion(0, parent.region.epoch, id.number, key)).status is Status.OK
        self.regions[id.number] = parent.born.pop()

    def apply(self, machine: KvMachine, command: KvCommand) -> Outcome:
        return machine.apply(machine.applied + 1, command)

    def answer(self, address: str, request: Command) -> Command | RopewalkError:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return request.reply(ResponseCode.SUCCESS, body=json.dumps(CLUSTER).encode())
        if request.code == RequestCode.ROPEWALK_KV_REGIONS:
            return request.reply(ResponseCode.SUCCESS, body=self.table())
        self.asked += 1
        chance = self.chance
        if chance.random() < self.losses:
            return Unreachable(f"cannot connect to {address}")
        if chance.random() < self.losses:
            return OutcomeUnknown("lost on its way")
        if chance.random() < self.cuts:
            self.cut(chance.choice(LETTERS))
        reply = self.serve(request)
        if chance.random() < self.cuts:
            self.cut(chance.choice(LETTERS))
        return OutcomeUnknown("its answer is lost") if chance.random() < self.losses else reply

    def table(self) -> bytes:
        cuts = [each.region for each in self.regions.values()]
        told = [
            {
                "id": cut.id, "start": cut.start.hex(), "end": cut.end.hex(), "epoch": cut.epoch,
                "leader": self.chance.choice(("", *MEMBERS)),
            }
            for cut in cuts
        ]  # fmt: skip
        return json.dumps({"regions": told}).encode()

    def serve(self, request: Command) -> Command:
        machine = self.regions[int(request.ext["region"])]
        cut, epoch = machine.region, int(request.ext["epoch"])
        moved = {"regions": self.table().decode()}
        match request.code:
            case RequestCode.ROPEWALK_KV_SESSION:
                outcome = Outcome(Status.WRONG_EPOCH)
                if epoch == cut.epoch:
                    outcome = self.apply(machine, OpenSession(0))
                return request.reply(0, ext=moved, body=encode_outcome(outcome))
            case RequestCode.ROPEWALK_KV_SPLIT:
                (key,) = decode_values(request.body)
                assert key is not None
                if epoch != cut.epoch or not cut.has(key):
                    return request.reply(0, ext=moved, body=encode_outcome(Outcome(Status.WRONG_EPOCH)))
                if len(self.regions) == REGIONS_MAX:
                    return request.reply(0, body=encode_outcome(Outcome(Status.TOO_MANY)))
                self.cut(key)
                return request.reply(
                    0, body=encode_outcome(Outcome(Status.OK, (Count(len(self.regions) - 1),)))
                )
            case RequestCode.ROPEWALK_KV_WRITE:
                session, seq, lowest = (int(request.ext[name]) for name in ("session", "seq", "lowest"))
                operations = decode_operations(request.body)
                if epoch != cut.epoch:
                    known = machine.sessions.known(session, seq) or Outcome(Status.WRONG_EPOCH)
                    return request.reply(0, ext=moved, body=encode_outcome(known))
                for each in operations:
                    if isinstance(each, DeleteRange):
                        assert cut.has_range(each.start, each.end), (cut, each)
                    else:
                        assert cut.has(each.key), (cut, each)
                outcome = self.apply(machine, Write(0, session, seq, lowest, epoch, operations))
                return request.reply(0, ext=moved, body=encode_outcome(outcome))
        if epoch != cut.epoch:
            return request.reply(0, ext=moved, body=encode_found(Status.WRONG_EPOCH))
        values = [each or b"" for each in decode_values(request.body)]
        if request.code == RequestCode.ROPEWALK_KV_SCAN:
            start, end = values
            assert cut.has_range(start, end)
            pairs = machine.scan(start, end, int(request.ext["limit"]))
            return request.reply(0, body=encode_found(Status.OK, [each for pair in pairs for each in pair]))
        assert all(map(cut.has, values))
        return request.reply(0, body=encode_found(Status.OK, [machine.get(each) for each in values]))


@pytest.mark.parametrize("seed", range(30))
def test_calls_through_cuts_and_lost_answers_are_done_once_and_see_all_keys(seed: int) -> None:
    store = Store(seed, cuts=0.05, losses=0.15)
    chance, hold, core = random.Random(seed), store.script.hold, store.core
    values: dict[bytes, bytes] = {}
    numbers: dict[bytes, int] = {}
    tokens: dict[bytes, int] = {}
    for number in range(300):
        key, value = chance.choice(LETTERS) + b"%d" % chance.randrange(3), b"%d" % number
        low, high = sorted(chance.sample(LETTERS, 2))
        match chance.randrange(10):
            case 0 | 1:
                hold(core.put(key, value))
                values[key] = value
            case 2:
                assert hold(core.get(key)) == values.get(key)
            case 3:
                assert hold(core.compare_and_put(key, values.get(key), value))
                values[key] = value
            case 4:
                assert hold(core.delete(key)) is (values.pop(key, None) is not None)
            case 5:
                assert hold(core.sequence(key, 2)).start == numbers.get(key, 0)
                numbers[key] = numbers.get(key, 0) + 2
            case 6:
                gone = [each for each in values if low <= each < high]
                assert hold(core.delete_range(low, high)) == len(gone)
                for each in gone:
                    del values[each]
            case 7:
                keys = [*chance.sample(LETTERS, 5), *list(values)[:5]]
                assert hold(core.multi_get(keys)) == {each: values.get(each) for each in keys}
            case 8:
                limit = chance.choice((None, 3))
                found = sorted(each for each in values.items() if low <= each[0] < high)[:limit]
                assert hold(core.scan(low, high, limit=limit)) == found
            case _:
                lock = hold(core.acquire(key))
                assert isinstance(lock, KvLock) and lock.token > tokens.get(key, -1)
                tokens[key] = lock.token
                assert hold(core.release(lock))
    assert hold(core.scan()) == sorted(values.items())
    assert len(store.regions) > 5


def test_a_client_whom_no_member_tells_of_regions_asks_again_until_one_knows_all_of_them() -> None:
    store = Store(0, cuts=0, losses=0)
    table, rounds = store.table, iter([b'{"regions": []}'] * 7)
    store.table = lambda: next(rounds, None) or table()  # type: ignore[method-assign]
    store.script.hold(store.core.put(b"k", b"v"))
    assert store.script.hold(store.core.get(b"k")) == b"v"


def test_a_write_in_doubt_waits_for_its_region_where_members_tell_of_an_older_cut() -> None:
    store = Store(0, cuts=0, losses=0)
    old = store.table()
    store.cut(b"m")
    store.script.hold(store.core.write_each([Put(b"m", b"1"), Put(b"a", b"1")]))
    table, lost = store.table, iter([True] * 4)
    told = iter([old] * 6)
    store.table = lambda: next(told, None) or table()  # type: ignore[method-assign]

    def answer(address: str, request: Command) -> Command | RopewalkError:
        if request.code == RequestCode.ROPEWALK_KV_WRITE and next(lost, False):
            return OutcomeUnknown("its answer is lost")
        return Store.answer(store, address, request)

    store.script.handler = answer
    outcomes = store.script.hold(store.core.write_each([Put(b"m", b"2"), Put(b"a", b"2")]))
    assert not any(isinstance(each, RopewalkError) for each in outcomes)
    assert store.script.hold(store.core.multi_get([b"m", b"a"])) == {b"m": b"2", b"a": b"2"}


@pytest.mark.parametrize("seed", range(10))
def test_calls_that_leave_together_are_done_once_each_wherever_their_keys_go(seed: int) -> None:
    store = Store(seed, cuts=0.05, losses=0.15)
    chance = random.Random(seed)
    values: dict[bytes, bytes] = {}
    for number in range(60):
        keys = chance.sample(LETTERS, 8)
        operations = [Put(key, b"%d" % number) if chance.random() < 0.7 else Delete(key) for key in keys]
        expected = [Count(1 if isinstance(each, Put) else int(each.key in values)) for each in operations]
        assert store.script.hold(store.core.write_each(operations)) == expected
        for each in operations:
            if isinstance(each, Put):
                values[each.key] = each.value
            else:
                values.pop(each.key, None)
        assert store.script.hold(store.core.read_each(keys)) == [values.get(key) for key in keys]


def test_a_batch_whose_keys_are_in_two_regions_is_refused_and_nothing_of_it_is_sent() -> None:
    store = Store(1, cuts=0.0, losses=0.0)
    store.cut(b"m")
    store.script.hold(store.core.batch(put={"a": "1", "b": "2"}))
    asked = store.asked
    for steps in (
        store.core.batch(put={"a": "1"}, delete=["z"]),
        store.core.put("z", "1", guard=KvLock(b"a", b"me", 1, 1.0)),
    ):
        with pytest.raises(Rejected, match="different regions"):
            store.script.hold(steps)
    assert store.asked <= asked + 2, "sessions at most"
    assert [len(each.values) for each in store.regions.values()] == [2, 0]


@pytest.mark.parametrize("hears", [True, False], ids=["hears of the cut", "hears nothing"])
@pytest.mark.parametrize("applied", [True, False])
def test_a_batch_in_doubt_whose_keys_a_cut_has_parted_is_done_or_refused_and_never_unknown(
    applied: bool, hears: bool
) -> None:
    store = Store(1, cuts=0.0, losses=0.0)
    store.script.hold(store.core.put("a", "0"))
    serve = store.serve

    def lose(request: Command) -> Command:
        store.serve = serve  # type: ignore[method-assign]
        if applied:
            serve(request)
        store.cut(b"m")
        if hears:
            store.core._routes = None
        return request.reply(ResponseCode.SYSTEM_ERROR, "TERM_CHANGED")

    store.serve = lose  # type: ignore[method-assign]
    batch = store.core.batch(put={"a": "1", "z": "1"})
    if applied:
        store.script.hold(batch)
    else:
        with pytest.raises(Rejected, match="different regions"):
            store.script.hold(batch)
    wanted = {b"a": b"1", b"z": b"1"} if applied else {b"a": b"0", b"z": None}
    assert store.script.hold(store.core.multi_get([b"a", b"z"])) == wanted


def test_a_cut_is_made_once_and_one_that_is_there_is_told() -> None:
    store = Store(1, cuts=0.0, losses=0.0)
    store.cut(b"m")
    asked = store.asked
    assert store.script.hold(store.core.split("m")) == 1
    assert store.asked == asked
    assert store.script.hold(store.core.split("t")) == 2
    for letter in b"abcdefghijklnopqrsuvwxyz"[: REGIONS_MAX - 3]:
        store.cut(b"%c" % letter)
    with pytest.raises(Rejected, match="as many regions"):
        store.script.hold(store.core.split("zz"))


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_whose_answer_is_lost_is_made_once(seed: int) -> None:
    store = Store(seed, cuts=0.0, losses=0.4)
    for number, key in enumerate(("m", "g", "t"), 1):
        assert store.script.hold(store.core.split(key)) == number


def test_keys_are_told_apart_by_region_as_soon_as_regions_are_known() -> None:
    store = Store(1, cuts=0.0, losses=0.0)
    store.cut(b"m")
    keys = [b"z", b"a", b"y"]
    assert store.core.apart(keys) == [[0, 1, 2]]
    store.script.hold(store.core.multi_get(keys))
    assert store.core.apart(keys) == [[0, 2], [1]]
