"""Producers that send to a DLedger group in order, and what a member shows of it afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, command_of, pull_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.headers import GetMaxOffsetHeader, OffsetResponseHeader, decode_header
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from tests.crash.ledger_group import LedgerGroup, Member

TOPIC = "T"


class Sender:
    """A producer of one queue, which sends in order, a message again until it is acknowledged."""

    def __init__(self, group: LedgerGroup, padding: bytes = b"", queue_id: int = 0) -> None:
        self.group = group
        self.queue_id = queue_id
        self.acknowledged: list[bytes] = []
        self._padding = padding
        self._number = 0
        self._next()

    def send(self, member: Member, until: float) -> None:
        """Send message after message to a member until the time is over."""
        self.send_while(member, lambda: time.monotonic() < until)

    def send_while(self, member: Member, condition: Callable[[], bool]) -> None:
        """Send message after message to a member while the condition holds."""
        while condition():
            try:
                with Connection(member.address, 3.0) as connection:
                    while condition() and self.send_one(connection):
                        pass
            except (RopewalkError, OSError):
                pass
            time.sleep(0.02)

    def send_to_leader_while(
        self, condition: Callable[[], bool], among: Sequence[Member] | None = None
    ) -> None:
        """Send message after message to whichever of these members leads, while the condition holds."""
        while condition():
            leader, until = self.group.leader(among), time.monotonic() + 1.0
            self.send_while(leader, lambda until=until: time.monotonic() < until and condition())  # type: ignore[misc]

    def send_one(self, connection: Connection) -> bool:
        """Send the next message once; return whether it is acknowledged."""
        answer = connection.call(self._command, 3.0)
        if answer.code == ResponseCode.SUCCESS:
            self.acknowledged.append(self._body)
            self._number += 1
            self._next()
        return bool(answer.code == ResponseCode.SUCCESS)

    def _next(self) -> None:
        self._body = b"%08d" % self._number + self._padding
        self._command: Command = send_request(
            TOPIC, Queue("", self.queue_id), Message(self._body), f"K{self._number}", 0
        )


class SteadySender(Sender):
    """A producer that goes on sending in a thread of its own, to the member that takes its messages."""

    PAUSE_S = 0.01

    def __init__(self, group: LedgerGroup, queue_id: int) -> None:
        super().__init__(group, queue_id=queue_id)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadySender:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        at = 0
        while not self._ends.is_set():
            member = self.group.members[at % len(self.group.members)]
            at += 1
            try:
                with Connection(member.address, 1.0) as connection:
                    while not self._ends.is_set() and self.send_one(connection):
                        self._ends.wait(self.PAUSE_S)
            except (RopewalkError, OSError):
                pass
            self._ends.wait(self.PAUSE_S)


def read(member: Member, queue_id: int = 0) -> list[bytes]:
    """Return the bodies of all messages of a queue, in order, as a consumer of this member gets them."""
    found: list[bytes] = []
    with Connection(member.address, 30.0) as connection:
        answer = connection.call(command_of(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(TOPIC, queue_id)))
        end = decode_header(OffsetResponseHeader, answer.ext).offset
        while len(found) < end:
            answer = connection.call(pull_request(TOPIC, Queue("", queue_id), len(found), 32, "*", 0))
            assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark, len(found), end)
            found += [record.body for record in decode_records(answer.body)]
    return found
