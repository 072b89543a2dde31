"""Damaged bytes of a DLedger member's log, from the other members and for them, over the links of the group.

A member gives what is good by its own checksums. Of bytes that nobody has summed yet it gives what it knows to be
committed, which is the same on every member: the entries' own CRCs say whether it is whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
import trio

from broker.replication.block_repair import Fetch
from ha.dledger.links.blocks import Answer, Refusal
from ha.dledger.links.peers import Peers
from ha.group.block_repair import RepairRefused, Span
from ha.raft.types import Link, MemberId
from ropewalk.format.sidecar import BLOCK_SIZE, Sidecar
from store.integrity.block_repair import Damaged, NotVouched, vouched
from store.io.workers import Worker
from store.log.commitlog import CommitLog
from store.log.segment import Segment

__all__ = ["BlockGiver", "LedgerBlocks", "NoGoodCopy"]

log = structlog.get_logger("broker.block_repair")


class NoGoodCopy(RepairRefused):
    """A member's copy is no better, and will not be."""


class BlockGiver:
    """Answers questions of other members for bytes of this one's log."""

    def __init__(
        self,
        log_of: CommitLog,
        sidecar_of: Callable[[Segment], Sidecar | None],
        report: Callable[[Damaged], None],
        final: Callable[[], tuple[int, int]],
        worker: Worker,
    ) -> None:
        """`final` tells the log offsets through which the log is on disk, and known to be committed."""
        self._log = log_of
        self._sidecar_of = sidecar_of
        self._report = report
        self._final = final
        self._worker = worker

    def give(self, span: Span, answer: Callable[[Answer], None]) -> None:
        """Have a helper thread read the bytes; `answer` is told them, or why there are none."""
        segment = self._log.find(span.start)
        flushed, committed = self._final()
        limit = committed if span.wanted is None else flushed
        if segment is None or span.end > segment.end_offset or span.end - span.start > BLOCK_SIZE:
            answer(Refusal(f"this log has no block from {span.start} to {span.end}"))
        elif span.end > limit:
            answer(Refusal(f"this log is known to be good through {limit} so far"))
        else:
            segment.pins += 1

            def done(found: Answer) -> None:
                segment.pins -= 1
                if isinstance(found, bytes):
                    log.info("bytes for a damaged copy", offset=span.start, size=len(found))
                answer(found)

            self._worker.submit(partial(self._read, segment, self._sidecar_of(segment), span), done)

    def _read(self, segment: Segment, sidecar: Sidecar | None, span: Span) -> Answer:
        start, stop = span.start - segment.base_offset, span.end - segment.base_offset
        try:
            if span.wanted is None and (sidecar is None or stop > sidecar.covered):
                return segment.file.read_at(start, stop - start)
            return vouched(segment, sidecar, start, stop, span.wanted, self._report)
        except (NotVouched, OSError) as exc:
            return Refusal(str(exc), is_final=True)


class LedgerBlocks:
    """The other members of a DLedger group, asked on the links that are up."""

    def __init__(self, peers: Peers, leader: Callable[[], MemberId | None]) -> None:
        self._peers = peers
        self._leader = leader

    def members(self, place: Damaged) -> tuple[MemberId, ...]:
        """Return the members with a link, the leader first."""
        linked = [peer for peer in self._peers.members if self._peers.link(peer, Link.CONTROL) is not None]
        return tuple(sorted(linked, key=lambda peer: (peer != self._leader(), peer)))

    @asynccontextmanager
    async def asking(self, member: MemberId) -> AsyncIterator[Fetch]:
        """Ask a member for as long as its link is up."""

        async def fetch(span: Span) -> bytes:
            link = self._peers.link(member, Link.CONTROL)
            if link is None:
                raise RepairRefused(f"no link to {member}")
            answered = trio.Event()
            answers: list[Answer] = []

            def done(answer: Answer) -> None:
                answers.append(answer)
                answered.set()

            self._peers.blocks.ask(link, span, self._peers.now(), done)
            link.push()
            await answered.wait()
            if isinstance(answer := answers[0], Refusal):
                raise (NoGoodCopy if answer.is_final else RepairRefused)(answer.text)
            return answer

        yield fetch
