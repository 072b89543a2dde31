"""Clients of a region in one process, whose members are cut off, stopped and started: a history of all calls.

A write that was refused, or of which nobody knows, is sent again under its number, to any member; after some attempts
its client gives up. Time is counted in turns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.kv.commands import Status, decode_found, decode_outcome
from ropewalk.format.kv.items import (
    ComparePut,
    Count,
    Delete,
    NextSequence,
    Operation,
    Put,
    PutIfAbsent,
    Result,
    Swapped,
    encode_values,
)
from ropewalk.format.remoting import Command
from tests.broker.harness import Client
from tests.broker.kv.members import REGION, KvGroup, Session, region
from tests.linear.checker import check
from tests.linear.history import Call, Recorder
from tests.linear.history import Operation as Named
from tests.linear.models import COUNTER, REGISTER
from tests.support.ledger_brokers import Member

TURN_MS = 5
KEY_TURNS = 60
"""How long a key is used: a history is cheap to judge where few calls meet on one key."""
PATIENCE = 60
"""Turns until an attempt is given up, and its connection with it."""
ATTEMPTS = 6


class Caller:
    """A client with one call under way at most."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.call: Call | None = None
        self._session: Session | None = None
        self._client: Client | None = None
        self._asked_at = 0
        self._attempts = 0
        self._request: tuple[int, dict[str, object], bytes] = (0, {}, b"")
        self._count = 0

    def step(self) -> None:
        """Hear what has come, give up what does not come, or make the next call."""
        if self._client is not None:
            self._hear(self._client)
        if self.call is None and self.world.chance.random() < 0.5:
            self._begin()

    def _begin(self) -> None:
        world, chance = self.world, self.world.chance
        if self._session is None:
            leader = world.leader()
            if leader is None:
                return
            self._session = Session(leader)
        self._count += 1
        value = self._count * 10 + self.number
        key = f"k{world.turns // KEY_TURNS + chance.randrange(2)}"
        operation: Operation
        named: Named
        match chance.choice(("read", "read", "read", "put", "cas", "absent", "delete", "add", "add")):
            case "read":
                named = ("read",)
                self._request = RequestCode.ROPEWALK_KV_GET, REGION, encode_values([key.encode()])
            case "put":
                named, operation = ("write", value), Put(key.encode(), b"%d" % value)
            case "cas":
                expected = world.seen.get(key)
                named = ("compare_and_put", expected, value)
                old = None if expected is None else b"%d" % expected
                operation = ComparePut(key.encode(), old, b"%d" % value)
            case "absent":
                named, operation = ("put_if_absent", value), PutIfAbsent(key.encode(), b"%d" % value)
            case "delete":
                named, operation = ("delete",), Delete(key.encode())
            case _:
                key = f"s{key}"
                named, operation = ("add", 1), NextSequence(key.encode(), 1)
        if named != ("read",):
            self._request = self._session.request(operation)
        self.call = world.recorder.begin(f"client {self.number}", key, named)
        self._attempts = 0
        self._send()

    @property
    def _reads(self) -> bool:
        return self.call is not None and self.call.operation == ("read",)

    def _send(self) -> None:
        world = self.world
        self._attempts += 1
        leader = world.leader()
        member = leader if leader is not None and not self._reads and world.chance.random() < 0.8 else None
        member = member or world.chance.choice(list(world.group.members.values()))
        self._client = member.connect()
        self._asked_at = world.turns
        self._client.ask(*self._request)

    def _hear(self, client: Client) -> None:
        world, call = self.world, self.call
        assert call is not None
        answers = client.answers()
        if not answers:
            is_gone = client.owner not in world.group.members.values()
            if is_gone or world.turns - self._asked_at > PATIENCE:
                self._again()
            return
        (answer,) = answers
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code in (
                ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY
            ), answer.remark  # fmt: skip
            self._again()
            return
        self._client = None
        result = self._read_result(answer) if self._reads else self._written_result(answer)
        if self._reads and isinstance(result, int | None):
            world.seen[str(call.key)] = result
        world.recorder.end(call, result)
        self.call = None

    def _again(self) -> None:
        """Send a write once more, or give the call up; a read is made anew, as another call."""
        world, call = self.world, self.call
        assert call is not None
        self._client = None
        if self._reads:
            world.recorder.forget(call)
            self.call = None
        elif self._attempts < ATTEMPTS:
            self._send()
        else:
            self.call = self._session = None  # nobody knows, and its number must not be used again

    @staticmethod
    def _read_result(answer: Command) -> int | None:
        status, (value,) = decode_found(answer.body)
        assert status is Status.OK
        return None if value is None else int(value)

    def _written_result(self, answer: Command) -> object:
        outcome = decode_outcome(answer.body)
        assert outcome.status is Status.OK, outcome
        (result,) = outcome.results
        assert self.call is not None
        return _TOLD[self.call.operation[0]](result)


def _swapped(result: Result) -> Swapped:
    assert isinstance(result, Swapped)
    return result


def _count(result: Result) -> int:
    assert isinstance(result, Count)
    return result.number


def _before(result: Result) -> int | None:
    value = _swapped(result).value
    return None if value is None else int(value)


_TOLD: dict[str, Callable[[Result], object]] = {
    "write": lambda result: None,
    "compare_and_put": lambda result: bool(_swapped(result).done),
    "put_if_absent": _before,
    "delete": lambda result: _count(result) > 0,
    "add": _count,
}


class World:
    """Three members, their clients, and what happens to them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.turns = 0
        self.recorder = Recorder(lambda: float(self.turns))
        self.seen: dict[str, int | None] = {}
        self.group = KvGroup(root)
        self._callers = [Caller(self, number) for number in range(5)]
        self._calm_until = 300
        self._stopped: list[int] = []

    def leader(self) -> Member | None:
        """Return a member that believes it leads the region; there may be two."""
        leading = [each for each in self.group.members.values() if region(each).leads]
        return self.chance.choice(leading) if leading else None

    def live(self, turns: int) -> None:
        """Go on for so many turns, then heal all and let the members become equal."""
        with self.group as group:
            for _ in range(turns):
                self.turns += 1
                group.turn(TURN_MS)
                time.sleep(0.0003)  # helper threads live by the real clock
                self._trouble()
                for caller in self._callers:
                    caller.step()
            group.apart.clear()
            for index in self._stopped:
                group.start(index)
            group.region_leader()
            group.all_applied()

    def _trouble(self) -> None:
        """End one trouble, and begin the next some time later; a majority lives on, most of the time."""
        group, chance = self.group, self.chance
        if self.turns < self._calm_until:
            return
        self._calm_until = self.turns + chance.randrange(50, 300)
        if self._stopped:
            group.start(self._stopped.pop())
            return
        if group.apart:
            group.apart.clear()
            return
        leader = self.leader()
        victim = (
            leader
            if leader is not None and chance.random() < 0.7
            else chance.choice([*group.members.values()])
        )
        index = int(victim.id[1:])
        if chance.random() < 0.4:
            group.stop(index)
            self._stopped.append(index)
        else:
            group.apart.add(index)
            victim.cut_off()


def judge(root: Path, seed: int, turns: int) -> int:
    """Live once, and return how many calls there were. Raises `AssertionError` for a history that cannot be."""
    world = World(root, seed)
    world.live(turns)
    calls = world.recorder.calls
    check([call for call in calls if call.operation[0] == "add" or str(call.key).startswith("s")], COUNTER)
    check([call for call in calls if not str(call.key).startswith("s")], REGISTER)
    return len(calls)
