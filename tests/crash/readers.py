"""Clients of a real DLedger group whose calls are noted: appends and ends of queues, commits and reads of offsets.

Each is a thread that goes to one member after the other: to the one that took its last message, as long as it does,
with reads to any, and with some commits to any too.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Hashable

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command
from tests.crash.ledger_group import LedgerGroup, Member
from tests.linear.history import Operation, Recorder

__all__ = ["GROUP", "TOPIC", "Reader", "make_group"]

TOPIC, GROUP = "T", "readers"
QUEUES = 2
CALL_S = 2.0
KEY_S = 0.5
"""How long an offset is written: a history is cheap to judge where few calls meet on one key."""


def make_group(member: Member) -> None:
    """Create the consumer group, at the leader."""
    with Connection(member.address, 30.0) as connection:
        body = b'{"groupName":"%s"}' % GROUP.encode()
        answer = connection.call(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))
        assert answer.code == ResponseCode.SUCCESS, answer.remark


class Reader(threading.Thread):
    """One client, until it is told to stop."""

    def __init__(self, group: LedgerGroup, recorder: Recorder, number: int, seed: int) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.is_over = threading.Event()
        self.troubles: list[str] = []
        self._group = group
        self._recorder = recorder
        self._chance = random.Random(f"{seed} {number}")
        self._number = number
        self._count = 0
        self._began = time.monotonic()
        self._leader = group.members[number % 3]
        self._connections: dict[str, Connection] = {}

    def run(self) -> None:
        """Make one call after the other."""
        chance = self._chance
        try:
            while not self.is_over.is_set():
                kind = chance.choice(("append", "commit", "query", "query", "end", "end"))
                if kind in ("append", "commit"):
                    if not self._write(kind):
                        self._leader = chance.choice(self._group.members)
                else:
                    member = self._leader if chance.random() < 0.4 else chance.choice(self._group.members)
                    self._read(kind, member)
        except Exception as exc:
            self.troubles.append(f"{self.name}: {exc!r}")
        finally:
            for connection in self._connections.values():
                connection.close()

    def _key(self) -> int:
        return int((time.monotonic() - self._began) / KEY_S) + self._chance.randrange(2)

    def _write(self, kind: str) -> bool:
        """Append a message or commit an offset at the supposed leader, or at any; return whether that was done."""
        self._count += 1
        member = self._leader
        if kind == "commit" and self._chance.random() < 0.3:
            member = self._chance.choice(self._group.members)  # which forwards it
        number = self._count * 10 + self._number
        key: Hashable
        operation: Operation
        if kind == "append":
            queue_id = self._chance.randrange(QUEUES)
            command = send_request(TOPIC, Queue("", queue_id), Message(b"%d" % number), f"K{number}", 0)
            key, operation = ("end", queue_id), ("append",)
        else:
            queue_id = self._key()
            ext = {
                "consumerGroup": GROUP,
                "topic": TOPIC,
                "queueId": str(queue_id),
                "commitOffset": str(number),
            }
            command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
            key, operation = ("offset", queue_id), ("write", number)
        call = self._recorder.begin(f"{self.name} at {member.id}", key, operation)
        answer = self._ask(member, command)
        if answer is None:
            return False
        if answer.code == ResponseCode.SUCCESS:
            self._recorder.end(call, int(answer.ext["queueOffset"]) if kind == "append" else None)
            return True
        stored_nothing = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or (
            kind == "append" and answer.code in stored_nothing
        ):
            self._recorder.forget(call)
        return False

    def _read(self, kind: str, member: Member) -> None:
        number = self._chance.randrange(QUEUES) if kind == "end" else self._key()
        ext = {"topic": TOPIC, "queueId": str(number)}
        if kind == "end":
            command, key = Command(RequestCode.GET_MAX_OFFSET, ext), ("end", number)
        else:
            ext |= {"consumerGroup": GROUP, "setZeroIfNotFound": "false"}
            command, key = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext), ("offset", number)
        call = self._recorder.begin(f"{self.name} at {member.id}", key, ("read",))
        answer = self._ask(member, command)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._recorder.end(call, int(answer.ext["offset"]))
        elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            self._recorder.end(call, None)
        else:
            self._recorder.forget(call)

    def _ask(self, member: Member, command: Command) -> Command | None:
        """Return the answer of a member; None if nobody knows what became of the call."""
        try:
            connection = self._connections.get(member.id)
            if connection is None or connection.closed:
                connection = self._connections[member.id] = Connection(member.address, CALL_S)
            return connection.call(command, CALL_S)
        except (RopewalkError, OSError):
            broken = self._connections.pop(member.id, None)
            if broken is not None:
                broken.close()
            time.sleep(0.02)
            return None
