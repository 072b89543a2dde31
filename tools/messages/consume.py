"""`ropewalk consume` and `ropewalk pull`: read topics without belonging to a group.

Nothing is committed and nobody else's share changes: the reader assigns itself every queue (or the
chosen ones) and walks them. There are two walks:

  * to the end: each queue is read up to the offset it had when we began, and the queues are merged by
    store time, so that messages print in about the order they were sent;
  * `--follow`: one held pull for each queue, all at once; whatever arrives is printed as it comes. Every few seconds
    the topics are looked up again: queues that are new are read from their beginning.

Several topics are read like one, and a name may be a pattern (`order*`).

`--from` is `earliest`, `latest` (or one of their synonyms, RocketMQ's `first` and `last` among them), `offset:N`, a
time as ISO 8601 (local unless it names a zone), or milliseconds since 1970 (of 1973 at the earliest, so that nobody's
offset is taken for a time).
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from ropewalk.client.blocking.connection import receive_any
from ropewalk.client.blocking.simple import Client, NoNameServer, PendingPull, PullResult, PullStatus
from ropewalk.client.core.backoff import STANDSTILL, Standstill
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.consume_from import EARLIEST, LATEST
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.messages import has_moved
from ropewalk.client.core.options import TIMESTAMP_MIN
from ropewalk.client.core.produce.bodies import decompress_body
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RemoteProtocolError, TryElsewhere, TryLater, error_for
from ropewalk.filter.sql92 import SqlSyntaxError, compile_filter
from ropewalk.format.properties import P
from ropewalk.format.record import Record
from ropewalk.printable import printable
from tools.common.interrupts import Interrupts
from tools.common.output import UsageError, counted, json_line, note
from tools.messages.produce import choose_queues, near_topics

PULL_COUNT = 256
SUSPEND_MS = 15_000
HOLD_SLACK_S = 10.0
"""RocketMQ looks at its held pulls every five seconds only."""
RETRY_PAUSE_S = 1.0
NAMED_MAX = 4
"""Queues that a note names before it says "and others"."""
DISCOVER_S = 5.0
"""How often a reader that follows looks for new topics and queues."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of reading: a place (`earliest`, `latest`), an offset, or a time."""

    place: str = "earliest"
    offset: int | None = None
    timestamp_ms: int | None = None

    def offset_in(self, client: Client, topic: str, queue: Queue) -> int:
        """Return the offset this start means in one queue."""
        if self.offset is not None:
            return self.offset
        if self.timestamp_ms is not None:
            return client.search_offset(topic, queue, self.timestamp_ms)
        if self.place == "latest":
            return client.max_offset(topic, queue)
        return client.min_offset(topic, queue)


