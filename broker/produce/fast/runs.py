"""Runs of sends, stored and answered together: the fast ways in front of `SendProcessor.send`.

    defer_single   one request that is all a read brought, of a known template: put off until the turn ends, so that
                   what many clients send one by one is appended at once
    store_run      a run of requests: by columns, by template, or each decoded once and tested by words of its text;
                   one that is not plain (`admission`) is judged and placed as `send` does it, and stored with the run

All have the outcome of `send`, which takes everything; the tests send the same messages by each and compare what is
stored and answered. What `send` would refuse ends a run and is left to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from broker.produce.appends import host_of
from broker.produce.fast.columns import store_columns_run
from broker.produce.fast.detour import detour_of
from broker.produce.fast.header_template import (
    UNREADABLE,
    HeaderTemplate,
    PlainHeader,
    decode_plain,
    template_of,
)
from broker.produce.fast.many_topics import (
    CHANGES_MIN,
    MISSES_MAX,
    TemplateGroups,
    many_topics_template,
    store_many_topics_run,
)
from broker.produce.fast.template_cache import HEADER_SIZE_MAX, SendTemplates
from broker.produce.responses import PREFIX
from broker.produce.send import NewHalf, Placed, SendProcessor
from broker.produce.targets import Target
from broker.remoting.outbox import flush_together
from broker.remoting.session import Session
from ropewalk.codes import FrameFlag, RequestCode
from ropewalk.format.properties import P
from ropewalk.format.record_pattern import SPLIT_MIN, RecordPattern
from store.append import Alike, Message

log = structlog.get_logger("broker.send")

_PLAIN = b'{"code":310,'  # how every known client's JSON encoder begins this header
_CODE = int(RequestCode.SEND_MESSAGE_V2)
_UNIQ = P.UNIQ_KEY + "\x01"
_FEW = 8
RUN_MAX = 256
"""Requests that a run takes at most, before what it answered leaves."""

_Due = tuple[Session, HeaderTemplate, bytes, bytes, bytes, bytes]
"""To whom an answer is owed, and what stands in it: queue id, unique key and opaque; and the request as it came."""


_Answer = tuple[int, int, int, str, str, bool]
"""Opaque, flag, queue id, unique key, recall handle, and whether the answer waits."""


class SendRuns:
    """The fast ways into the store, in front of one `SendProcessor`."""

    def __init__(self, sends: SendProcessor) -> None:
        self._sends = sends
        self._deferred: list[tuple[Session, SendTemplates]] = []
        self._batch: list[Alike] = []
        self._owed: list[_Due] = []
        self._rules_version: object = None
        """The rules by which everything that is deferred was judged."""
        self._topic: str | None = None
        """The one topic of what is deferred; None if there are several."""
        self._groups = TemplateGroups()

    def defer_single(self, session: Session, templates: SendTemplates, payload: bytes) -> bool:
        """Put off a plain send that is all that a read brought, if it is of a known template. HOT.

        What may be different by the end of the turn is looked at then.
        """
        template = templates.known.get(payload[:4])
        if template is None or template.rules_version is not self._sends.rules_version or template.detour:
            return False
        found = self._read(session, template, payload)
        if found is None:
            return False
        message, due = found
        self._batch.append(message)
        self._owed.append(due)
        self._defer(session, templates, template, message[0].topic)
        templates.record_hits(1)
        return True

    def store_run(
        self, session: Session, templates: SendTemplates, payloads: Sequence[bytes], start: int, end: int
    ) -> int:
        """Store and answer the run of sends that begins at `payloads[start]`; return the index behind it. HOT.

        It takes SEND_MESSAGE_V2 in JSON, to a topic that has passed its checks; half, timer and delayed messages too.
        All of a run is appended at once.
        """
        sends = self._sends
        if templates.deferred:
            self.flush_deferred()
        first = payloads[start]
        if not first.startswith(_PLAIN, 4) or not sends.takes_runs:
            return start
        opening = first[:4]
        many = templates.many_topics.get(opening)
        if many is not None:
            if many.cut.rules_version is not sends.rules_version or many.misses > MISSES_MAX:
                many = None
                del templates.many_topics[opening]
            elif taken := store_many_topics_run(sends, session, many, payloads, start, end):
                return start + taken
        template = templates.known.get(opening) if many is None else None
        if template is not None and template.rules_version is sends.rules_version:
            index = self._store_known(session, templates, template, payloads, start, end)
            if index > start:
                templates.record_hits(index - start)
                return index
        return self._store_read(session, templates, payloads, start, end, learns=many is None)

    def _store_read(
        self,
        session: Session,
        templates: SendTemplates,
        payloads: Sequence[bytes],
        start: int,
        end: int,
        *,
        learns: bool,
    ) -> int:
        """Store and answer the requests of a run by reading each header; return the index behind them.

        `learns`: the first one may become a template.
        """
        sends = self._sends
        target_of, size_max = sends.target_of, sends.plain_size_max
        read_plain, place, sync = sends.read_plain, sends.place_in_run, sends.waits
        batch: list[Message] = []
        owed: list[_Answer] = []
        halves: list[tuple[int, NewHalf]] = []
        index = start
        topic, one_topic, time_moved = "", True, False
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
            queue = target.queues.get(queue_id) or sends.store.queue(header.topic, queue_id)
            target.queues_by_text[b"%d" % queue_id] = queue
            plain, placed = read_plain(text, sys_flag), None
            if plain is not None:
                properties, key, tag_code, waits = plain
                born, times = header.born_timestamp, header.reconsume_times or 0
                message = queue, body, properties, header.flag, sys_flag, born, times, 0, tag_code
                handle = ""
            else:
                if not time_moved:  # once for a run: what is stored together counts from one time
                    sends.store.refresh_time()
                    time_moved = True
                placed = place(header, target, queue, body)
                if placed is None:
                    break
                message, key, waits, handle, half = placed
                if half is not None:
                    halves.append((len(batch), half))
            if message[0].topic != topic:
                one_topic = not topic
                topic = message[0].topic
            batch.append(message)
            wait = sync and waits
            owed.append((frame.opaque, frame.flag, queue_id, key, handle, wait))
            if learns:
                learns = False
                if int.from_bytes(payload[:4], "big") <= HEADER_SIZE_MAX and templates.wants_another():
                    self._learn(session, templates, payload, frame, target, message, key, wait, placed)
        else:
            index = end
        if batch:
            stored = sends.appends.put(batch, session, one_topic=one_topic)
            for number, half in halves:
                if number < len(stored):
                    sends.opened(session, half, *stored[number])
            self._answer_run(session, owed, stored)
            index = start + len(stored)  # the disk is full: the next one is refused on its own way
        return index

    def _learn(
        self,
        session: Session,
        templates: SendTemplates,
        payload: bytes,
        header: PlainHeader,
        target: Target,
        message: Message,
        key: str,
        waits: bool,
        placed: Placed | None,
    ) -> None:
        """Learn the template of this request, which is plain if it was not `placed` elsewhere."""
        queue, _body, properties, flag, sys_flag, _born, reconsume_times, _prepared, tag_code = message
        ext, detour = header.extFields, None
        if placed is None:
            before, after = properties.split(key.encode(), 1)
            key_size = len(key)
        else:
            detour = detour_of(placed, ext.properties or "", ext.queue_id)
            if detour is None:
                return
            before, key_size, after = b"", 0, properties
        pattern = RecordPattern(
            queue.topic_bytes,
            flag,
            sys_flag,
            host_of(session.link.peer),
            self._sends.store.config.store_host,
            reconsume_times,
            before,
            key_size,
            after,
        )
        template = template_of(
            self._sends.rules_version,
            payload,
            header,
            key,
            queues=target.queues_by_text,
            pattern=pattern,
            tag_code=tag_code,
            oneway=header.flag & FrameFlag.ONEWAY != 0,
            waits=waits,
            detour=detour,
        )
        if template is None:
            return
        if detour is not None:
            templates.learn(payload, template)
            return
        old = templates.known.get(payload[:4])
        if old is not None and old.queues is not template.queues and templates.record_change() >= CHANGES_MIN:
            many = many_topics_template(template, payload, header, target.sys_flag, self._groups)
            if many is not None:
                templates.learn_many_topics(payload, many)
                return
        templates.learn(payload, template)

    def _store_known(
        self,
        session: Session,
        templates: SendTemplates,
        template: HeaderTemplate,
        payloads: Sequence[bytes],
        start: int,
        end: int,
    ) -> int:
        """Store the run of requests that have this template, or put it off; return the index behind it. HOT."""
        if taken := store_columns_run(self._sends, session, template, payloads, start, end):
            return start + taken
        if template.detour is not None:
            return start
        batch: list[Alike] = []
        owed: list[_Due] = []
        for index in range(start, end):
            found = self._read(session, template, payloads[index])
            if found is None:
                break
            batch.append(found[0])
            owed.append(found[1])
        taken = len(batch)
        if 0 < taken <= _FEW and start + taken == len(payloads):
            self._batch += batch
            self._owed += owed
            self._defer(session, templates, template, batch[0][0].topic)
            return start + taken
        return start + self._store(batch, owed, one_topic=True)

    def _read(self, session: Session, template: HeaderTemplate, payload: bytes) -> tuple[Alike, _Due] | None:
        """Return a request of this template as a message and an answer that is due; None if it is of another. HOT."""
        body_at = template.body_at
        if len(payload) < body_at:
            return None
        pieces = template.unpack(payload)
        at_queue, at_born, at_key, at_opaque = template.places
        key, opaque, born, queue_id = pieces[at_key], pieces[at_opaque], pieces[at_born], pieces[at_queue]
        queue = template.queues.get(queue_id)
        size = len(payload) - body_at
        if (
            pieces[::2] != template.fixed
            or queue is None
            or not (
                key.isalnum() and opaque.isdigit() and template.opaque_min <= opaque <= template.opaque_max
            )
            or not born.isdigit()
            or size > self._sends.plain_size_max
        ):
            return None
        body = memoryview(payload)[body_at:] if size >= SPLIT_MIN else payload[body_at:]
        return (
            (queue, body, int(born), key, template.pattern, template.tag_code),
            (session, template, queue_id, key, opaque, payload),
        )

    def _defer(
        self, session: Session, templates: SendTemplates, template: HeaderTemplate, topic: str
    ) -> None:
        """Note whose the messages are that were put last into the batch, all of one topic. HOT."""
        templates.deferred = True
        if not self._deferred:
            self._rules_version, self._topic = template.rules_version, topic
        elif topic is not self._topic:
            self._topic = None
        self._deferred.append((session, templates))
        if len(self._batch) >= RUN_MAX:
            self.flush_deferred()

    def flush_deferred(self) -> None:
        """Store and answer deferred sends: before a turn ends, and before its sender asks for more. HOT."""
        if not self._deferred:
            return
        deferred, batch, owed = self._deferred, self._batch, self._owed
        self._deferred, self._batch, self._owed = [], [], []
        for _session, templates in deferred:
            templates.deferred = False
        sends, done = self._sends, 0
        if sends.takes_runs and self._rules_version is sends.rules_version:
            try:
                done = self._store(batch, owed, one_topic=self._topic is not None)
            except OSError:
                raise  # the disk: the process decides
            except Exception:
                log.exception("hung up on the clients of a turn after a failure", clients=len(deferred))
                for session, _templates in deferred:
                    session.link.close()
                return
        for session, _template, _queue_id, _key, _opaque, payload in owed[done:]:
            session.handle(payload)  # something changed since it came, or the disk is full
        flush_together([session.outbox for session, _templates in deferred])

    def _store(self, batch: list[Alike], owed: list[_Due], *, one_topic: bool) -> int:
        """Store messages of known templates and owe their answers; return how many there was room for. HOT."""
        if not batch:
            return 0
        sends = self._sends
        clock, answer_format, pack = sends.statistics.clock, sends.answers.format, PREFIX.pack
        began = clock()
        stored = sends.store.put_alike(batch)
        sends.statistics.rpc.at = ended = clock()
        sends.appends.count(batch, stored, ended - began, one_topic=one_topic)
        for (session, template, queue_id, key, opaque, _), (offset, queue_offset) in zip(
            owed, stored, strict=False
        ):
            if template.oneway:
                session.outbox.stored_oneway(1)
            else:
                answer = answer_format % (offset, queue_id, queue_offset, key, opaque)
                size = len(answer)
                session.outbox.stored_one(pack(size + 4, size) + answer, template.waits)
        return len(stored)

    def _answer_run(self, session: Session, owed: list[_Answer], stored: list[tuple[int, int]]) -> None:
        outbox, answer = session.outbox, self._sends.answers.one
        for (opaque, flag, queue_id, key, handle, wait), (offset, queue_offset) in zip(
            owed, stored, strict=False
        ):
            if flag & FrameFlag.ONEWAY:
                outbox.stored_oneway(1)
            else:
                frame = answer(
                    offset, b"%d" % queue_id, queue_offset, key.encode(), b"%d" % opaque, handle.encode()
                )
                outbox.stored_one(frame, wait)
