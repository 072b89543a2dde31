"""Queue locks (41, 42): which member of a group may consume a queue in order.

An orderly consumer locks its queues before it pulls from them and every 20 s from then on. A lock is granted if the
queue is free, already the client's own, or its lock was not renewed for 60 s; the client itself stops consuming after
30 s, so two never consume one queue at once. A lock belongs to a client id and not to a connection: it outlives a
reconnect, and it ends by 42 or by time.

One more thing depends on locks: while a group holds any, what it gives up goes to the dead letters at once, because
an ordered message that came back later would be out of its order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Final, NamedTuple

from broker.state.data_version import int_of
from broker.state.shares import Shares, Stranger
from ropewalk.format.sliced_json import finish, loads_in_slices

__all__ = ["LockRequest", "LockTable", "LockedQueue"]

EXPIRY_MS = 60_000
LOCKS_MAX = 200_000
"""Of all groups together. Beyond it only queues that have a lock already can be locked; one address has no more of them
than are free."""
BODY_SIZE_MAX = 4 << 20
QUEUES_PER_STEP = 100
"""Queues that are read, locked or unlocked before others are served."""
_NAME_SIZE_MAX = 1_024
LOCKS_SIZE_MAX: Final = 256 << 20
"""Bytes of all locks; those of 200,000 queues with ordinary names take two thirds of it."""
_LOCK_SIZE: Final = 600


class LockedQueue(NamedTuple):
    """RocketMQ's MessageQueue, in the order of its fields on the wire."""

    broker_name: str
    queue_id: int
    topic: str

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


@dataclass(frozen=True, slots=True)
class LockRequest:
    """The body of 41 and 42."""

    group: str
    client_id: str
    queues: tuple[LockedQueue, ...]

    @classmethod
    def decode(cls, body: bytes) -> LockRequest:
        """Read it. Raises ValueError, in words for the client's user."""
        return finish(cls.decode_in_slices(body))

    @classmethod
    def decode_in_slices(cls, body: bytes) -> Generator[None, None, LockRequest]:
        """Read it as `decode` does, a slice at each step; an ordinary one within the first step."""
        if len(body) > BODY_SIZE_MAX:
            raise ValueError(f"a lock request of {len(body)} bytes; at most {BODY_SIZE_MAX} are read")
        value = yield from loads_in_slices(body, BODY_SIZE_MAX)
        if not isinstance(value, dict):
            raise ValueError("the body of a lock request is a JSON object")
        queues = value.get("mqSet")
        if queues is None:
            queues = []  # as fastjson writes an empty set now and then
        if not isinstance(queues, list):
            raise ValueError("mqSet of a lock request is a list")
        group, client_id = _name(value, "consumerGroup"), _name(value, "clientId")
        wanted: list[LockedQueue] = []
        for queue in queues:
            if len(wanted) % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
                yield
            wanted.append(_queue(queue))
        return cls(group, client_id, tuple(wanted))

    def parts(self) -> Iterator[LockRequest]:
        """Cut a request for many queues into several; one for few is its only part."""
        for start in range(0, len(self.queues) or 1, QUEUES_PER_STEP):
            yield LockRequest(self.group, self.client_id, self.queues[start : start + QUEUES_PER_STEP])


def _name(value: dict[str, Any], field: str) -> str:
    name = value.get(field)
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_SIZE_MAX:
        raise ValueError(f"{field} of a lock request is text of 1 to {_NAME_SIZE_MAX} characters")
    return name


def _queue(value: object) -> LockedQueue:
    if isinstance(value, dict):
        topic, broker, queue_id = (
            value.get("topic"),
            value.get("brokerName"),
            int_of(value.get("queueId"), -1),
        )
        if isinstance(topic, str) and isinstance(broker, str) and queue_id >= 0:
            if len(topic) <= _NAME_SIZE_MAX and len(broker) <= _NAME_SIZE_MAX:
                return LockedQueue(broker, queue_id, topic)
    raise ValueError("a queue of a lock request has topic, brokerName and queueId")


@dataclass(slots=True)
class _Lock:
    client_id: str
    seen_ms: int
    size: int
    """Bytes that it takes, about."""


class LockTable:
    """All locks of one broker. Plain and synchronous; the loop owns it."""

    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        self._shares = Shares(locks_max)
        self._sizes = Shares(LOCKS_SIZE_MAX)
        self._groups: dict[str, dict[LockedQueue, _Lock]] = {}
        self._count = 0
        self.size = 0
        """Bytes of all locks."""

    def __len__(self) -> int:
        return self._count

    def lock(self, request: LockRequest, now_ms: int, by: Stranger | None = None) -> list[LockedQueue]:
        """Lock or renew queues; return those that are now the client's."""
        locks = self._groups.setdefault(request.group, {})
        granted = []
        for queue in dict.fromkeys(request.queues):
            lock = locks.get(queue)
            if lock is None:
                size = _size_of(request, queue)
                if self._shares.refuses(by, self._count) or self._sizes.refuses(by, self.size, size):
                    continue
                self._count += 1
                self.size += size
                self._shares.add((request.group, queue), by)
                self._sizes.add((request.group, queue), by)
                self._sizes.grow((request.group, queue), size - 1)
                locks[queue] = _Lock(request.client_id, now_ms, size)
            elif lock.client_id == request.client_id:
                lock.seen_ms = now_ms
            elif _expired(lock, now_ms):
                lock.client_id, lock.seen_ms = request.client_id, now_ms
                grown = _size_of(request, queue) - lock.size
                lock.size += grown
                self.size += grown
                self._sizes.grow((request.group, queue), grown)
            else:
                continue
            granted.append(queue)
        if not locks:
            del self._groups[request.group]
        return granted

    def unlock(self, request: LockRequest) -> None:
        """Unlock the client's own queues; others stay."""
        locks = self._groups.get(request.group, {})
        self._drop(
            request.group,
            [
                queue
                for queue in dict.fromkeys(request.queues)
                if (lock := locks.get(queue)) is not None and lock.client_id == request.client_id
            ],
        )

    def held(self, group: str, now_ms: int) -> bool:
        """Tell whether a group holds any lock that has not expired."""
        return any(not _expired(lock, now_ms) for lock in self._groups.get(group, {}).values())

    def expire(self, now_ms: int) -> Iterator[None]:
        """Drop expired locks, some at each step; call every ten seconds or so. Nothing but memory depends on it."""
        looked_at = 0
        for group in tuple(self._groups):
            for queue, lock in tuple(self._groups.get(group, {}).items()):
                looked_at += 1
                if looked_at % QUEUES_PER_STEP == 0:
                    yield
                if _expired(lock, now_ms) and self._groups.get(group, {}).get(queue) is lock:
                    self._drop(group, (queue,))

    def _drop(self, group: str, queues: Iterable[LockedQueue]) -> None:
        locks = self._groups.get(group, {})
        for queue in queues:
            size = locks.pop(queue).size
            self._count -= 1
            self.size -= size
            self._shares.discard((group, queue))
            self._sizes.discard((group, queue), size)
        if not locks:
            self._groups.pop(group, None)


def _size_of(request: LockRequest, queue: LockedQueue) -> int:
    return _LOCK_SIZE + sum(
        map(getsizeof, (request.group, request.client_id, queue.broker_name, queue.topic))
    )


def _expired(lock: _Lock, now_ms: int) -> bool:
    return now_ms - lock.seen_ms > EXPIRY_MS
