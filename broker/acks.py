"""Producers' answers that wait for the log: an ordered queue keyed by log offset, and one pump.

The answers of one read are one entry: they wait for the end of the last record among them. When the log has been
flushed (later: replicated, committed) through some offset, the pump hands every satisfied entry to its connection's
buffer. It never awaits: a producer that reads slowly delays nobody else's acknowledgement.

An entry whose flush does not come within the time the broker promises is answered "stored, but not flushed in time"
(10), which an audit counts as unknown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from broker.session import Session
from ropewalk.codes import ResponseCode
from ropewalk.format.remoting import decode_frame, encode_frame


@dataclass(slots=True)
class _Entry:
    end: int
    deadline_ms: int
    session: Session
    answers: list[bytes]


class AckQueue:
    """Answers in the order of the offsets they wait for; `end` never falls from one `add` to the next."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self.bytes_waiting = 0

    def add(self, session: Session, answers: list[bytes], end: int, deadline_ms: int) -> None:
        assert not self._entries or self._entries[-1].end <= end
        self._entries.append(_Entry(end, deadline_ms, session, answers))

    def __len__(self) -> int:
        return len(self._entries)

    def complete(self, through: int) -> None:
        """Release every answer that waited for an offset up to `through`."""
        entries = self._entries
        while entries and entries[0].end <= through:
            entry = entries.popleft()
            if entry.session.is_open:
                entry.session.link.send(b"".join(entry.answers))

    def expire(self, now_ms: int) -> None:
        """Answer FLUSH_DISK_TIMEOUT for what has waited too long."""
        entries = self._entries
        while entries and entries[0].deadline_ms <= now_ms:
            entry = entries.popleft()
            if entry.session.is_open:
                entry.session.link.send(b"".join(_late(answer) for answer in entry.answers))


def _late(answer: bytes) -> bytes:
    command = decode_frame(answer[4:])
    command.code = ResponseCode.FLUSH_DISK_TIMEOUT
    command.remark = "stored, but the flush did not finish in time"
    return encode_frame(command)
