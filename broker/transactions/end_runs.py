"""Runs of code 37: decisions of transactions that are open here and plain, stored and answered together.

The fast way in front of `EndTransaction.end`. It takes what that would carry out at once: the half is open under the
record that the producer names, its record is in memory, and its message asks for neither delay nor time. All messages
that one read commits are appended at once. Whatever else there may be to say about a decision ends the run, and is
left to `end`; the tests send the same decisions by both ways. Deleting this file costs only speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from broker.context import BrokerContext
from broker.remoting.session import Session
from broker.transactions.records import HALF_QUEUE, Half
from broker.transactions.service import TransactionService
from ropewalk.codes import FrameFlag, MessageSysFlag, RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format import names
from ropewalk.format.headers import EndTransactionHeader
from ropewalk.format.record import cut_message
from ropewalk.format.remoting import I32, Command, encode_frame
from store.append import Message

__all__ = ["END_OPENING", "EndRuns"]

END_OPENING: Final = b'{"code":37,'
"""How every known client's JSON encoder begins the header of a 37."""
_CODE: Final = int(RequestCode.END_TRANSACTION)
_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_NO_TRANSACTION: Final = ~int(MessageSysFlag.TRANSACTION_MASK)
_OPAQUE: Final = 1_234_567_890
_SUCCESS: Final = encode_frame(Command(ResponseCode.SUCCESS, opaque=_OPAQUE, flag=FrameFlag.RESPONSE))[8:]
_ANSWER: Final = _SUCCESS.replace(b"%d" % _OPAQUE, b"%d")


class _End(msgspec.Struct, gc=False):
    """The whole JSON header of a 37, read in one pass."""

    extFields: EndTransactionHeader
    code: I32 = 0
    opaque: I32 = 0
    flag: I32 = 0
    # Unused, and judged all the same, as the readable way does.
    language: str | int | None = None
    remark: str | None = None
    version: I32 = 0


_decode = msgspec.json.Decoder(_End, strict=False).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class EndRuns:
    """The fast way to decide transactions, in front of one `EndTransaction`."""

    def __init__(
        self,
        context: BrokerContext,
        transactions: TransactionService,
        *,
        is_slave: Callable[[], bool],
        refusal: Callable[[], tuple[int, str] | None],
        waits: Callable[[], bool],
    ) -> None:
        """The parameters are those of `EndTransaction`."""
        self._context = context
        self._transactions = transactions
        self._is_slave = is_slave
        self._refusal = refusal
        self._waits = waits

    def end_run(self, session: Session, payloads: Sequence[bytes], start: int, end: int) -> int:
        """Carry out the decisions that begin at `payloads[start]`; return the index behind them. HOT."""
        context, transactions = self._context, self._transactions
        queue = context.store.find_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE)
        if queue is None or not transactions.is_loaded or self._is_slave() or self._refusal() is not None:
            return start
        by_offset, readable, now = transactions.halves.by_offset, queue.readable, context.now_ms()
        is_late = transactions.rules.is_late
        ends: list[tuple[_End, Half]] = []
        named: set[int] = set()
        batch: list[Message] = []
        born_at = b""
        for index in range(start, end):
            request = _request_of(payloads[index])
            if request is None:
                break
            header = request.extFields
            offset, decision = header.tran_state_table_offset, header.commit_or_rollback
            half = by_offset.get(offset)
            if (
                half is None
                or half.tag_code is None
                or half.log_offset != header.commit_log_offset
                or half.group != header.producer_group
                or offset >= readable
                or offset in named
                or header.from_transaction_check
                or is_late(half, now)
            ):
                break
            if decision == _COMMIT:
                cut = self._read(half)
                if cut is None:
                    break
                body, properties, flag, sys_flag, born_ms, born_host, times = cut
                if born_host != born_at and batch:
                    break
                born_at = born_host
                to = context.store.queue(half.topic, context.topics.read_queue(half.topic, half.queue_id))
                sys_flag = sys_flag & _NO_TRANSACTION | _COMMIT
                batch.append(
                    (to, body, properties, flag, sys_flag, born_ms, times, half.log_offset, half.tag_code)
                )
            elif decision != _ROLLBACK:
                break
            named.add(offset)
            ends.append((request, half))
        stored = self._append(batch, born_at)
        return start + self._decide(session, ends, stored, now)

    def _read(self, half: Half) -> tuple[bytes, bytes, int, int, int, bytes, int] | None:
        """Return what a copy of the half record's message carries; None if the record is not in memory. HOT."""
        store = self._context.store
        log, offset = store.log, half.log_offset
        segment = log.find(offset)
        if segment is None or offset < max(log.end_offset - store.config.warm_window, log.trusted_offset):
            return None
        position = offset - segment.base_offset
        size = int.from_bytes(segment.map[position : position + 4], "big")
        return cut_message(segment.map[position : position + size])

    def _append(self, batch: list[Message], born_host: bytes) -> int:
        """Append the messages of committed halves, and count them; return how many there was room for."""
        if not batch:
            return 0
        store, statistics = self._context.store, self._context.statistics
        stored, sizes = len(store.put(batch, born_host)), store.sizes
        by_topic: dict[str, list[int]] = {}
        for message, size in zip(batch, sizes, strict=False):
            by_topic.setdefault(message[0].topic, []).append(size)
        for topic, found in by_topic.items():
            statistics.put(topic, store.now, len(found), sum(found), sizes=found)
        return stored

    def _decide(self, session: Session, ends: list[tuple[_End, Half]], stored: int, now: int) -> int:
        """Close the halves whose messages are stored, and owe the answers; return how many are decided. HOT."""
        transactions, counts = self._transactions, self._transactions.counts
        owe = session.outbox.after if self._waits() else session.outbox.now
        for number, (request, half) in enumerate(ends):
            if request.extFields.commit_or_rollback == _COMMIT:
                if not stored:
                    return number  # the disk is full, and this one is told so on its own way
                stored -= 1
                counts.finished(half.topic, max(now - half.since_ms, 0) / 1000)
            else:
                counts.rolled_back[half.topic] += 1
            transactions.close(half)
            text = _ANSWER % request.opaque
            size = len(text)
            owe(request, ResponseCode.SUCCESS, (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + text)
        return len(ends)


def _request_of(payload: bytes) -> _End | None:
    """Return a 37 in JSON; None for another request, and for one that has to be read in another way."""
    header_end = 4 + int.from_bytes(payload[:4], "big")
    if not payload.startswith(END_OPENING, 4) or header_end > len(payload):
        return None
    try:
        request = _decode(raw := payload[4:header_end])
        raw.isascii() or raw.decode()  # what is skipped unread has to be text too
    except (*_UNREADABLE, RemoteProtocolError):
        return None
    return request if request.code == _CODE and not request.flag & FrameFlag.RESPONSE else None
