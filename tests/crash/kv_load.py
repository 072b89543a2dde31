"""Clients of the key-value store of real brokers, the history of their calls, and members as they see themselves."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from ropewalk import Kv, OutcomeUnknown
from ropewalk.client.kv.results import KvStatus
from ropewalk.errors import RopewalkError
from tests.crash.ledger_group import LedgerGroup, Member
from tests.linear.checker import check
from tests.linear.history import UNKNOWN, Call, Operation, Recorder
from tests.linear.models import COUNTER, REGISTER
from tests.support.waiting import until

CLIENTS = 4
KEY_S = 0.5
"""How long a key is used: a history is cheap to judge where few calls meet on one key."""
ROTATION = 64
"""Keys come back after so many, with what they had: the store outlives its writers."""


class Caller(threading.Thread):
    """A client that makes one call after the other, until it is told to stop."""

    def __init__(
        self, name_server: str, recorder: Recorder, lock: threading.Lock, number: int, seed: int
    ) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.is_over = threading.Event()
        self.troubles: list[str] = []
        self._name_server = name_server
        self._recorder = recorder
        self._lock = lock
        self._chance = random.Random(f"{seed} {number}")
        self._number = number
        self._count = 0
        self._began = time.monotonic()

    def run(self) -> None:
        try:
            with Kv(self._name_server, timeout=8.0) as kv:
                while not self.is_over.is_set():
                    self._step(kv)
        except Exception as exc:
            self.troubles.append(f"{self.name}: {exc!r}")

    def _step(self, kv: Kv) -> None:
        chance = self._chance
        self._count += 1
        value = self._count * 10 + self._number
        key = f"k{(int((time.monotonic() - self._began) / KEY_S) + chance.randrange(2)) % ROTATION}"
        match chance.randrange(8):
            case 0 | 1 | 2:
                self._call(key, ("read",), lambda: _number(kv.get(key)))
            case 3:
                self._call(key, ("write", value), lambda: kv.put(key, str(value)))
            case 4:
                expected = _number(kv.get(key))
                old = None if expected is None else str(expected)
                self._call(
                    key,
                    ("compare_and_put", expected, value),
                    lambda: kv.compare_and_put(key, old, str(value)),
                )
            case 5:
                self._call(key, ("put_if_absent", value), lambda: _number(kv.put_if_absent(key, str(value))))
            case 6:
                self._call(key, ("delete",), lambda: kv.delete(key))
            case 7:
                name = f"s{key}"
                self._call(name, ("add", 1), lambda: kv.sequence(name).start)

    def _call(self, key: str, operation: Operation, carry_out: Callable[[], object]) -> None:
        with self._lock:
            call = self._recorder.begin(self.name, key, operation)
        try:
            result = carry_out()
        except OutcomeUnknown:
            return
        except RopewalkError:  # certainly nothing was done
            with self._lock:
                self._recorder.forget(call)
            return
        with self._lock:
            self._recorder.end(call, result)


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)


def members_of(name_server: str) -> tuple[KvStatus, ...]:
    """Return the region as its members see it; empty while there is no telling."""
    try:
        with Kv(name_server, timeout=2.0) as kv:
            return kv.status()
    except RopewalkError:
        return ()


def leaders_of(group: LedgerGroup, among: list[Member], count: int = 1) -> dict[int, Member]:
    """Wait until each of so many regions is led by one of these members; return which, by region."""
    wanted = {member.id: member for member in among}
    found: list[tuple[int, str]] = []

    def are_led() -> bool:
        found[:] = [
            (each.values["region"], each.values["member"])
            for each in members_of(group.name_server)
            if each.values["leads"]
        ]
        return len(dict(found)) == len(found) >= count and {member for _id, member in found} <= {*wanted}

    until(are_led, lambda: str(members_of(group.name_server)), patience_s=60.0, pause_s=0.1)
    return {id: wanted[member] for id, member in found}


class Load:
    """Clients that call a store until they are stopped, and the history of their calls."""

    def __init__(self, group: LedgerGroup, seed: int) -> None:
        began = time.monotonic()
        self.recorder, lock = Recorder(lambda: time.monotonic() - began), threading.Lock()
        self._clients = [
            Caller(group.name_server, self.recorder, lock, number, seed) for number in range(CLIENTS)
        ]

    def start(self) -> None:
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        for client in self._clients:
            client.is_over.set()
        for client in self._clients:
            client.join(30)
            assert not client.is_alive(), f"{client.name} hangs"
            assert not client.troubles, client.troubles

    def judge(self) -> None:
        calls = self.recorder.calls
        known = [call for call in calls if call.result is not UNKNOWN]
        print(f"{len(calls)} calls, {len(calls) - len(known)} of unknown outcome")
        assert len(known) > 100
        check([call for call in calls if _is_counter(call)], COUNTER)
        check([call for call in calls if not _is_counter(call)], REGISTER)


def _is_counter(call: Call) -> bool:
    return bool(call.operation[0] == "add")


def are_equal(group: LedgerGroup) -> bool:
    """Tell whether all members have applied the same entries of the same regions."""
    names = ("region", "epoch", "applied", "keys", "usedBytes")
    told = [tuple(each.values[name] for name in names) for each in members_of(group.name_server)]
    return len(told) == 3 * len({*told}) == 3 * len({each[0] for each in told}) > 0
