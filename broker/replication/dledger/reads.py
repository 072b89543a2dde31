"""`GroupReads`: reads of a group's newest state at any of its members, and offsets that are committed at any of them.

    leader      reads look once its core knows that it leads still, and are answered when what they saw is on a quorum
    follower    reads look when it shows all that was committed when they came; writes are forwarded to the leader, and
                offsets that pulls commit here as well, many at once

A leader's tables are ahead of the log (an offset is in memory before its record is written), so an answer that tells
of them waits until their records are shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from broker.context import BrokerContext
from broker.replication.dledger.pull_commits import KEEP_MS, PullCommits, batch_untrusted
from broker.replication.dledger.state import LedgerState
from broker.state.shares import Stranger
from ha.dledger.ledger import LedgerShell
from ha.raft.types import MemberId, Point
from ropewalk.codes import ResponseCode
from ropewalk.format.remoting import Command, decode_frame, encode_frame

__all__ = ["GroupReads", "HandleForwarded"]

_FRAME_SIZE: Final = 4
"""Bytes in front of a frame that tell its size."""
_COMMIT_BATCH: Final = -1
"""The code of a request from a follower itself, which no client can send: offsets that pulls have committed there."""
_NO_LEADER: Final = "no leader of the group has answered for two seconds: ask again"

HandleForwarded = Callable[[Command, Callable[[Command], None]], Command | None]


class GroupReads:
    """The `NewestReads` of a broker that is a member of a group."""

    def __init__(
        self, me: MemberId, context: BrokerContext, state: LedgerState, place: Callable[[], str]
    ) -> None:
        """Begin as a follower. `place` returns in words why this member is not the one to ask."""
        self.ledger: LedgerShell
        self.leads = False
        """Whether this member is the leader to clients; its owner keeps it."""
        self.handle_forwarded: HandleForwarded = lambda request, send: request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"no request of code {request.code} is forwarded"
        )
        """Handle a follower's request as the leader; returns the answer, or sends it later."""
        self._me = me
        self._context = context
        self._state = state
        self._place = place
        self._pull_commits = PullCommits()
        self._unlogged: deque[tuple[int, Callable[[str], Command], Command, Callable[[Command], None]]] = (
            deque()
        )
        """Answers that wait until records of offsets are shown: the log offset behind them first."""

    def open(self, ledger: LedgerShell) -> None:
        """Begin with the opened log of the group."""
        self.ledger = ledger
        ledger.on_shown = self._shown
        ledger.forwards.on_request = self._forwarded

    # -- roles ---------------------------------------------------------------------------------------

    def log_kept(self) -> None:
        """Store the offsets that pulls have committed here before this member led."""
        self._state.commit_batch(self._pull_commits.take_all())

    def keep_unlogged(self) -> None:
        """Keep the offsets that no quorum has yet; the next leader gets them. Call it before the state follows."""
        context = self._context
        self._pull_commits.keep(
            self._state.unlogged_commits(context.now_ms() - KEEP_MS), context.monotonic_ms()
        )

    def refuse_unlogged(self) -> None:
        """Refuse the answers that wait for records of offsets, which this member writes no more."""
        for _end, refuse, _answer, send in self._unlogged:
            send(refuse(f"{self._me} does not lead any more; it is unknown whether the offset is kept"))
        self._unlogged.clear()

    # -- turns ---------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Log the changes of the tables, as the leader, or forward the offsets that are due."""
        self.log_changes()
        if not self.leads:
            self._forward_commits()

    def log_changes(self, *, offsets: bool = False) -> None:
        """Log the changes of the tables; not while a member that is to lead waits for the end of this log."""
        if self.leads and self.ledger.standing.may_append:
            self._state.log_changes(offsets=offsets)

    def _shown(self, point: Point) -> None:
        self._state.catch_up()
        while self._unlogged and self._unlogged[0][0] <= point.pos:
            _end, _refuse, answer, send = self._unlogged.popleft()
            send(answer)

    # -- offsets that pulls commit -------------------------------------------------------------------

    def commit_of_pull(
        self, group: str, topic: str, queue_id: int, offset: int, by: Stranger | None = None
    ) -> None:
        """Take the offset that a pull commits here. Raises ValueError as `OffsetTable.commit` does."""
        context = self._context
        if self.leads:
            context.offsets.commit(group, topic, queue_id, offset, by)
        else:
            self._pull_commits.note(group, topic, queue_id, offset, context.monotonic_ms())

    def _forward_commits(self) -> None:
        """Forward the offsets that pulls have committed here, when they are due."""
        batch = None
        if self.ledger.standing.leader is not None:
            batch = self._pull_commits.next_batch(self._context.monotonic_ms())
        if batch is not None:
            request = Command(_COMMIT_BATCH, body=msgspec.json.encode(batch))

            def done(answer: bytes | None) -> None:
                is_done = answer is not None and decode_frame(answer[_FRAME_SIZE:]).code == 0
                self._pull_commits.answered(is_done)

            if not self.ledger.forward(encode_frame(request), done):
                self._pull_commits.answered(False)

    def _commit_batch(self, request: Command, send: Callable[[bytes], None]) -> None:
        """Store what pulls have committed at a follower, and answer when a quorum has it."""
        self._state.commit_batch(batch_untrusted(request.body))
        self.logged(
            lambda why: request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, why),
            request.reply(ResponseCode.SUCCESS),
            lambda answer: send(encode_frame(answer)),
        )

    # -- requests of clients (`NewestReads`) ---------------------------------------------------------

    @property
    def takes_offsets(self) -> bool:
        return self.leads

    def forward(
        self, request: Command, refuse: Callable[[int, str], Command], send: Callable[[Command], None]
    ) -> None:
        def done(answer: bytes | None) -> None:
            if answer is None:
                send(
                    refuse(
                        ResponseCode.SYSTEM_ERROR, "the leader did not answer: it is unknown what it has done"
                    )
                )
                return
            found = decode_frame(answer[_FRAME_SIZE:])
            send(request.reply(found.code, found.remark, ext=found.ext, body=found.body))

        if not self.ledger.forward(encode_frame(request), done):
            send(
                refuse(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"{self._place()}, and it reaches no leader: nothing was done",
                )
            )

    def _forwarded(self, data: bytes, send: Callable[[bytes], None]) -> None:
        """Handle a request that a follower was asked."""
        request = decode_frame(data[_FRAME_SIZE:])
        if self.leads and request.code == _COMMIT_BATCH:
            self._commit_batch(request, send)
            return
        if self.leads:
            answer = self.handle_forwarded(request, lambda later: send(encode_frame(later)))
        else:
            answer = request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, f"{self._place()}: nothing was done")
        if answer is not None:
            send(encode_frame(answer))

    def read(
        self, look: Callable[[], Command], refuse: Callable[[str], Command], send: Callable[[Command], None]
    ) -> None:
        """Send the answer of `look` when this member's tables are those of the group.

        Every member looks when it shows all that was committed: also a leader, whose followers may show more while its
        disk is slow. A leader's tables are ahead of the log, so its answer waits until what it saw is on a quorum.
        """

        def done(ok: bool) -> None:
            if not ok:
                send(refuse(_NO_LEADER))
            elif self.leads:
                self.logged(refuse, look(), send)
            elif self._state.is_ahead:
                self.ledger.read(done)
            else:
                send(look())

        self.log_changes(offsets=True)
        self.ledger.read(done)

    def logged(
        self, refuse: Callable[[str], Command], answer: Command, send: Callable[[Command], None]
    ) -> None:
        """Send `answer` when all offsets that are committed here are on a quorum."""
        self.log_changes(offsets=True)
        if not self.leads or not self.ledger.standing.may_append or not self._state.is_logged:
            send(refuse(f"{self._place()}; it takes no offsets at the moment"))
        elif self.ledger.shown.end.pos >= self._state.logged_end:
            send(answer)
        else:
            self._unlogged.append((self._state.logged_end, refuse, answer, send))
