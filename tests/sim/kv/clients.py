"""Clients of the simulated region: they read at any member, write, count and lock, and send again what is unknown.

    ("value", n)     get, put, put_if_absent, compare_and_put, delete     REGISTER
    ("number", n)    a sequence                                           COUNTER
    ("lock", n)      acquire, release, and a write guarded by its token   LOCK

A write keeps its number over all attempts, whichever member they go to; after some its client gives up, and begins a
session anew: then nobody knows. The keys change each half second: a history is cheap to judge where few calls meet on
one key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.kv.commands import Outcome, Status, decode_found, decode_outcome
from ropewalk.format.kv.items import (
    AcquireLock,
    ComparePut,
    Count,
    Delete,
    Guard,
    Lease,
    NextSequence,
    Operation,
    Put,
    PutIfAbsent,
    ReleaseLock,
    RenewLock,
    Result,
    Swapped,
    encode_items,
    encode_values,
)
from ropewalk.format.remoting import Command
from tests.linear.history import Call
from tests.linear.history import Operation as Named
from tests.sim.ledger.clients import Client
from tests.sim.ledger.node import Broken

if TYPE_CHECKING:
    from tests.sim.kv.world import KvWorld

ATTEMPTS = 8
LEASE_MS = 300
_REFUSED = (
    ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY
)  # fmt: skip
_KINDS = ("get",) * 5 + ("put", "cas", "cas", "absent", "delete", "add", "add", "add", "lock", "lock", "lock")


class KvClient(Client):
    """A client with one call under way at most."""

    def __init__(self, world: KvWorld, number: int) -> None:
        super().__init__(world, number)
        self._kv = world
        self._ip = f"10.0.2.{number}"
        self._session = -1
        self._seq = 0
        self._call: Call | None = None
        self._attempts = 0
        self._sent: tuple[Operation, ...] = ()
        self._held: tuple[bytes, int] | None = None
        """The lock that it was granted last, and its token."""

    @property
    def waits(self) -> bool:
        """Return whether a call is under way, or is to be tried again."""
        return super().waits or bool(self._sent)

    def _go_on(self) -> None:
        world = self._kv
        if world.quiet and not self._sent:
            return
        chance = world.chance
        if self._sent:
            self._attempt()
            return
        kind = chance.choice(_KINDS)
        if kind == "get":
            self._get()
            return
        if self._session < 0:
            self._open()
            return
        self._seq += 1
        self._attempts = 0
        self._write(kind)
        self._attempt()

    # -- reads -------------------------------------------------------------------------------------------

    def _get(self) -> None:
        world = self._kv
        node = world.supposed_leader() if world.chance.random() < 0.3 else world.chance.choice(world.nodes)
        if not self._connect(node):
            self._soon()
            return
        key = ("value", world.key())
        call = world.recorder.begin(f"{self.name} at {node}", key, ("read",))

        def hear(answer: Command | None) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                world.recorder.forget(call)
                return
            status, (value,) = decode_found(answer.body)
            if status is not Status.OK:
                raise Broken(f"a read of {key} was answered {status!r}")
            world.reads += 1
            world.seen[key] = None if value is None else int(value)
            world.recorder.end(call, world.seen[key])

        self._ask(self._command(RequestCode.ROPEWALK_KV_GET, encode_values([_bytes(key)])), hear)

    # -- writes ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._connect(self._kv.supposed_leader()):
            self._soon()
            return

        def hear(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                result = _first(decode_outcome(answer.body))
                if not isinstance(result, Count):
                    raise Broken(f"a session was answered {result}")
                self._session, self._seq = result.number, 0

        self._ask(self._command(RequestCode.ROPEWALK_KV_SESSION), hear)

    def _write(self, kind: str) -> None:
        """Draw a write, and note that it begins."""
        world = self._kv
        number, value = world.key(), world.next_number()
        key: tuple[str, int] = ("value", number)
        text = b"%d" % value
        named: Named
        operations: tuple[Operation, ...]
        match kind:
            case "put":
                named, operations = ("write", value), (Put(_bytes(key), text),)
            case "cas":
                seen = world.seen.get(key)
                named = ("compare_and_put", seen, value)
                operations = (ComparePut(_bytes(key), None if seen is None else b"%d" % seen, text),)
            case "absent":
                named, operations = ("put_if_absent", value), (PutIfAbsent(_bytes(key), text),)
            case "delete":
                named, operations = ("delete",), (Delete(_bytes(key)),)
            case "add":
                key = ("number", number)
                named, operations = ("add", 1), (NextSequence(_bytes(key), 1),)
            case _:
                key, named, operations = self._lock_operation(number, text)
        self._sent = operations
        self._call = world.recorder.begin(self.name, key, named)

    def _lock_operation(
        self, number: int, text: bytes
    ) -> tuple[tuple[str, int], Named, tuple[Operation, ...]]:
        key = ("lock", number % 3)
        name, me = _bytes(key), self.name.encode()
        if self._held is None or self._kv.chance.random() < 0.3:
            return key, ("taken",), (AcquireLock(name, me, LEASE_MS),)
        held, token = self._held
        key = ("lock", int(held.split(b"-")[1]))
        match self._kv.chance.choice(("renew", "release", "guard", "guard")):
            case "renew":
                return key, ("renewed", token), (RenewLock(held, me, token, LEASE_MS),)
            case "release":
                self._held = None
                return key, ("released", token), (ReleaseLock(held, me, token),)
        return key, ("guarded", token), (Guard(held, token), Put(b"guarded", text))

    def _attempt(self) -> None:
        """Send the write, for the first time or once more; give it up after some times."""
        world = self._kv
        if self._attempts == ATTEMPTS:
            self._sent, self._call, self._session, self._held = (), None, -1, None
            self._soon()
            return
        self._attempts += 1
        node = world.supposed_leader() if world.chance.random() < 0.85 else world.chance.choice(world.nodes)
        if not self._connect(node):
            self._soon()
            return
        numbers = {"session": self._session, "seq": self._seq, "lowest": self._seq}
        self._ask(
            self._command(RequestCode.ROPEWALK_KV_WRITE, encode_items(self._sent), **numbers), self._heard
        )

    def _heard(self, answer: Command | None) -> None:
        if answer is None or answer.code in _REFUSED:
            return  # it is sent again
        if answer.code != ResponseCode.SUCCESS:
            raise Broken(f"{self._sent} of {self.name} was answered {answer.code}: {answer.remark}")
        call, outcome = self._call, decode_outcome(answer.body)
        assert call is not None
        if outcome.status is Status.FENCED and call.operation[0] == "guarded":
            self._kv.recorder.end(call, False)
        elif outcome.status is not Status.OK:
            raise Broken(f"{self._sent} of {self.name} was answered {outcome.status!r}")
        else:
            self._kv.recorder.end(call, self._told(call, _first(outcome)))
        self._kv.writes += 1
        self._sent, self._call = (), None

    def _told(self, call: Call, result: Result) -> Any:
        """Return the result of a write as its model tells it."""
        match call.operation[0], result:
            case "write", Count():
                return None
            case "compare_and_put", Swapped(done=done):
                return bool(done)
            case "put_if_absent", Swapped(value=value):
                return None if value is None else int(value)
            case "delete", Count(number=number):
                return number > 0
            case "add", Count(number=number):
                return number
            case "taken", Lease(granted=granted, token=token):
                call.operation = ("granted", token) if granted else ("refused",)
                if granted:
                    assert isinstance(call.key, tuple)
                    self._held = _bytes(call.key), token
                return True
            case (("renewed" | "released"), Lease(granted=granted)):
                if not granted:
                    call.operation = ("refused",)
                return True
            case "guarded", Count():
                return True
        raise Broken(f"{call} was answered {result}")

    def _command(self, code: int, body: bytes = b"", **numbers: int) -> Command:
        ext = {"region": "0", "epoch": "1"} | {name: str(number) for name, number in numbers.items()}
        return Command(code, ext, body)


def _first(outcome: Outcome) -> Result:
    if not outcome.results:
        raise Broken(f"an answer has no result: {outcome}")
    return outcome.results[0]


def _bytes(key: tuple[str, int]) -> bytes:
    return f"{key[0]}-{key[1]}".encode()
