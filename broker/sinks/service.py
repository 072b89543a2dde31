"""`SinkService`: the requests of sinks that write exactly once, and the records that make their states last.

    init, commit   decided by `SinkTable`, and answered when the record of the new state is as safe as a message is
    append         the rows that the window lacks become one batch, side by side in the log, or none does. Rows that
                   an earlier attempt stored are claimed, by a record in front of the batch

An answer to an append waits for all that is in the log, also where nothing was appended: the rows that were known may
have come a moment ago, and a sink counts on them. Until the log has been read, after a start or a promotion, sinks are
told to come back. A slave serves none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from broker.context import BrokerContext
from broker.produce.send import SendProcessor
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Request, Session
from broker.sinks.loading import STATE_QUEUE, SinkLoader
from broker.sinks.records import (
    CHANGE,
    CLAIMS,
    TABLE,
    encode_claims,
    encode_states,
    properties_of,
    tag_code_of,
)
from broker.sinks.windows import (
    Busy,
    Fenced,
    Sink,
    SinkTable,
    Task,
    TooManyRows,
    WrongBatch,
    WrongCount,
    WrongOwner,
)
from ropewalk.client.core.produce.row_identity import KEY_VERSION, check_sink_id, key_of, row_prefix
from ropewalk.codes import ResponseCode
from ropewalk.format import names
from ropewalk.format.headers import (
    SinkAppendedHeader,
    SinkAppendHeader,
    SinkCommitHeader,
    SinkInitHeader,
    SinkStateHeader,
    encode_header,
    json_decoder,
)
from store.append import Message
from store.io.disk import DiskFull
from store.retention.rules import HOUR_MS

__all__ = ["SinkService"]

log = structlog.get_logger("broker.sinks")

_EARLIER_WRITER: Final = (
    "this writer is of version 0.1 of Ropewalk, which knows rows by their task: give Spark's driver and workers the "
    "version of the brokers. Let the query end its batch with version 0.1 of both first"
)
TABLE_EVERY: Final = 1000
"""Records of single states behind a table, before it is written again."""
TABLE_AGE_PART: Final = 8
"""The table is written again when this part of the time that messages are kept has passed."""

_decode_init = json_decoder(SinkInitHeader).decode
_decode_append = json_decoder(SinkAppendHeader).decode
_decode_commit = json_decoder(SinkCommitHeader).decode


class SinkService:
    """The sinks of one broker. The loop owns it."""

    def __init__(
        self,
        context: BrokerContext,
        sends: SendProcessor,
        *,
        is_slave: Callable[[], bool],
        refusal: Callable[[], tuple[int, str] | None],
        wake: Callable[[], None],
    ) -> None:
        """`refusal()` says why nothing may be appended at the moment; `wake` has the loop call `wakened` soon."""
        self._context = context
        self.table = self._new_table()
        self.appended = self.known = self.fenced = 0
        """Rows, and requests that were fenced, since the start."""
        self._sends = sends
        self._is_slave = is_slave
        self._refusal = refusal
        self._wake = wake
        self._loader: SinkLoader | None = None
        self.is_loaded = False
        """Whether the sinks and the rows of their open batches are known."""
        self._records = 0
        self._table_ms = 0
        self._deleted_topics: list[str] = []
        """Topics that were deleted while the sinks were being read."""
        self._unsaved: set[str] = set()
        """Sinks whose newest state found no room on the disk; it is written with the next request."""

    # -- life ----------------------------------------------------------------------------------------

    def role_changed(self) -> None:
        """Read the sinks after a promotion, and forget them as a slave."""
        if self._is_slave():
            self.table, self._loader, self.is_loaded = self._new_table(), None, False
        elif self._loader is None and not self.is_loaded:
            context = self._context
            self.table = self._new_table()
            self._loader = SinkLoader(context.store, context.reader, self.table, self._wake)
            self._load()

    def _new_table(self) -> SinkTable:
        return SinkTable(self._context.config.sink_window_rows_max)

    def _load(self) -> None:
        loader = self._loader
        assert loader is not None
        loader.step()
        if not loader.done:
            return
        self._loader, self.is_loaded = None, True
        self._records, self._table_ms = 0, 0
        deleted, self._deleted_topics = self._deleted_topics, []
        for topic in deleted:
            self.topic_deleted(topic)
        for sink in self.table.sinks.values():
            log.info("a sink is known", sink=sink.sink_id, epoch=sink.epoch, rows_of_open_batch=sink.rows)

    def wakened(self) -> None:
        """Carry on with the work that waited for the disk."""
        if self._loader is not None:
            self._load()

    def tick(self) -> None:
        """Load, expire sinks, and write the table again before it is too old."""
        if self._loader is not None:
            self._load()
            return
        if not self.table.sinks or not self.is_loaded or self._is_slave() or self._refusal() is not None:
            return
        now, config = self._context.now_ms(), self._context.config
        log_start = self._context.store.log.min_offset
        gone = self.table.expire(now - config.sink_expiry_hours * HOUR_MS, log_start)
        if gone:
            log.info("sinks that were idle for long are forgotten", sinks=gone)
        age_max = max(config.file_reserved_time, 1) * HOUR_MS // TABLE_AGE_PART
        if gone or self._records >= TABLE_EVERY or now - self._table_ms > age_max:
            with contextlib.suppress(RequestRefused):  # the table is written when there is room again
                self._append_record(TABLE, encode_states(self.table.sinks.values()), "table")
            self._records, self._table_ms = 0, now

    # -- requests ------------------------------------------------------------------------------------

    def init(self, session: Session, request: Request) -> None:
        """Handle code 30030."""
        header = request.header(SinkInitHeader, _decode_init)
        try:
            self._check(header.sink_id)
            if (reason := names.check_topic(header.topic)) is not None:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
            if header.key_version != KEY_VERSION:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, _EARLIER_WRITER)
            store = self._context.store
            now = self._context.now_ms()
            sink = self.table.init(header.sink_id, header.topic, header.brokers, store.log.end_offset, now)
            self._append_change(sink)
        except WrongOwner as exc:
            self._refuse_owner(session, request, str(exc))
            return
        except WrongBatch as exc:
            session.answer(request, ResponseCode.ILLEGAL_OPERATION, str(exc))
            return
        except RequestRefused as exc:
            session.answer(request, exc.code, exc.remark)
            return
        state = SinkStateHeader(
            sink.announced, sink.query, sink.batch, sink.digest, sink.brokers, sink.owner, KEY_VERSION
        )
        self._owe(session, request, encode_header(state))

    def append(self, session: Session, request: Request) -> None:
        """Handle code 30031."""
        header = request.header(SinkAppendHeader, _decode_append)
        task = Task(
            header.sink_id,
            header.epoch,
            header.attempt,
            header.query,
            header.batch,
            header.partition,
            header.topic,
        )
        try:
            answer = self._append_rows(session, request.body, header, task)
        except Fenced as exc:
            self._fence(session, request, str(exc))
        except WrongOwner as exc:
            self._refuse_owner(session, request, str(exc))
        except Busy as exc:
            session.answer(request, ResponseCode.SYSTEM_BUSY, str(exc))
        except TooManyRows as exc:
            session.answer(request, ResponseCode.MESSAGE_ILLEGAL, str(exc))
        except RequestRefused as exc:
            session.answer(request, exc.code, exc.remark)
        except DiskFull as exc:
            session.answer(
                request,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the disk is full, nothing was stored: {exc}",
            )
        else:
            self._owe(session, request, encode_header(answer), waits=header.wait)

    def commit(self, session: Session, request: Request) -> None:
        """Handle code 30032."""
        header = request.header(SinkCommitHeader, _decode_commit)
        try:
            self._check(header.sink_id)
            changed = self.table.commit(
                header.sink_id,
                header.epoch,
                header.query,
                header.batch,
                header.rows,
                header.topic,
                header.digest,
                header.brokers,
                self._context.now_ms(),
            )
            if changed is not None or header.sink_id in self._unsaved:
                self._append_change(self.table.sinks[header.sink_id])
        except Fenced as exc:
            self._fence(session, request, str(exc))
        except WrongOwner as exc:
            self._refuse_owner(session, request, str(exc))
        except WrongCount as exc:
            session.answer(request, ResponseCode.ILLEGAL_OPERATION, str(exc))
        except RequestRefused as exc:
            session.answer(request, exc.code, exc.remark)
        else:
            self._owe(session, request, {})

    def forget(self, sink_id: str) -> bool:
        """Forget a sink for an administrator, and return whether there was one. Raises `RequestRefused`."""
        self._check(sink_id)
        sink = self.table.forget(sink_id, self._context.now_ms())
        if sink is None:
            return False
        self._append_change(sink)
        return True

    def topic_deleted(self, topic: str) -> None:
        """Note that a topic was deleted: one of its name that is made later is another one."""
        if self._loader is not None:
            self._deleted_topics.append(topic)
            return
        for sink in self.table.topic_deleted(topic):
            try:
                self._append_change(sink)
            except RequestRefused as exc:  # stored with the sink's next request
                log.warning("a sink's state was not stored", sink=sink.sink_id, reason=exc.remark)

    def check_serving(self) -> None:
        """Raise `RequestRefused` where the sinks are not known at the moment."""
        if self._is_slave():
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "sinks are served by the master")
        if not self.is_loaded:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, "the rows of open batches are being read from the log"
            )

    # -- the parts of requests -------------------------------------------------------------------------

    def _check(self, sink_id: str) -> None:
        """Raise `RequestRefused` where no request of this sink is served now."""
        if (refused := self._refusal()) is not None:
            raise RequestRefused(*refused)
        self.check_serving()
        if (reason := check_sink_id(sink_id)) is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"sink id {sink_id!r}: {reason}")

    def _append_rows(
        self, session: Session, body: bytes, header: SinkAppendHeader, task: Task
    ) -> SinkAppendedHeader:
        self._check(header.sink_id)
        rows = self._sends.batches.admit_rows(session, header, body)
        prefix = row_prefix(task.sink_id, task.query, task.batch, task.writer)
        keys: list[bytes] = []
        for properties in rows.properties:
            key = key_of(properties, prefix)
            if key is None:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"row {len(keys)} does not end in the property RW_SINK of its attempt",
                )
            keys.append(key)
        if len(set(keys)) != len(keys):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "two rows of the request have the same key")
        log_end, now = self._context.store.log.end_offset, self._context.now_ms()
        if self.table.admit(task, log_end, now) or task.sink_id in self._unsaved:
            self._append_change(self.table.sinks[task.sink_id])
        matched = self.table.match(task, keys)
        if matched.claimed:
            claimed = [keys[index] for index in matched.claimed]
            self._append_record(CLAIMS, encode_claims(task, claimed), "claims")
            self.table.claim(task, claimed)
        new = keys if matched.new is None else [keys[index] for index in matched.new]
        queue_offset = -1
        if new:
            queue_offset = self._sends.batches.put_rows(session, rows, matched.new)
            self.table.stored(task, new)
        self.appended += len(new)
        self.known += len(keys) - len(new)
        return SinkAppendedHeader(rows.queue.queue_id, queue_offset, len(new), len(keys) - len(new))

    def _fence(self, session: Session, request: Request, reason: str) -> None:
        self.fenced += 1
        log.warning("a request of a sink is fenced", reason=reason, peer="{}:{}".format(*session.link.peer))
        session.answer(request, ResponseCode.ILLEGAL_OPERATION, reason)

    def _refuse_owner(self, session: Session, request: Request, reason: str) -> None:
        log.warning("a write is refused by a sink", reason=reason, peer="{}:{}".format(*session.link.peer))
        session.answer(request, ResponseCode.ILLEGAL_OPERATION, reason)

    def _owe(self, session: Session, request: Request, ext: dict[str, str], *, waits: bool = True) -> None:
        owe = session.outbox.after if waits and self._sends.waits else session.outbox.now
        owe(request, ResponseCode.SUCCESS, request.reply(ResponseCode.SUCCESS, None, ext))

    # -- states --------------------------------------------------------------------------------------

    def _append_change(self, sink: Sink) -> None:
        self._unsaved.add(sink.sink_id)
        self._append_record(CHANGE, encode_states((sink,)), "state")
        self._records += 1
        self._unsaved.discard(sink.sink_id)

    def _append_record(self, tag: str, body: bytes, what: str) -> None:
        """Append a record to the hidden topic. Raises `RequestRefused` where the disk is full."""
        context = self._context
        store = context.store
        queue = store.queue(names.SINK_TOPIC, STATE_QUEUE)
        message: Message = (
            queue, body, properties_of(tag), 0, 0, context.now_ms(), 0, 0, tag_code_of(tag)
        )  # fmt: skip
        if not store.put([message], store.config.store_host):
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the disk is full, the sink's {what} was not stored"
            )
        context.statistics.put(queue.topic, store.now, 1, store.sizes[0], sizes=store.sizes)