def parse_start(text: str, option: str = "--from") -> Start:
    """Read `--from`, or another option that names a place in a queue. Raises `UsageError`."""
    text = text.strip()
    word = text.lower()
    if word in EARLIEST or word in LATEST:
        return Start("earliest" if word in EARLIEST else "latest")
    if text.startswith("offset:"):
        number = text.removeprefix("offset:")
        if number.isascii() and number.isdigit():
            return Start(offset=int(number))
    elif text.isascii() and text.isdigit():
        if int(text) < TIMESTAMP_MIN:
            raise UsageError(
                f"{option} {text}: for an offset write offset:{text}; as milliseconds since 1970 it would be long ago"
            )
        return Start(timestamp_ms=int(text))
    else:
        try:
            return Start(timestamp_ms=int(datetime.fromisoformat(text).timestamp() * 1000))
        except ValueError:
            pass
    near = get_close_matches(word, (*EARLIEST, *LATEST), 1, 0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(
        f"{option} {text!r} is none of: earliest, latest, offset:N (as in offset:3), a time such as "
        "2026-01-31T12:00:00, or milliseconds since 1970" + hint
    )


def parse_moment(text: str, option: str) -> int:
    """Read a time, as ms since 1970. Raises `UsageError`."""
    with contextlib.suppress(UsageError):  # which would name places that are no times
        place = parse_start(text, option)
        if place.timestamp_ms is not None:
            return place.timestamp_ms
    raise UsageError(
        f"{option} {text!r} is no time; write it as in 2026-01-31T12:00:00, or as milliseconds since 1970"
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """The queues to read, and the start in each."""

    sources: Sequence[TopicQueue]
    start: Start
    subscription: str = "*"
    follow: bool = False
    count_max: int | None = None
    discover: Callable[[], Sequence[TopicQueue]] | None = None
    """Looks up what there is to read now, while following."""
    sql: str | None = None
    """An expression over properties, in place of a subscription to tags."""


def choose_sources(
    client: Client, topics: Sequence[str], queue_id: int | None, broker: str | None
) -> list[TopicQueue]:
    """Return the queues of the topics, or of those that match a pattern. Raises `UsageError` when that is none."""
    patterns = [topic for topic in topics if _PATTERN.search(topic)]
    known = client.topics() if patterns else ()
    named = [topic for topic in topics if topic not in patterns]
    matching = [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not named and not matching:
        raise UsageError(f"no topic matches {' or '.join(patterns)}; `ropewalk admin topic list` shows them")
    sources: list[TopicQueue] = []
    for topic in named:
        try:
            queues = client.read_queues(topic)
        except Rejected as exc:
            if near := near_topics(client, topic):
                raise error_for(exc.code or 0, f"{exc.remark}; did you mean {near[0]}?") from exc
            raise
        chosen = choose_queues(queues, topic, queue_id, broker)
        sources += [TopicQueue(topic, queue) for queue in chosen]
    for topic in matching:
        sources += [
            TopicQueue(topic, queue)
            for queue in client.read_queues(topic)
            if queue_id in (None, queue.queue_id) and broker in (None, queue.broker_name)
        ]
    if not sources:
        raise UsageError(f"none of {', '.join(matching)} has such a queue")
    return sorted(set(sources))


def wait_for_sources(
    choose: Callable[[], list[TopicQueue]], forget_routes: Callable[[], None], interrupts: Interrupts
) -> tuple[list[TopicQueue], bool]:
    """Return the queues that `choose` returns once every topic is there, and whether one had to be waited for.

    Raises `KeyboardInterrupt` at Ctrl-C, and what `choose` does of everything else.
    """
    waited = False
    while True:
        try:
            return choose(), waited
        except Rejected as exc:
            if exc.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            if not waited:
                note(f"{exc.remark}: waiting for the topic, Ctrl-C ends")
        waited = True
        with interrupts.while_waiting():
            time.sleep(RETRY_PAUSE_S)
        forget_routes()


_PATTERN = re.compile(r"[*?\[]")


def consume(
    client: Client, reading: Reading, handle: Callable[[TopicQueue, Record], None], interrupts: Interrupts
) -> int:
    """Hand every message to `handle`. Returns how many; at Ctrl-C too (`interrupts.requested` tells)."""
    if reading.count_max == 0:
        return 0
    handled = 0
    messages = _follow(client, reading, interrupts) if reading.follow else _to_the_end(client, reading)
    matches = tag_matcher(reading.subscription)
    while True:
        try:
            with interrupts.while_waiting():
                found = next(messages, None)
        except KeyboardInterrupt:
            return handled
        if found is None:
            return handled
        if matches(found[1]):
            handle(*found)
            handled += 1
            if handled == reading.count_max:
                return handled


def check_tags(subscription: str) -> None:
    """Refuse a subscription that a broker would misread: a tag is missing, or it is SQL. Raises `UsageError`."""
    text = subscription.strip()
    if text in ("", "*"):
        return
    if not all(tag.strip() for tag in text.split("||")):
        raise UsageError(
            f'--tags {subscription!r}: a tag is missing beside ||; write it as in "new || changed"'
        )
    if _MORE_THAN_TAGS.search(text):
        raise UsageError(
            f'--tags {subscription!r}: tags are names, as in "new || changed"; an expression over properties is --sql'
        )


def check_sql(expression: str | None, tags: str) -> None:
    """Refuse an expression that no broker would take, or one beside tags. Raises `UsageError`."""
    if expression is None:
        return
    if tags.strip() not in ("", "*"):
        raise UsageError(
            "--tags and --sql do not go together: TAGS is a property like others, as in TAGS = 'new'"
        )
    try:
        compile_filter(expression)
    except SqlSyntaxError as exc:
        raise UsageError(f"--sql {expression!r}: {exc}") from exc


_MORE_THAN_TAGS = re.compile(r"[=<>'()]|(?<!\|)\|(?!\|)|\s(?:is|in|between|like|and|or|not)\s", re.IGNORECASE)


def tag_matcher(subscription: str) -> Callable[[Record], bool]:
    """Return an exact test of a record's tag: brokers compare hashes only."""
    if subscription.strip() in ("", "*"):
        return lambda record: True
    wanted = {tag.strip() for tag in subscription.split("||")} - {""}
    return lambda record: record.properties.get(P.TAGS) in wanted


def note_beyond(start: Start, ends: Mapping[TopicQueue, int], instead: str) -> None:
    """Note the queues that end before the offset that reading starts at, with the reading done instead."""
    assert start.offset is not None
    beyond = {source: end for source, end in sorted(ends.items()) if end < start.offset}
    if not beyond:
        return
    if len(beyond) == len(ends):
        where = f"every queue: the longest holds offsets below {max(beyond.values())}"
    else:
        named = [f"{source.queue.broker_name} queue {source.queue.queue_id}" for source in beyond]
        where = ", ".join(named[:NAMED_MAX]) + (" and others" if len(named) > NAMED_MAX else "")
    note(f"offset {start.offset} is beyond the end of {where}; {instead}")


def _to_the_end(client: Client, reading: Reading) -> Iterator[tuple[TopicQueue, Record]]:
    # All ends are asked for before anything is read: what arrives while we read is not part of it.
    ends = {source: client.max_offset(source.topic, source.queue) for source in reading.sources}
    if reading.start.offset is not None:
        note_beyond(reading.start, ends, "nothing is read there (--follow would start at the end)")
    walks = [_walk(client, reading, source, end) for source, end in ends.items()]
    return heapq.merge(*walks, key=lambda found: (found[1].store_timestamp, found[1].offset))


def _walk(
    client: Client, reading: Reading, source: TopicQueue, end: int
) -> Iterator[tuple[TopicQueue, Record]]:
    """One queue up to `end`. The next pull is under way while the last one's messages are handled."""
    offset = reading.start.offset_in(client, source.topic, source.queue)
    pending: PendingPull | None = None
    standstill = Standstill()
    while offset < end:
        if pending is None:
            pending = _pull(client, reading, source, offset)
        began = time.monotonic()
        result = client.finish_pull(pending)
        pending = None
        moved = has_moved(result.status, offset, result.next_offset)
        offset = _next_offset(source, offset, result)
        if result.status is PullStatus.NO_NEW_MESSAGE:
            return
        if rest_s := standstill.rest_s(time.monotonic() - began, moved=moved):
            if standstill.goes_on:
                raise RemoteProtocolError(f"{_shown(source)} ends at {end}, and {STANDSTILL}")
            time.sleep(rest_s)
        if offset < end:
            pending = _pull(client, reading, source, offset)
        for record in result.records:
            if record.queue_offset >= end:
                return
            yield source, record


def _follow(client: Client, reading: Reading, interrupts: Interrupts) -> Iterator[tuple[TopicQueue, Record]]:
    """Return every queue at once, for ever. A broker that goes away is looked for again."""
    offsets = {
        source: reading.start.offset_in(client, source.topic, source.queue) for source in reading.sources
    }
    if reading.start.offset is not None:
        ends = {source: client.max_offset(source.topic, source.queue) for source in reading.sources}
        note_beyond(reading.start, ends, "reading starts at the end there")
        offsets = {source: min(offset, ends[source]) for source, offset in offsets.items()}
    pending: dict[TopicQueue, tuple[PendingPull, float]] = {}
    standstills = defaultdict[TopicQueue, Standstill](Standstill)
    resting: dict[TopicQueue, float] = {}
    stuck: set[TopicQueue] = set()
    lost = False
    look_again_at = time.monotonic() + DISCOVER_S
    while True:
        try:
            if time.monotonic() >= look_again_at:
                for source in _discovered(client, reading):
                    if source not in offsets:
                        offsets[source] = client.min_offset(source.topic, source.queue)
                look_again_at = time.monotonic() + DISCOVER_S
            for source, offset in offsets.items():
                if source not in pending and resting.get(source, 0.0) <= time.monotonic():
                    resting.pop(source, None)
                    pull = _pull(client, reading, source, offset, SUSPEND_MS)
                    pending[source] = pull, time.monotonic()
            if lost:
                note("connected again")
                lost = False
            for source, result in _answers(client, pending, min((look_again_at, *resting.values()))):
                now, (_, began) = time.monotonic(), pending.pop(source)
                moved = has_moved(result.status, offsets[source], result.next_offset)
                if rest_s := standstills[source].rest_s(now - began, moved=moved):
                    resting[source] = now + rest_s
                    if standstills[source].goes_on and source not in stuck:
                        stuck.add(source)
                        note(f"{_shown(source)}: {STANDSTILL}")
                offsets[source] = _next_offset(source, offsets[source], result)
                for record in result.records:
                    yield source, record
        except (Unreachable, OutcomeUnknown, TryLater, TryElsewhere) as exc:
            if not lost:
                note(f"{exc}; trying again until it is back")
            lost = True
            pending.clear()
            client.close()
            client.forget_routes()
            time.sleep(RETRY_PAUSE_S)


def _discovered(client: Client, reading: Reading) -> Sequence[TopicQueue]:
    """Find the queues to read by now; none is new while no name server can tell."""
    if reading.discover is None:
        return ()
    try:
        client.renew_routes()
        return reading.discover()
    except (NoNameServer, OutcomeUnknown, TryLater, UsageError, Rejected):
        return ()


def _answers(
    client: Client, pending: dict[TopicQueue, tuple[PendingPull, float]], until: float
) -> list[tuple[TopicQueue, PullResult]]:
    """Wait until something answers; every answer that is there, or none once it is `until`.

    A broker holds a pull for the time asked and a little more. One that says nothing for longer is
    not there any more, whatever its socket says: `OutcomeUnknown`.
    """
    while True:
        answered = []
        for source, (pull, _) in pending.items():
            answer = pull.connection.poll_answer(pull.opaque)
            if answer is not None:
                answered.append((source, client.read_pull(pull, answer)))
        now = time.monotonic()
        if answered or now >= until:
            return answered
        if not pending:
            time.sleep(until - now)
            return []
        oldest = min(started for _, started in pending.values())
        deadline = oldest + SUSPEND_MS / 1000 + HOLD_SLACK_S
        if now >= deadline:
            raise OutcomeUnknown("a broker does not answer a held pull")
        connections = {id(pull.connection): pull.connection for pull, _ in pending.values()}
        receive_any(connections.values(), min(deadline, until) - now)


def _pull(
    client: Client, reading: Reading, source: TopicQueue, offset: int, suspend_ms: int = 0
) -> PendingPull:
    return client.start_pull(
        source.topic,
        source.queue,
        offset,
        PULL_COUNT,
        subscription=reading.subscription,
        sql=reading.sql,
        suspend_ms=suspend_ms,
    )


def _shown(source: TopicQueue) -> str:
    return f"{source.queue.broker_name} queue {source.queue.queue_id}"


def _next_offset(source: TopicQueue, offset: int, result: PullResult) -> int:
    if result.status is PullStatus.OFFSET_ILLEGAL and offset < result.min_offset:
        note(
            f"{_shown(source)}: {counted(result.min_offset - offset)} before "
            f"offset {result.min_offset} are no longer stored; going on from there"
        )
    return result.next_offset


# What a message looks like


def received_json(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as a consumer met it, in the form of `message_json`."""
    document: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.source.queue.broker_name,
        "queueId": message.source.queue.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "keys": " ".join(message.keys) or None,
        "tags": message.tags,
        "properties": dict(message.properties),
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "reconsumeTimes": message.reconsume_times,
    }
    return document | _body_json(*decompress_body(*message.wire_body))


def _body_json(body: bytes, trouble: str | None) -> dict[str, str]:
    try:
        document = {"body": body.decode()}
    except UnicodeDecodeError:
        document = {"bodyBase64": base64.b64encode(body).decode()}
    return document | ({"note": trouble} if trouble else {})


def message_json(queue: Queue, record: Record) -> dict[str, Any]:
    """Return a message as `--format json` prints it. `produce --json-lines` reads the same form."""
    body, trouble = decompress_body(record.sys_flag, record.body)
    document: dict[str, Any] = {
        "topic": record.topic,
        "broker": queue.broker_name,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": record.uniq_key or record.msg_id,
        "offsetMsgId": record.msg_id,
        "keys": record.properties.get(P.KEYS),
        "tags": record.properties.get(P.TAGS),
        "properties": record.properties,
        "bornTimestamp": record.born_timestamp,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "reconsumeTimes": record.reconsume_times,
    }
    return document | _body_json(body, trouble)


def host_text(host: tuple[str, int]) -> str:
    """Return `ip:port`, as RocketMQ prints it."""
    return f"{host[0]}:{host[1]}"


@dataclass(frozen=True, slots=True)
class Form:
    """The output format of messages, one for each line (a text body may hold line ends of its own)."""

    name: str
    to_terminal: bool
    with_topic: bool = False
    """Begin a line with the topic and a tab: for several topics at once."""

    def record(self, source: TopicQueue, record: Record) -> bytes:
        """Return a message as it is stored."""
        if self.name == "json":
            return json_line(message_json(source.queue, record))
        body, trouble = decompress_body(record.sys_flag, record.body)
        return self._line(source.topic, record.msg_id, body, trouble)

    def received(self, message: ReceivedMessage) -> bytes:
        """Return a message as a consumer met it."""
        if self.name == "json":
            return json_line(received_json(message))
        return self._line(message.topic, message.message_id, *decompress_body(*message.wire_body))

    def _line(self, topic: str, message_id: str, body: bytes, trouble: str | None) -> bytes:
        if trouble:
            note(f"{message_id}: {trouble}")
        head = f"{printable(topic)}\t".encode() if self.with_topic else b""
        if self.name == "hex":
            return head + body.hex().encode() + b"\n"
        return head + (body_text(body).encode() if self.to_terminal else body) + b"\n"


def parse_form(text: str) -> str:
    """Read `--format`. Raises `UsageError`."""
    if text not in ("text", "json", "hex"):
        raise UsageError(f"--format {text!r} is none of: text, json, hex")
    return text


def body_text(body: bytes) -> str:
    """Return a body that cannot move the cursor, change colours or ring the bell of a terminal."""
    return printable(body.decode(errors="backslashreplace"), keep="\n\t")


PULL_COLUMNS = ("offset", "msgId", "tags", "keys", "stored", "body")


def pull_json(queue: Queue, result: PullResult) -> dict[str, Any]:
    """Return one pull's answer as `ropewalk pull --json` prints it."""
    return {
        "status": result.status.name,
        "broker": queue.broker_name,
        "queueId": queue.queue_id,
        "nextOffset": result.next_offset,
        "minOffset": result.min_offset,
        "maxOffset": result.max_offset,
        "messages": [message_json(queue, record) for record in result.records],
    }


def pull_rows(result: PullResult, body_width: int = 60) -> list[tuple[object, ...]]:
    """Return one pull's messages as rows of `PULL_COLUMNS`."""
    return [
        (
            record.queue_offset,
            record.uniq_key or record.msg_id,
            record.properties.get(P.TAGS, ""),
            record.properties.get(P.KEYS, ""),
            time_text(record.store_timestamp),
            shortened(decompress_body(record.sys_flag, record.body)[0], body_width),
        )
        for record in result.records
    ]


def shortened(body: bytes, width: int) -> str:
    """Return the beginning of a body, on one line."""
    text = body_text(body[: width * 4]).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= width and len(body) <= width * 4 else text[: width - 1] + "…"


def time_text(timestamp_ms: int) -> str:
    """Return a time of the log in the reader's own zone, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(sep=" ", timespec="milliseconds")
