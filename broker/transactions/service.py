"""`TransactionService`: half messages come in, are checked until somebody decides, and are given up.

Only a master runs it. A slave's log brings half and operation records by themselves, and its consumer offsets follow
its master's; when it is promoted it reads what is open (`loading`) and checks it from then on.

    opened, close                  from `produce.send` and from `end`, as requests come
    end_turn                       operation records of this turn's decisions, before any answer of the turn leaves
    tick                           check rounds, and progress as consumer offsets

A check round looks at all open halves every `transactionCheckInterval`, a few at a time. A half that is due is appended
once more with a raised count and then asked about, so that counts survive whatever happens to this process. It counts
only where a producer was there to be asked. Progress is published when the log through it is flushed: no copy of a half
that a power cut takes away was left behind by it.

Nothing runs while nothing is open: each part of a tick begins with a look at an empty container.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from broker.context import BrokerContext
from broker.remoting.session import Session
from broker.state.json_text import TextSlices
from broker.state.topics import TopicConfig
from broker.transactions.counts import TransactionCounts
from broker.transactions.loading import Loader
from broker.transactions.open_halves import CheckRules, OpenHalves, Verdict
from broker.transactions.producers import CheckTargets
from broker.transactions.records import (
    CONSUMER_GROUP,
    HALF_QUEUE,
    OP_PROPERTIES,
    Half,
    check_body,
    copy_properties,
    half_of,
    op_bodies,
)
from ropewalk.codes import MessageSysFlag, RequestCode
from ropewalk.errors import CorruptRecord, LocalProtocolError
from ropewalk.format import names
from ropewalk.format.headers import CheckTransactionStateHeader, encode_header
from ropewalk.format.properties import tags_code
from ropewalk.format.record import Record, decode_record, encode_host, message_id
from store.append import Message
from store.queues.consume_queue import ConsumeQueue
from store.read.results import GetResult, GetStatus
from store.retention.rules import HOUR_MS

__all__ = ["TransactionService"]

log = structlog.get_logger("broker.transactions")

CHECKS_PER_TURN = 64
SPAN_MAX = 100_000
"""Half records between the oldest open one and the end of the queue, beyond which the oldest is appended once more."""
_RECORD_BYTES_MAX = 32 << 20


class _Question(NamedTuple):
    """A check that leaves when its copy of the half can be read."""

    log_end: int
    session: Session
    ext: dict[str, str]
    body: bytes


class TransactionService:
    """The transactions of one broker. The loop owns it."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        is_slave: Callable[[], bool],
        refusal: Callable[[], tuple[int, str] | None],
        wake: Callable[[], None],
    ) -> None:
        """`refusal()` says why nothing may be appended at the moment; `wake` has the loop call `wakened` soon."""
        self.counts = TransactionCounts()
        self.targets = CheckTargets(context.clients)
        self.halves = OpenHalves()
        self._context = context
        self._is_slave = is_slave
        self._refusal = refusal
        self._wake = wake
        self._loader: Loader | None = None
        self._is_loaded = False
        self._followed = False
        """Whether this process has been a slave."""
        self._waiting: list[Callable[[], None]] = []
        """Requests that need to know what is open."""
        self._round: deque[int] = deque()
        self._next_round_ms = 0
        self._reading = False
        self.questions: deque[_Question] = deque()
        self._progress: deque[tuple[int, tuple[int, int]]] = deque()
        self._published = (-1, -1)
        self.changed = 0
        """Rises with every change of what is open."""
        self.configure()

    def configure(self) -> None:
        """Go by the configuration that counts now."""
        config = self._context.config
        self.rules = CheckRules(
            config.transaction_time_out, config.transaction_check_max, config.file_reserved_time * HOUR_MS
        )

    # -- life ----------------------------------------------------------------------------------------

    def role_changed(self) -> None:
        """Begin anew after a promotion, and forget everything as a slave."""
        if self._is_slave():
            self._followed = True
            self._reset()
            return
        if self._loader is None and not self._is_loaded:
            self._begin()

    def _reset(self) -> None:
        self.halves = OpenHalves()
        self._loader, self._is_loaded = None, False
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()  # each of them finds a slave, and says so
        self._round.clear()
        self.questions.clear()
        self._progress.clear()

    def _begin(self) -> None:
        context = self._context
        progress = context.offsets.query(CONSUMER_GROUP, names.TRANS_HALF_TOPIC, HALF_QUEUE)
        self._loader = Loader(
            context.store, context.reader, progress, promoted=self._followed, wake=self._wake
        )
        self.halves = OpenHalves(self._loader.end)
        self._next_round_ms = context.monotonic_ms() + context.config.transaction_check_interval
        self._load()

    def _load(self) -> None:
        loader = self._loader
        assert loader is not None
        loader.step()
        if not loader.done:
            return
        now = self._context.now_ms()
        halves = OpenHalves(loader.low, loader.op_low)
        for half in (*loader.halves.values(), *self.halves.by_offset.values()):
            halves.add(half, now)
        halves.raise_end(loader.end)
        for op_offset, offsets in loader.ops:
            halves.op_written(op_offset, offsets)
        halves.take_over(self.halves)
        self.halves = halves
        for half in loader.committed:
            log.warning(
                "a transaction had been committed, and a crash took the record of that",
                topic=half.topic,
                group=half.group,
                offset=half.offset,
            )
            halves.close(half, now)
        self._loader, self._is_loaded = None, True
        if loader.halves or self.counts.data_version.counter:
            self.changed += 1
        if loader.halves:
            log.info("transactions are open", halves=len(loader.halves), from_offset=loader.low)
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    @property
    def is_loaded(self) -> bool:
        """Tell whether the open transactions are known."""
        return self._is_loaded

    @property
    def is_idle(self) -> bool:
        """Tell whether the open transactions are known, and no check round is under way."""
        return self._is_loaded and not self._round and not self._reading and not self.questions

    def when_loaded(self, go_on: Callable[[], None]) -> bool:
        """Call `go_on` once the open transactions are known; False if too many calls wait for that already."""
        if self._is_loaded or self._is_slave():
            go_on()
            return True
        if self._loader is None:
            self._begin()
            return self.when_loaded(go_on)
        if len(self._waiting) >= SPAN_MAX:
            return False
        self._waiting.append(go_on)
        return True

    # -- what requests do ----------------------------------------------------------------------------

    def opened(self, half: Half, session: Session) -> None:
        """Keep track of a half message that was just appended."""
        if self._loader is None and not self._is_loaded:
            self._begin()
        self.targets.sent(half.group, session)
        self.halves.add(half, self._context.now_ms())
        self.changed += 1

    def close(self, half: Half) -> None:
        """End a transaction. Its operation record is appended when this turn ends."""
        self.halves.close(half, self._context.now_ms())
        self.changed += 1

    # -- turns ---------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Append the operation records of the transactions decided in this turn."""
        if not self._is_slave():
            self._write_ops()

    def published(self) -> None:
        """Send the questions about halves whose copies can be read by now."""
        readable = self._context.store.readable_offset
        while self.questions and self.questions[0].log_end <= readable:
            question = self.questions.popleft()
            if question.session.is_open:
                question.session.push(RequestCode.CHECK_TRANSACTION_STATE, question.ext, question.body)

    def _write_ops(self) -> None:
        context, decided = self._context, self.halves.decided
        queue = context.store.queue(names.TRANS_OP_HALF_TOPIC, HALF_QUEUE)
        now = context.now_ms()
        tag = tags_code("d")
        bodies = op_bodies(decided, context.config.transaction_op_msg_max_size)
        messages: list[Message] = [(queue, body, OP_PROPERTIES, 0, 0, now, 0, 0, tag) for body, _ in bodies]
        stored = context.store.put(messages, context.store.config.store_host)
        for (_, count), (_, op_offset) in zip(bodies, stored, strict=False):
            self.halves.op_written(op_offset, [decided.popleft() for _ in range(count)])
        if stored:
            sizes = context.store.sizes
            context.statistics.put(queue.topic, context.store.now, len(stored), sum(sizes), sizes=sizes)

    def wakened(self) -> None:
        """Carry on with the work that waited for the disk, or was too much for one turn."""
        if self._loader is not None:
            self._load()
        elif self._round:
            self._check()

    def tick(self) -> None:
        """Check rounds and progress, several times a second."""
        if self._is_slave():
            return
        if self._loader is not None:
            self._loader.retry()
            self._load()
            return
        if not self._is_loaded:
            self._begin()
            return
        now = self._context.monotonic_ms()
        if now >= self._next_round_ms:
            self._next_round_ms = now + self._context.config.transaction_check_interval
            self._round = deque(sorted(self.halves.by_offset))
        if self._round:
            self._check()
        self._publish_progress()

    def _publish_progress(self) -> None:
        """Make known how far both queues are worked through, once the log through there is flushed."""
        store, offsets = self._context.store, self._context.offsets
        waiting = self._progress
        found = self.halves.progress()
        if found != (waiting[-1][1] if waiting else self._published):
            waiting.append((store.log.end_offset, found))
        through = store.log.flushed_offset
        while waiting and waiting[0][0] <= through:
            _, self._published = waiting.popleft()
            half_offset, op_offset = self._published
            if half_offset or op_offset:
                offsets.commit(CONSUMER_GROUP, names.TRANS_HALF_TOPIC, HALF_QUEUE, half_offset)
                offsets.commit(CONSUMER_GROUP, names.TRANS_OP_HALF_TOPIC, HALF_QUEUE, op_offset)

    def stop(self) -> bool:
        """Publish the progress of a closed store, all of which is flushed; return whether it is another one."""
        before = self._context.offsets.changed
        if self._is_loaded and not self._is_slave():
            self._publish_progress()
        return self._context.offsets.changed != before

    def dump_in_slices(self) -> TextSlices:
        """Write the text of `transactionMetrics`, a slice at each step."""
        return self.counts.dump_in_slices(self.halves, self._context.now_ms())

    # -- checks --------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Look at the next halves of this round."""
        now = self._context.now_ms()
        for _ in range(CHECKS_PER_TURN):
            if self._reading or not self._round or self._refusal() is not None:
                return
            half = self.halves.by_offset.get(self._round.popleft())
            if half is None:
                continue
            verdict = self.rules.judge(half, now)
            target = self.targets.next_of(half.group) if verdict is Verdict.CHECK else None
            if verdict is Verdict.CHECK and target is None:
                self.counts.unasked += 1
            holds_back = half.offset < self.halves.end - SPAN_MAX
            if verdict is Verdict.GIVE_UP or target is not None or holds_back:
                self._read(half, partial(self._have_record, half, verdict, target))
        self._wake()

    def _read(self, half: Half, done: Callable[[GetResult | None], None]) -> None:
        queue = self._context.store.queue(names.TRANS_HALF_TOPIC, HALF_QUEUE)
        self._reading = True
        self._context.reader.get(queue, half.offset, 1, _RECORD_BYTES_MAX, None, done, deferrable=False)

    def _have_record(
        self, half: Half, verdict: Verdict, target: Session | None, result: GetResult | None
    ) -> None:
        """Carry out the verdict, now or when the disk has answered."""
        self._reading = False
        if self._is_slave() or self.halves.by_offset.get(half.offset) is not half:
            return  # decided meanwhile
        if result is None or result.status in (
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.OFFSET_OVERFLOW_BADLY,
        ):
            return  # too much to read at the moment, or not readable yet: the next round
        record = _record_of(result, half)
        if record is None:
            log.error(
                "a half message is given up: its record cannot be read any more",
                topic=half.topic,
                group=half.group,
                offset=half.offset,
                log_offset=half.log_offset,
            )
            self._gave_up(half)
            return
        try:
            if verdict is Verdict.GIVE_UP:
                self._give_up(half, record)
            elif target is not None:
                self._ask(half, record, target)
            else:
                self._append_copy(half, record, half.checks)
        except (LocalProtocolError, ValueError) as exc:
            log.error(
                "a half message is given up: it cannot be checked",
                topic=half.topic,
                transaction=record.uniq_key,
                reason=str(exc),
            )
            self._gave_up(half)

    def _append_copy(self, half: Half, record: Record, checks: int) -> tuple[Half, bytes] | None:
        """Append a half once more; return it under its new place, and its property text. None if the disk is full."""
        store = self._context.store
        queue = store.queue(names.TRANS_HALF_TOPIC, HALF_QUEUE)
        raw = copy_properties(record, checks=checks, first=half.first, since_ms=half.since_ms)
        stored = self._put(queue, record, raw)
        if stored is None:
            return None
        log_offset, offset = stored
        now = self._context.now_ms()
        marks = now - half.since_ms > self.rules.immunity_of(half)
        return self.halves.renew(half, offset, log_offset, checks, now, marks=marks), raw

    def _put(self, queue: ConsumeQueue, record: Record, raw: bytes) -> tuple[int, int] | None:
        """Append a record's message anew; return log offset and queue offset, None if the disk is full."""
        store, statistics = self._context.store, self._context.statistics
        message: Message = (
            queue,
            record.body,
            raw,
            record.flag,
            record.sys_flag & ~MessageSysFlag.TRANSACTION_MASK,
            record.born_timestamp,
            record.reconsume_times,
            0,
            tags_code(record.tags),
        )
        stored = store.put([message], encode_host(*record.born_host))
        if not stored:
            return None
        self.changed += 1
        statistics.put(queue.topic, store.now, 1, store.sizes[0], sizes=store.sizes)
        return stored[0]

    def _ask(self, half: Half, record: Record, session: Session) -> None:
        """Append a half with a raised count, and ask a producer about it."""
        copied = self._append_copy(half, record, half.checks + 1)
        if copied is None:
            return
        half, raw = copied
        store, config = self._context.store, self._context.config
        host = store.config.store_host
        unique_key = record.uniq_key or ""
        header = CheckTransactionStateHeader(
            tran_state_table_offset=half.offset,
            commit_log_offset=half.log_offset,
            topic=names.TRANS_HALF_TOPIC,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=message_id(host, half.log_offset),
            broker_name=config.broker_name,
        )
        body = check_body(record, raw, half.offset, half.log_offset, store.now, host)
        self.questions.append(_Question(store.log.end_offset, session, encode_header(header), body))
        self.counts.checks += 1
        log.info(
            "a producer is asked about a transaction",
            topic=half.topic,
            group=half.group,
            transaction=unique_key,
            check=half.checks,
            producer="{}:{}".format(*session.link.peer),
        )

    def _give_up(self, half: Half, record: Record) -> None:
        """Move a half to the topic of those that were checked too often."""
        context = self._context
        topic = names.TRANS_CHECK_MAX_TIME_TOPIC
        if topic not in context.topics:
            context.topics.update(TopicConfig(topic, 1, 1), context.now_ms())
            context.topics_changed()
        raw = copy_properties(record, checks=half.checks, first=half.first, since_ms=half.since_ms)
        if self._put(context.store.queue(topic, HALF_QUEUE), record, raw) is None:
            return
        log.error(
            "a transaction is given up: nobody decided it. Its message is kept in TRANS_CHECK_MAX_TIME_TOPIC; "
            "resumeCheckHalfMessage has it checked again",
            topic=half.topic,
            group=half.group,
            transaction=record.uniq_key,
            checks=half.checks,
            age_s=(context.now_ms() - half.since_ms) // 1000,
            offset=half.offset,
        )
        self._gave_up(half)

    def _gave_up(self, half: Half) -> None:
        self.counts.given_up[half.topic] += 1
        self.close(half)

    def resume(self, record: Record) -> bool:
        """Have a half message checked from the beginning again (323); one that was given up becomes a new transaction.

        False if the disk is full.
        """
        context = self._context
        named = half_of(record)
        half = None
        if record.topic == names.TRANS_HALF_TOPIC:
            half = self.halves.find(named.offset, named.first)
        if half is not None:
            return self._append_copy(half, record, 0) is not None
        raw = copy_properties(record, checks=0, first=None, since_ms=0)
        stored = self._put(context.store.queue(names.TRANS_HALF_TOPIC, HALF_QUEUE), record, raw)
        if stored is not None:
            log_offset, offset = stored
            now = context.now_ms()
            half = Half(offset, log_offset, offset, named.topic, named.queue_id, named.group, now)
            self.halves.add(half, now)
        return stored is not None


def _record_of(result: GetResult, half: Half) -> Record | None:
    """Return the half record that a read found; None if it is not there."""
    if not result.records:
        return None
    try:
        record = decode_record(bytes(result.records[0]))
    except CorruptRecord:
        return None
    return record if record.queue_offset == half.offset else None
