"""Producers' answers that wait for the log: an ordered queue keyed by log offset, and one pump.

The answers of one read are one entry: they wait for the end of the last record among them. So are those of many
clients whose messages were appended at once. When the log has been flushed and replicated through some offset, as far
as either is promised, the pump hands every satisfied entry to its connections' buffers. It never awaits: a producer
that reads slowly delays nobody else's acknowledgement.

An entry whose slaves do not report in time is answered "stored, but a slave was late" (12), one whose flush does not
come "stored, but not flushed" (10). Both mean "unknown" to an audit. What the slaves say goes first, as with RocketMQ.
Official clients take both for sent; where that would be wrong, answers fail with another code: `fail` for all that
wait, `late` for those whose other members are late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.remoting.outbox import Owed, release
from broker.remoting.rpc_times import Kind, RpcTimes
from ropewalk.codes import ResponseCode
from store.log.limits import NO_LIMIT

_SLAVES_LATE: Final = ResponseCode.FLUSH_SLAVE_TIMEOUT, "stored, but the slaves did not have it in time"


@dataclass(slots=True)
class _Entry:
    end: int
    deadline_ms: int
    slaves_deadline_ms: int
    owed: Sequence[Owed]
    """Nothing, once it was answered."""
    count: int
    """How many answers wait."""
    kinds: Sequence[Kind]
    """The request kinds that the acks answer (`rpc_times`); acks of several sessions answer plain sends."""
    read_at: float


class AckQueue:
    """Answers in the order of the offsets they wait for; `end` never falls from one `add` to the next."""

    def __init__(self, times: RpcTimes | None = None) -> None:
        self._times = times or RpcTimes()
        self.late: tuple[int, str] = _SLAVES_LATE
        """Code and remark for an answer that waited too long for other members."""
        self.through = 0
        """Answers that waited for an offset up to this one have left. Never falls."""
        self._entries: deque[_Entry] = deque()
        """By `end`, which never falls; an answered entry stays until those before it are answered too."""
        self.count = 0
        """How many answers wait, the sum of the entries' counts: one read can bring hundreds of requests."""

    def add(
        self,
        owed: Sequence[Owed],
        end: int,
        deadline_ms: int,
        slaves_deadline_ms: int = NO_LIMIT,
        *,
        kinds: Sequence[Kind] = (),
        read_at: float = 0.0,
    ) -> None:
        """Have answers wait for `end`: until `deadline_ms` for the disk, until `slaves_deadline_ms` for slaves.

        `kinds` and `read_at` say what they answer, and when that had been read (`rpc_times`). Kinds are for the answers
        of one session: what several wait for together are plain sends.
        """
        assert not self._entries or self._entries[-1].end <= end
        assert len(owed) == 1 or not kinds
        count = sum([len(answers) for _outbox, answers in owed])
        self._entries.append(_Entry(end, deadline_ms, slaves_deadline_ms, owed, count, kinds, read_at))
        self.count += count

    def __len__(self) -> int:
        return self.count

    def complete(self, through: int) -> None:
        """Release every answer that waited for an offset up to `through`. HOT."""
        if through > self.through:
            self.through = through
        entries, times = self._entries, self._times
        if not entries or entries[0].end > through:
            return
        times.clock_now()
        while entries and entries[0].end <= through:
            entry = entries.popleft()
            self.count -= entry.count
            release(times, entry.owed, entry.kinds, entry.read_at)
        self._check()

    def expire(self, now_ms: int, flushed: int = -1, confirmed: int = NO_LIMIT) -> None:
        """Answer producers that have waited too long; `flushed` and `confirmed` say how far disk and slaves are."""
        for entry in self._entries:
            if min(entry.deadline_ms, entry.slaves_deadline_ms) > now_ms:
                break  # what came later has later deadlines
            if entry.slaves_deadline_ms <= now_ms and entry.end > confirmed:
                self._answer(entry, *self.late)
            elif entry.deadline_ms <= now_ms and entry.end > flushed:
                self._answer(
                    entry, ResponseCode.FLUSH_DISK_TIMEOUT, "stored, but the flush did not finish in time"
                )
        while self._entries and not self._entries[0].count:
            self._entries.popleft()
        self._check()

    def abandon(self, confirmed: int, code: int, remark: str) -> None:
        """Answer at once, with another code, producers that wait for slaves behind `confirmed`."""
        for entry in self._entries:
            if entry.end > confirmed and entry.slaves_deadline_ms < NO_LIMIT:
                self._answer(entry, code, remark)
        while self._entries and not self._entries[0].count:
            self._entries.popleft()
        self._check()

    def fail(self, code: int, remark: str) -> None:
        """Answer everything that waits at once with `code`: nobody will ever say that it is stored."""
        entries, self._entries = self._entries, deque()
        for entry in entries:
            if entry.count:
                self._answer(entry, code, remark)
        self._check()

    def _check(self) -> None:
        assert self.count >= 0 and (self._entries or not self.count), (self.count, len(self._entries))

    def _answer(self, entry: _Entry, code: int, remark: str) -> None:
        owed, entry.owed = entry.owed, ()
        self.count -= entry.count
        entry.count = 0
        self._times.clock_now()
        release(self._times, owed, entry.kinds, entry.read_at, code, remark)
