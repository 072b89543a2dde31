"""Calls of clients of the key-value store over all of its regions, drawn at chance, and the history of their results.

A simulated client and a thread before real members make the same calls. Keys have a letter, for one of the four regions
that a store begins with, and a window of time: a history is cheap to judge where few calls meet on one key.

    b/00012/0, 1, 2     values                                                                 REGISTER
    b/00012/x, y        a pair that batches write and delete together, and reads see together  REGISTER
    b/00012/s           a sequence                                                             COUNTER
    b/00012/l, m        a lock, and the value that it guards                                   LOCK

A call on several keys is noted once for each. Where a store is cut (`cut_key`), x and y stay in one region.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from sortedcontainers import SortedSet

from ropewalk.client.kv.results import Fenced, KvLock
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.kv.items import Count, Delete, NextSequence, Put
from ropewalk.format.kv.items import Operation as Item
from tests.linear.checker import check
from tests.linear.history import Call, Operation, Recorder
from tests.linear.models import COUNTER, LOCK, REGISTER

__all__ = ["CUTS", "LETTERS", "Book", "KvCall", "KvCalls", "Torn"]

LETTERS: Final = "bhpv"
CUTS: Final = ("g", "n", "t")
"""Where a store is cut at first, so that each letter has a region."""
_PLACES: Final = "012"
_STAMP_S: Final = 0.002
"""Stamps are whole milliseconds."""
_KINDS: Final = (
    *("get",) * 5, *("multi_get", "scan") * 2, "scan on", "unsafe", *("put", "cas", "add", "pair") * 3,
    "absent", "delete", "unpair", "batch", "range", *("lock",) * 4,
)  # fmt: skip


class Torn(AssertionError):
    """Values that were written together were not read together, or a value was read that this key never had."""


class Book:
    """The history that clients of a store write together, and what they have seen."""

    def __init__(self, clock: Callable[[], float], window_s: float, lease_s: float) -> None:
        self.clock = clock
        self.lease_s = lease_s
        self.recorder = Recorder(clock)
        self.seen: dict[str, int | None] = {}
        self.operations = 0
        """Calls that have ended, whatever their end was."""
        self.by_kind: dict[str, int] = {}
        self.unknown = 0
        self.hot = ""
        """The beginning of keys that most calls are on at the moment; empty if they are on all."""
        self.leases: dict[tuple[str, int], list[float]] = {}
        """By lock and token: when each call began that had the lease begin."""
        self._window_s = window_s
        self._names = SortedSet()
        """Keys of values, and of both values of a pair, that were ever written."""
        self._key_of: dict[int, str] = {}
        self._number = 0

    def next_value(self, *keys: str) -> int:
        """Return a number that no key had before; it is for these."""
        self._number += 1
        self._names.update(keys)
        self._key_of[self._number] = keys[0]
        return self._number

    def window(self) -> int:
        """Return the number of the window that keys are of now."""
        return int(self.clock() / self._window_s)

    def cut_key(self, chance: random.Random) -> str:
        """Return a key to cut a region at, which is used at about this time."""
        window = max(self.window() + chance.choice((-1, 0, 0, 1)), 0)
        return f"{chance.choice(LETTERS)}/{window:05d}/{chance.choice('012lsx')}"

    def number(self, key: str, value: bytes | None) -> int | None:
        """Return the number that a value has. Raises `Torn` for one that this key never had."""
        if value is None:
            return None
        if self._key_of.get(int(value)) != key.replace("/y", "/x"):
            raise Torn(f"{key} has {value!r}, which was written to {self._key_of.get(int(value))}")
        return int(value)

    def note_reads(self, client: str, begin: float, found: dict[str, bytes | None]) -> None:
        """Note that keys were read together, each in its own region."""
        end, calls = self.clock(), self.recorder.calls
        for key, value in found.items():
            if key[-1] in _PLACES:
                self.seen[key] = self.number(key, value)
                calls.append(Call(client, key, ("read",), begin, end, self.seen[key]))
            elif key.endswith("/x") and (other := key[:-1] + "y") in found:
                if value != found[other]:
                    raise Torn(
                        f"{client} read {value!r} of {key} and {found[other]!r} of {other}, of one moment"
                    )
                calls.append(Call(client, key, ("read",), begin, end, self.number(key, value)))

    def keys_between(self, start: str, end: str) -> list[str]:
        """Return the keys in a range (an empty end is behind all) that were ever written."""
        return list(self._names.irange(start, end or None, inclusive=(True, False)))

    def judge(self) -> int:
        """Return how many keys the history has. Raises `NotLinearizable`."""
        calls = self.recorder.calls
        models = {"s": COUNTER, "l": LOCK}
        return sum(
            check([each for each in calls if models.get(str(each.key)[-1], REGISTER) is model], model)
            for model in (REGISTER, COUNTER, LOCK)
        )

    def judge_leases(self) -> None:
        """Raise `Torn` if a lock was granted while another had it."""
        granted = sorted((lock, token) for lock, token in self.leases)
        given_back = {
            (str(each.key), each.operation[1])
            for each in self.recorder.calls
            if each.operation[0] == "released"
        }
        for (lock, token), later in pairwise(granted):
            if lock != later[0] or (lock, token) in given_back:
                continue
            ends = max(self.leases[lock, token]) + self.lease_s - _STAMP_S
            (taken,) = (
                each
                for each in self.recorder.calls
                if str(each.key) == lock and each.operation == ("granted", later[1])
            )
            if taken.end < ends:
                raise Torn(
                    f"{lock} was granted under {later} by {taken.end:.3f}, and is {token}'s until {ends:.3f}"
                )


class KvCall:
    """One call: a method of `KvCore` or `Kv`, its arguments, and who hears the result."""

    def __init__(self, kind: str, method: str, *arguments: Any, **keywords: Any) -> None:
        self.kind, self.method = kind, method
        self.arguments, self.keywords = arguments, keywords
        self.noted: list[Call] = []
        self.hear: Callable[[Any], None] = lambda result: None
        self.may_be_half_done = False
        """Whether a refusal may be of a part of it, and the other part was done."""


class KvCalls:
    """The calls of one client, one after the other or several at a time."""

    def __init__(self, name: str, book: Book, chance: random.Random, *, batching: bool) -> None:
        """`batching`: whether the client has `write_each`."""
        self.name = name
        self._book = book
        self._chance = chance
        self._kinds = (*_KINDS, *("each",) * 3) if batching else _KINDS
        self._held: tuple[str, KvLock] | None = None
        """The lock that it was granted last."""

    def draw(self) -> KvCall:
        """Draw a call, and note its beginning."""
        kind = self._chance.choice(self._kinds)
        drawn: KvCall = getattr(self, "_" + kind.replace(" ", "_"))()
        drawn.kind = kind
        return drawn

    def ended(self, call: KvCall, outcome: Any) -> None:
        """Note the end of a call: its result, or the `RopewalkError` that it raised. Raises `Torn`."""
        book = self._book
        book.operations += 1
        book.by_kind[call.kind] = book.by_kind.get(call.kind, 0) + 1
        if isinstance(outcome, Fenced) and call.kind == "lock":
            book.recorder.end(call.noted[0], False)
        elif isinstance(outcome, OutcomeUnknown) or (
            isinstance(outcome, RopewalkError) and call.may_be_half_done
        ):
            book.unknown += 1
            if call.kind == "lock":
                self._held = None
        elif isinstance(outcome, RopewalkError):
            for each in call.noted:
                book.recorder.forget(each)
        else:
            call.hear(outcome)

    # -- keys --------------------------------------------------------------------------------------------

    def _stem(self) -> str:
        """Return the beginning of keys that are used at the moment, or were a moment ago."""
        if self._book.hot and self._chance.random() < 0.7:
            return self._book.hot
        window = max(self._book.window() - self._chance.randrange(2), 0)
        return f"{self._chance.choice(LETTERS)}/{window:05d}/"

    def _key(self) -> str:
        return self._stem() + self._chance.choice(_PLACES)

    def _note(self, call: KvCall, key: str, operation: Operation) -> Call:
        noted = self._book.recorder.begin(self.name, key, operation)
        call.noted.append(noted)
        return noted

    def _noted(self, call: KvCall, key: str, operation: Operation, told: Callable[[Any], Any]) -> KvCall:
        """Note the beginning of a call on one key, and have `told` make the model's result of its own."""
        noted = self._note(call, key, operation)
        call.hear = lambda result: self._book.recorder.end(noted, told(result))
        return call

    def _all_done(self, call: KvCall) -> KvCall:
        """Have all that was noted end when the call returns."""

        def hear(_result: object) -> None:
            for each in call.noted:
                self._book.recorder.end(each, None)

        call.hear = hear
        return call

    # -- reads -------------------------------------------------------------------------------------------

    def _get(self) -> KvCall:
        key, begin = self._key(), self._book.clock()
        call = KvCall("get", "get", key)
        call.hear = lambda value: self._book.note_reads(self.name, begin, {key: value})
        return call

    def _unsafe(self) -> KvCall:
        key = self._key()
        call = KvCall("unsafe", "get", key, unsafe=True)

        def hear(value: bytes | None) -> None:
            self._book.number(key, value)

        call.hear = hear
        return call

    def _multi_get(self) -> KvCall:
        begin, pair = self._book.clock(), self._stem()
        keys = [self._key() for _ in range(self._chance.randrange(1, 5))] + [pair + "x", pair + "y"]
        call = KvCall("multi_get", "multi_get", keys)
        call.hear = lambda found: self._book.note_reads(self.name, begin, found)
        return call

    def _scan(self) -> KvCall:
        """Scan a window, and perhaps the one before it."""
        letter, window = self._chance.choice(LETTERS), self._book.window()
        first = max(window - self._chance.randrange(2), 0)
        return self._scanned(f"{letter}/{first:05d}/", f"{letter}/{window:05d}0", None)

    def _scan_on(self) -> KvCall:
        """Scan from a key on, into the next letter if need be."""
        return self._scanned(self._key(), "", self._chance.randrange(1, 12))

    def _scanned(self, start: str, end: str, limit: int | None) -> KvCall:
        book, begin = self._book, self._book.clock()
        call = KvCall("scan", "scan", start, end, limit=limit)

        def hear(pairs: list[tuple[bytes, bytes]]) -> None:
            names = [key.decode() for key, _value in pairs]
            if names != sorted({*names}) or any(not start <= name or (end and name >= end) for name in names):
                raise Torn(f"a scan from {start} to {end} found {names}")
            found = dict(zip(names, (value for _key, value in pairs), strict=True))
            last = names[-1] + "\0" if len(names) == limit else end
            book.note_reads(self.name, begin, {key: found.get(key) for key in book.keys_between(start, last)})

        call.hear = hear
        return call

    # -- writes ------------------------------------------------------------------------------------------

    def _put(self) -> KvCall:
        key = self._key()
        value = self._book.next_value(key)
        return self._noted(KvCall("put", "put", key, str(value)), key, ("write", value), lambda none: None)

    def _cas(self) -> KvCall:
        key = self._key()
        expect, value = self._book.seen.get(key), self._book.next_value(key)
        call = KvCall("cas", "compare_and_put", key, None if expect is None else str(expect), str(value))
        return self._noted(call, key, ("compare_and_put", expect, value), lambda done: done)

    def _absent(self) -> KvCall:
        key = self._key()
        value = self._book.next_value(key)
        call = KvCall("absent", "put_if_absent", key, str(value))
        return self._noted(call, key, ("put_if_absent", value), lambda found: self._book.number(key, found))

    def _delete(self) -> KvCall:
        key = self._key()
        return self._noted(KvCall("delete", "delete", key), key, ("delete",), lambda found: found)

    def _add(self) -> KvCall:
        key, count = self._stem() + "s", self._chance.choice((1, 1, 3))
        return self._noted(
            KvCall("add", "sequence", key, count), key, ("add", count), lambda numbers: numbers.start
        )

    def _pair(self) -> KvCall:
        stem = self._stem()
        value = self._book.next_value(stem + "x", stem + "y")
        call = KvCall("pair", "batch", put={stem + "x": str(value), stem + "y": str(value)})
        self._note(call, stem + "x", ("write", value))
        return self._all_done(call)

    def _unpair(self) -> KvCall:
        stem = self._stem()
        call = KvCall("unpair", "batch", delete=[stem + "x", stem + "y"])
        self._note(call, stem + "x", ("remove",))
        return self._all_done(call)

    def _batch(self) -> KvCall:
        """Write the values of a window together, unless a cut has parted them."""
        stem, put, delete = self._stem(), {}, []
        call = KvCall("batch", "batch")
        for place in _PLACES:
            key = stem + place
            if self._chance.random() < 0.7:
                value = self._book.next_value(key)
                put[key] = str(value)
                self._note(call, key, ("write", value))
            else:
                delete.append(key)
                self._note(call, key, ("remove",))
        call.keywords = {"put": put, "delete": delete}
        return self._all_done(call)

    def _range(self) -> KvCall:
        stem = self._stem()
        call = KvCall("range", "delete_range", stem, stem[:-1] + "0")
        call.may_be_half_done = True
        for name in (*_PLACES, "x"):
            self._note(call, stem + name, ("remove",))
        return self._all_done(call)

    def _each(self) -> KvCall:
        """Write several keys apart, in one request to each region."""
        items: list[Item] = []
        call = KvCall("each", "write_each", items)
        for _ in range(self._chance.randrange(2, 6)):
            match self._chance.randrange(3):
                case 0:
                    key = self._key()
                    value = self._book.next_value(key)
                    items.append(Put(key.encode(), b"%d" % value))
                    self._note(call, key, ("write", value))
                case 1:
                    key = self._key()
                    items.append(Delete(key.encode()))
                    self._note(call, key, ("delete",))
                case _:
                    key = self._stem() + "s"
                    items.append(NextSequence(key.encode(), 1))
                    self._note(call, key, ("add", 1))

        def hear(outcomes: list[Count | RopewalkError]) -> None:
            recorder = self._book.recorder
            for noted, outcome in zip(call.noted, outcomes, strict=True):
                if isinstance(outcome, Count):
                    told = {"write": None, "delete": outcome.number > 0, "add": outcome.number}
                    recorder.end(noted, told[noted.operation[0]])
                elif not isinstance(outcome, OutcomeUnknown):
                    recorder.forget(noted)

        call.hear = hear
        return call

    # -- locks -------------------------------------------------------------------------------------------

    def _lock(self) -> KvCall:
        book, chance = self._book, self._chance
        if self._held is None or chance.random() < 0.3:
            return self._acquire()
        key, lock = self._held
        kind = chance.choice(("renew", "release", "guard", "guard"))
        if kind == "guard":
            value = book.next_value(key[:-1] + "m")
            call = KvCall("lock", "put", key[:-1] + "m", str(value), guard=lock)
            return self._noted(call, key, ("guarded", lock.token), lambda none: True)
        call = KvCall("lock", "renew_lock" if kind == "renew" else "release", lock)
        noted = self._note(call, key, ("renewed" if kind == "renew" else "released", lock.token))
        if kind == "release":
            self._held = None

        def hear(granted: bool) -> None:
            if not granted:
                noted.operation = ("refused",)
            elif kind == "renew":
                book.leases[key, lock.token].append(noted.begin)
            book.recorder.end(noted, True)

        call.hear = hear
        return call

    def _acquire(self) -> KvCall:
        book = self._book
        key = self._stem() + "l"
        call = KvCall("lock", "acquire", key, lease=book.lease_s)
        noted = self._note(call, key, ("taken",))

        def hear(lock: KvLock | None) -> None:
            noted.operation = ("refused",) if lock is None else ("granted", lock.token)
            if lock is not None:
                self._held = key, lock
                book.leases[key, lock.token] = [noted.begin]
            book.recorder.end(noted, True)

        call.hear = hear
        return call
