"""Clients of the key-value store of real brokers, the history of their calls, and members as they see themselves."""

from __future__ import annotations

import random
import threading
import time

from ropewalk import Kv
from ropewalk.client.kv.results import KvStatus
from ropewalk.errors import RopewalkError
from tests.crash.ledger_group import LedgerGroup, Member
from tests.linear.kv_calls import Book, KvCalls
from tests.support.waiting import until

CLIENTS = 4
WINDOW_S = 0.5
LEASE_S = 0.3


class Caller(threading.Thread):
    """A client that makes one call after the other, until it is told to stop."""

    def __init__(self, name_server: str, book: Book, lock: threading.Lock, number: int, seed: int) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.is_over = threading.Event()
        self.troubles: list[str] = []
        self._name_server = name_server
        self._lock = lock
        self._calls = KvCalls(self.name, book, random.Random(f"{seed} {number}"), batching=False)

    def run(self) -> None:
        try:
            with Kv(self._name_server, timeout=8.0) as kv:
                while not self.is_over.is_set():
                    self._step(kv)
        except Exception as exc:
            self.troubles.append(f"{self.name}: {exc!r}")

    def _step(self, kv: Kv) -> None:
        with self._lock:
            call = self._calls.draw()
        outcome: object
        try:
            outcome = getattr(kv, call.method)(*call.arguments, **call.keywords)
        except RopewalkError as exc:
            outcome = exc
        with self._lock:
            self._calls.ended(call, outcome)


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

    def __init__(self, group: LedgerGroup, seed: int, clients: int = CLIENTS) -> None:
        began = time.monotonic()
        self.book = Book(lambda: time.monotonic() - began, WINDOW_S, LEASE_S)
        self._group = group
        lock = threading.Lock()
        self._clients = [
            Caller(group.name_server, self.book, lock, number, seed) for number in range(clients)
        ]

    def start(self) -> None:
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """Stop the clients."""
        for client in self._clients:
            client.is_over.set()
        for client in self._clients:
            client.join(30)
            assert not client.is_alive(), f"{client.name} hangs"
            assert not client.troubles, client.troubles

    def read_all(self) -> None:
        """Read all that there is, behind the last call."""
        begin = self.book.clock()
        with Kv(self._group.name_server) as kv:
            found = {key.decode(): value for key, value in kv.scan()}
        names = self.book.keys_between("", "")
        self.book.note_reads("at rest", begin, {name: found.get(name) for name in names})

    def judge(self) -> None:
        book = self.book
        keys = book.judge()
        book.judge_leases()
        print(f"{book.operations} calls on {keys} keys, {book.unknown} of unknown outcome: {book.by_kind}")
        assert book.operations - book.unknown > 100


def are_equal(group: LedgerGroup) -> bool:
    """Tell whether all members have applied the same entries of the same regions."""
    names = ("region", "epoch", "applied", "keys", "usedBytes")
    told = [tuple(each.values[name] for name in names) for each in members_of(group.name_server)]
    return len(told) == 3 * len({*told}) == 3 * len({each[0] for each in told}) > 0
