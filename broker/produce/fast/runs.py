"""The run of plain sends that one read brought, judged, appended and answered together.

Three ways of taking a message have one outcome. `SendProcessor.send` is the readable one and takes everything.
`SendRuns.take` is written for the interpreter: one typed decode of each header, membership tests on the property text
instead of parsing it, one append for the whole run, formatted answers. Of those it hands on the ones whose header the
client has sent before but for a few values (`send_shape`), which are neither decoded nor judged again; and where a
read brought only a few of these, they are put off until the turn ends, so that what many clients send one by one is
appended at once too. A read that is one such request is not even cut into frames (`SendRuns.take_one`). Tests send the
same messages in all ways and compare what is stored and answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from broker.produce.fast.columns import put_columns, table_columns, take_columns
from broker.produce.fast.header_template import UNREADABLE, PlainHeader, Shape, Shapes, decode_plain, shape_of
from broker.produce.fast.many_topics import CHANGES_MIN, MISFITS_MAX, Kinds, put_wide, take_wide, widened
from broker.produce.responses import PREFIX
from broker.produce.send import (
    NO_WAIT,
    PROPERTIES_SIZE_MAX,
    SPECIAL_BITS,
    SendProcessor,
    Target,
    host_of,
    tags_code_of,
    waits_for,
)
from broker.remoting.session import RUN_MAX, Session
from broker.waiting.pending_acks import Owed
from ropewalk.codes import FrameFlag, RequestCode
from ropewalk.format.properties import P, parse_properties
from ropewalk.format.record_pattern import SPLIT_MIN, RecordPattern
from store.append import Alike, Message

log = structlog.get_logger("broker.send")

_PLAIN = b'{"code":310,'  # how every known client's JSON encoder begins this header
_CODE = int(RequestCode.SEND_MESSAGE_V2)
_UNIQ = P.UNIQ_KEY + "\x01"
_FEW = 8

_Due = tuple[Session, Shape, bytes, bytes, bytes, bytes]
"""To whom an answer is owed, and what stands in it: queue id, unique key and opaque; and the request as it came."""


class SendRuns:
    """The quick ways into the store, in front of one `SendProcessor`."""

    def __init__(self, sends: SendProcessor, wait: Callable[[Sequence[Owed], float], None]) -> None:
        """`wait` has answers wait, all of which answer plain sends that had been read at the time it is told."""
        self._sends = sends
        self._wait = wait
        self._put_off: list[Session] = []
        self._batch: list[Alike] = []
        self._owed: list[_Due] = []
        self._judged: object = None
        """By what everything that is put off was judged."""
        self._topic: str | None = None
        """The one topic of what is put off; None if there are several."""
        self._kinds = Kinds()

    def take_one(self, session: Session, payload: bytes) -> bool:
        """Take a plain send that is all that a read brought, if its client has sent one like it before. HOT.

        It is put off, like a few; whatever may be different by the end of the turn is looked at then.
        """
        shapes = session.shapes
        if shapes is None:
            return False
        shape = shapes.known.get(payload[:4])
        if shape is None or shape.judged is not self._sends.judged:
            return False
        found = self._read(session, shape, payload)
        if found is None:
            return False
        message, due = found
        self._batch.append(message)
        self._owed.append(due)
        self._put_off_of(session, shape, message[0].topic)
        shapes.helped(1)
        return True

    def take_table(self, session: Session, data: bytes, count: int) -> bool:
        """Take so many frames of one size, if all are plain sends like one that their client has sent before. HOT.

        False, and nothing is done, if they are not: then each is looked at by itself.
        """
        if session.put_off:
            self.settle()
        sends, shapes, opening = self._sends, session.shapes, data[4:8]
        if shapes is None or not sends.takes_runs:
            return False
        wide = shapes.wide.get(opening)
        if wide is not None:
            columns = table_columns(sends, wide.cut, data, count) if wide.cut.judged is sends.judged else None
            return columns is not None and put_wide(sends, session, wide, columns)
        shape = shapes.known.get(opening)
        if shape is None or shape.judged is not sends.judged:
            return False
        columns = table_columns(sends, shape, data, count)
        if columns is None or not put_columns(sends, session, shape, columns):
            return False
        shapes.helped(count)
        return True

    def take(self, session: Session, payloads: list[bytes], start: int, end: int) -> int:
        """Take the run of plain sends that begins at `payloads[start]`; return the index behind it. HOT.

        Plain is: SEND_MESSAGE_V2 in JSON, to a topic that has passed its checks, with nothing in flags and
        properties that asks for more than to be stored. The first message that is anything else ends the run and
        goes its own way through `send`. All of a run is appended at once.
        """
        sends = self._sends
        if session.put_off:
            self.settle()
        if not payloads[start].startswith(_PLAIN, 4) or not sends.takes_runs:
            return start
        shapes = session.shapes
        if shapes is None:
            shapes = session.shapes = Shapes()
        wide = shapes.wide.get(payloads[start][:4])
        if wide is not None:
            if wide.cut.judged is not sends.judged or wide.misfits > MISFITS_MAX:
                wide = None
                del shapes.wide[payloads[start][:4]]
            elif taken := take_wide(sends, session, wide, payloads, start, end):
                return start + taken
        shape = shapes.known.get(payloads[start][:4]) if wide is None else None
        if shape is not None and shape.judged is sends.judged:
            index = self._take_alike(session, shape, payloads, start, end)
            if index > start:
                shapes.helped(index - start)
                return index
        target_of, size_max = sends.target_of, sends.plain_size_max
        own_text, sync = sends.own_text, sends.waits
        batch: list[Message] = []
        owed: list[tuple[int, int, str, bool]] = []
        index = start
        last, topic_count, learned = None, 0, False
        for index in range(start, end):
            payload = payloads[index]
            if not payload.startswith(_PLAIN, 4):
                break
            # With the serialize type on top: anything but JSON is as far out of bounds as a length that lies.
            header_end = 4 + int.from_bytes(payload[:4], "big")
            if header_end > len(payload):
                break
            try:
                frame = decode_plain(raw := payload[4:header_end])
                raw.isascii() or raw.decode()  # what is skipped unread has to be text too
            except UNREADABLE:
                break
            header = frame.extFields
            target = target_of(header.topic)
            # The last of several codes counts, as for every reader.
            if target is None or header.batch or frame.flag & FrameFlag.RESPONSE or frame.code != _CODE:
                break
            queue_id = header.queue_id
            body = payload[header_end:]
            text = header.properties
            if not 0 <= queue_id < target.queues_max or len(body) > size_max or not text:
                break
            sys_flag = header.sys_flag | target.sys_flag
            if (
                sys_flag & SPECIAL_BITS
                or "DELAY\x01" in text
                or "TRAN_MSG" in text
                or "TIMER_" in text
                or "POP_CK" in text
                or "CLUSTER\x01" in text
                or "__CRC32#" in text
                or "INNER_" in text
            ):
                break
            at = text.rfind(_UNIQ)
            if at < 0 or (at and text[at - 1] != "\x02"):
                break
            stop = text.find("\x02", at)
            unique_key = text[at + 9 : stop] if stop > 0 else text[at + 9 :]
            properties = (text + own_text if text[-1] == "\x02" else f"{text}\x02{own_text}").encode()
            if len(properties) > PROPERTIES_SIZE_MAX or not (unique_key.isalnum() and unique_key.isascii()):
                break
            queue = target.queues.get(queue_id) or sends.store.queue(header.topic, queue_id)
            if target is not last:
                last = target
                topic_count += 1
            target.queues_of_shapes[b"%d" % queue_id] = queue
            batch.append(
                (
                    queue,
                    body,
                    properties,
                    header.flag,
                    sys_flag,
                    header.born_timestamp,
                    header.reconsume_times or 0,
                    0,
                    tags_code_of(text),
                )
            )
            # The text can stand inside another name or value; to answer before the flush is to be sure.
            wait = sync and (NO_WAIT not in text or waits_for(parse_properties(text)))
            owed.append((frame.opaque, frame.flag, unique_key, wait))
            if not learned:
                learned = True
                if wide is None and shapes.wants():
                    self._learn(session, shapes, payload, frame, target, batch[-1], unique_key, wait)
        else:
            index = end
        if batch:
            stored = sends.put(batch, session, one_topic=topic_count == 1)
            self._answer_run(session, batch, owed, stored)
            index = start + len(stored)  # the disk is full: the next one is refused on its own way
        return index

    def _learn(
        self,
        session: Session,
        shapes: Shapes,
        payload: bytes,
        header: PlainHeader,
        target: Target,
        message: Message,
        key: str,
        waits: bool,
    ) -> None:
        """Have requests that are like this plain one recognised."""
        queue, _body, properties, flag, sys_flag, _born, reconsume_times, _prepared, tag_code = message
        before, after = properties.split(key.encode(), 1)
        pattern = RecordPattern(
            queue.topic_bytes,
            flag,
            sys_flag,
            host_of(session.link.peer),
            self._sends.store.config.store_host,
            reconsume_times,
            before,
            len(key),
            after,
        )
        shape = shape_of(
            self._sends.judged,
            payload,
            header,
            key,
            queues=target.queues_of_shapes,
            pattern=pattern,
            tag_code=tag_code,
            oneway=header.flag & FrameFlag.ONEWAY != 0,
            waits=waits,
        )
        if shape is None:
            return
        old = shapes.known.get(payload[:4])
        if old is not None and old.queues is not shape.queues and shapes.change() >= CHANGES_MIN:
            wide = widened(shape, payload, header, target.sys_flag, self._kinds)
            if wide is not None:
                shapes.widen(payload, wide)
                return
        shapes.learn(payload, shape)

    def _take_alike(self, session: Session, shape: Shape, payloads: list[bytes], start: int, end: int) -> int:
        """Take the run of requests that have this shape; return the index behind it. HOT."""
        if taken := take_columns(self._sends, session, shape, payloads, start, end):
            return start + taken
        batch: list[Alike] = []
        owed: list[_Due] = []
        for index in range(start, end):
            found = self._read(session, shape, payloads[index])
            if found is None:
                break
            batch.append(found[0])
            owed.append(found[1])
        taken = len(batch)
        if 0 < taken <= _FEW and start + taken == len(payloads):
            self._batch += batch
            self._owed += owed
            self._put_off_of(session, shape, batch[0][0].topic)
            return start + taken
        return start + self._store(batch, owed, one_topic=True)

    def _read(self, session: Session, shape: Shape, payload: bytes) -> tuple[Alike, _Due] | None:
        """A request that has this shape, as a message and as an answer that is due; None if it has another. HOT."""
        body_at = shape.body_at
        if len(payload) < body_at:
            return None
        pieces = shape.unpack(payload)
        at_queue, at_born, at_key, at_opaque = shape.places
        key, opaque, born, queue_id = pieces[at_key], pieces[at_opaque], pieces[at_born], pieces[at_queue]
        queue = shape.queues.get(queue_id)
        size = len(payload) - body_at
        if (
            pieces[::2] != shape.fixed
            or queue is None
            or not (key.isalnum() and opaque.isdigit() and shape.opaque_min <= opaque <= shape.opaque_max)
            or not born.isdigit()
            or size > self._sends.plain_size_max
        ):
            return None
        body = memoryview(payload)[body_at:] if size >= SPLIT_MIN else payload[body_at:]
        return (
            (queue, body, int(born), key, shape.pattern, shape.tag_code),
            (session, shape, queue_id, key, opaque, payload),
        )

    def _put_off_of(self, session: Session, shape: Shape, topic: str) -> None:
        """What was put last into the batch is this session's, and all of one topic. HOT."""
        session.put_off = True
        if not self._put_off:
            self._judged, self._topic = shape.judged, topic
        elif topic is not self._topic:
            self._topic = None
        self._put_off.append(session)
        if len(self._batch) >= RUN_MAX:
            self.settle()

    def settle(self) -> None:
        """Append and answer what was put off; before a turn ends, and before its sender asks for more. HOT."""
        if not self._put_off:
            return
        sessions, batch, owed = self._put_off, self._batch, self._owed
        self._put_off, self._batch, self._owed = [], [], []
        for session in sessions:
            session.put_off = False
        sends, done = self._sends, 0
        if sends.takes_runs and self._judged is sends.judged:
            try:
                done = self._store(batch, owed, one_topic=self._topic is not None)
            except OSError:
                raise  # the disk: the process decides
            except Exception:
                log.exception("hung up on the clients of a turn after a failure", clients=len(sessions))
                for session in sessions:
                    session.link.close()
                return
        for session, _shape, _queue_id, _key, _opaque, payload in owed[done:]:
            session.handle(payload)  # something changed since it came, or the disk is full
        # All were read in this turn, but for those of a peer that took too little: these come last, and count as quick.
        times, count, read_at = sends.statistics.rpc, 0, sessions[0].read_at
        waiting: list[Owed] = []
        for session in sessions:
            if session.kinds or session.waiting_kinds:
                session.owe()
                continue
            if session.waiting:
                waiting.append((session, session.waiting))
                session.waiting = []
            if session.ready:
                count += len(session.ready)
                session.hand_over()
        if waiting:
            self._wait(waiting, read_at)
        if count:
            times.count(times.plain, count, times.look() - read_at)

    def _store(self, batch: list[Alike], owed: list[_Due], *, one_topic: bool) -> int:
        """Append, and prepare the answers; return how many there was room for. HOT."""
        if not batch:
            return 0
        sends = self._sends
        clock, answer_format, pack = sends.statistics.clock, sends.answers.format, PREFIX.pack
        began = clock()
        stored = sends.store.put_alike(batch)
        sends.statistics.rpc.at = ended = clock()
        sends.count(batch, stored, ended - began, one_topic=one_topic)
        for (session, shape, queue_id, key, opaque, _), (offset, queue_offset) in zip(
            owed, stored, strict=False
        ):
            if shape.oneway:
                session.unanswered(1)
            else:
                answer = answer_format % (offset, queue_id, queue_offset, key, opaque)
                size = len(answer)
                (session.waiting if shape.waits else session.ready).append(pack(size + 4, size) + answer)
        return len(stored)

    def _answer_run(
        self,
        session: Session,
        batch: list[Message],
        owed: list[tuple[int, int, str, bool]],
        stored: list[tuple[int, int]],
    ) -> None:
        ready, waiting, answer = session.ready, session.waiting, self._sends.answers.one
        for message, (opaque, flag, unique_key, wait), (offset, queue_offset) in zip(
            batch, owed, stored, strict=False
        ):
            if flag & FrameFlag.ONEWAY:
                session.unanswered(1)
            else:
                (waiting if wait else ready).append(
                    answer(
                        offset,
                        b"%d" % message[0].queue_id,
                        queue_offset,
                        unique_key.encode(),
                        b"%d" % opaque,
                    )
                )
