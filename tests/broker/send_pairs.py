"""Two brokers that get the same bytes, one of them without the fast way: what both store and answer is the same."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.state import statistics
from broker.state.statistics import TopicMeter
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.record import Record, decode_record, parse_message_id
from ropewalk.format.remoting import Command
from store.io.disk import MappedFile
from tests.broker.harness import Client, FlushGate, InProcess, config_of, without_fsync

WAITING_TOPICS = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC")


@dataclass
class Pair:
    """Two brokers that get the same bytes; `plain` has no fast way."""

    fast: InProcess
    plain: InProcess
    gate: FlushGate

    def clients(self) -> tuple[Client, Client]:
        return self.fast.connect(), self.plain.connect()


@contextmanager
def pair_of(flush: str, folder: Path) -> Iterator[Pair]:
    """Both of them under `flush`, behind one gate."""
    gate = FlushGate()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(MappedFile, "sync", lambda file: gate.sync(file))  # noqa: PLW0108 - to be bound
        without_fsync(patch)
        sizes = {"maxMessageSize": 400, "mappedFileSizeCommitLog": 256 << 10}
        fast, plain = (
            stack.enter_context(
                InProcess(
                    config_of(folder / name, flushDiskType=flush, fastPathEnable=name == "fast", **sizes)
                )
            )
            for name in ("fast", "plain")
        )
        # So that records of one run are of several classes.
        patch.setattr(statistics, "SIZE_BOUNDS", (200, 250, 280, 330, 420, 580))
        stack.callback(gate.open)
        yield Pair(fast, plain, gate)


def counted(running: InProcess, *, sizes: bool = True) -> Counter[tuple[object, ...]]:
    """What a broker tells of its topics' messages and their sizes, and how often it answered what with what."""
    found = Counter[tuple[object, ...]]()
    for topic, meter in running.broker.statistics.meters("TOPIC_PUT_NUMS"):
        assert isinstance(meter, TopicMeter)
        totals = [meter.messages, sum(meter.classes)]
        if sizes:
            totals += meter.bytes, meter.classes_total, *meter.classes
        found.update({(topic, n): total for n, total in enumerate(totals)})
    for one in running.broker.rpc_times.series():
        found[one.request, one.response, one.result] += sum(one.counts)
    return found


def comparable(running: InProcess, answer: Command, own_key: bool) -> object:
    """An answer without what two brokers choose or place differently; its id must be its record's."""
    ext = dict(answer.ext)
    if "msgId" in ext:
        found = record_of(running, ext["msgId"].split(",")[0])
        assert str(found.queue_offset) == ext["queueOffset"]
        if found.topic != "%DLQ%g":  # who gives a message up is told of the queue that it was meant for
            assert found.properties.get("REAL_QID", str(found.queue_id)) == ext["queueId"]
        ext["msgId"] = str(len(ext["msgId"].split(",")))
    if not own_key:
        ext.pop("transactionId", None)
    return answer.opaque, answer.code, answer.remark, answer.flag, ext


def record_of(running: InProcess, msg_id: str) -> Record:
    """The record that a message's id names; the entry of its queue has to name it too."""
    store, offset = running.broker.store, parse_message_id(msg_id)[2]
    segment = store.log.find(offset)
    assert segment is not None
    position = offset - segment.base_offset
    size = int.from_bytes(segment.map[position : position + 4], "big")
    record = decode_record(segment.map[position : position + size])
    queue = store.find_queue(record.topic, record.queue_id)
    assert queue is not None and record.queue_offset < queue.readable
    assert (record.msg_id, queue.read(record.queue_offset)[0]) == (msg_id, offset)
    return record


def records_of(running: InProcess) -> list[Record]:
    return [
        record
        for topic in ("T", "U", "M", "%RETRY%g", "%DLQ%g", *WAITING_TOPICS)
        for queue_id in range(8)
        for record in running.stored(topic, queue_id, last=40)
    ]


def facts(record: Record, own_key: bool) -> object:
    properties = dict(record.properties)
    if not own_key:
        properties.pop("UNIQ_KEY", None)
    return (
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.reconsume_times,
        record.body,
        set(properties.items()),
    )


def stored_since(running: InProcess, mark: int) -> list[Record]:
    """What stands in the log behind `mark`, in its order."""
    return sorted((r for r in records_of(running) if r.offset >= mark), key=lambda r: r.offset)


def outcome(
    running: InProcess, client: Client, data: bytes, mark: int, *, sizes: bool = True
) -> tuple[bool, list[str], list[object], Counter[tuple[object, ...]]]:
    """What bytes lead to: whether the client is hung up on, what it was answered, what stands behind `mark`.

    And what was counted, less `sizes` where properties without a name can be stored the one way and not the other.
    """
    before = counted(running, sizes=sizes)
    try:
        client.feed(data)
        hung_up = False
    except RemoteProtocolError:
        hung_up = True
    assert not shown_before_flush(running)
    running.settle()
    answers = sorted(json.dumps(comparable(running, c, True)) for c in client.answers())
    new = [facts(r, True) for r in stored_since(running, mark)]
    return hung_up, answers, new, counted(running, sizes=sizes) - before


def shown_before_flush(running: InProcess) -> list[tuple[str, int]]:
    """Under SYNC_FLUSH the queues that show a message which is not flushed yet, as far as the loop has heard."""
    store = running.broker.store
    if not store.config.sync_flush:
        return []
    found = []
    for topic, queues in store.queues.items():
        for queue in queues.values():
            if queue.readable > queue.min_offset:
                offset, size, _tags = queue.read(queue.readable - 1)
                if offset + size > store.log.flushed_offset:
                    found.append((topic, queue.queue_id))
    return found


def with_header(frame: bytes, body: bytes, old: bytes, new: bytes) -> bytes:
    """The frame with the first `old` of its header become `new`, and its lengths right again."""
    frame = frame.replace(old, new, 1)
    header = len(frame) - len(body) - 8
    return (len(frame) - 4).to_bytes(4, "big") + header.to_bytes(4, "big") + frame[8:]


def taken_queues(running: InProcess, topic: str = "T") -> list[object]:
    """What the store says of each queue of a topic with messages: its bounds, and where its last entry leads."""
    found: list[object] = []
    for queue in running.broker.store.queues.get(topic, {}).values():
        if not queue.next_offset:
            continue
        offset, size, tags = queue.read(queue.next_offset - 1)
        assert queue.max_physical == offset + size
        found.append((queue.queue_id, queue.next_offset, queue.readable, size, tags))
    return found
