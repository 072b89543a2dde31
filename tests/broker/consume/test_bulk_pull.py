"""The bulk pull: many messages in one answer, the same bytes that ordinary pulls bring, and nobody waits for it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.remoting.connection import Connection
from broker.remoting.shell import Shell
from broker.state.topics import TopicConfig
from ropewalk.codes import Permission, RequestCode, ResponseCode
from ropewalk.format.record import Record, decode_records
from ropewalk.format.remoting import JSON, ROCKETMQ, Command
from store.io.disk import MappedFile
from store.read.bulk import BulkReader, BulkResult
from tests.broker.harness import Client, InProcess, request, send_ext
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
BULK = RequestCode.ROPEWALK_BULK_PULL
V2 = RequestCode.SEND_MESSAGE_V2
KINDS = pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])


def bulk_ext(topic: str, offset: object = 0, **changes: object) -> dict[str, object]:
    return {
        "consumerGroup": "cg",
        "topic": topic,
        "queueId": 0,
        "offset": offset,
        "endOffset": 1 << 40,
        **changes,
    }


def four(answer: Command) -> tuple[int, int, int, int]:
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    return tuple(int(answer.ext[name]) for name in names)  # type: ignore[return-value]


def fill(client: Client, counts: dict[str, int], *, size: int = 20, queues: int = 1, tags: str = "") -> None:
    """Interleave messages of several topics (and queues), as a log really looks."""
    stream = []
    for n in range(max(counts.values()) * queues):
        for topic, count in counts.items():
            if n < count * queues:
                tag = tags.split(",")[n % len(tags.split(","))] if tags else ""
                ext = send_ext(topic, queueId=n % queues, properties={"TAGS": tag} if tag else {})
                stream.append(
                    request(V2, ext, (b"%s-%06d." % (topic.encode(), n)).ljust(size, b"."), opaque=n)
                )
    for at in range(0, len(stream), 500):
        client.feed(b"".join(stream[at : at + 500]))
        assert {c.code for c in client.answers()} == {0}


def by_pulls(client: Client, topic: str, queue_id: int = 0, **header: object) -> bytes:
    data, offset = b"", 0
    while (answer := client.pull(topic, queueId=queue_id, queueOffset=offset, **header)).code in (0, 20):
        data += answer.body
        offset = int(answer.ext["nextBeginOffset"])
    return data


def by_bulk(client: Client, topic: str, queue_id: int = 0, **header: object) -> tuple[bytes, int]:
    data, offset, answers = b"", 0, 0
    while True:
        answer = client.call(BULK, {**bulk_ext(topic, offset, queueId=queue_id), **header})
        if answer.code not in (0, 20):
            assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
            return data, answers
        answers += 1
        data += answer.body
        assert int(answer.ext["nextBeginOffset"]) > offset
        offset = int(answer.ext["nextBeginOffset"])


@pytest.mark.parametrize("size", [20, 3000, 40_000], ids=["small", "page", "larger-than-a-view"])
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_bulk_pull_brings_the_bytes_that_pulls_bring(
    start_broker: StartBroker, size: int, cold: bool
) -> None:
    running = start_broker(mappedFileSizeCommitLog=1 << 20)
    if cold:
        running.broker.bulk_reader.warm_window = 0
    client = running.connect()
    fill(client, {"T": 60, "U": 35}, size=size, queues=2)
    for topic in ("T", "U"):
        for queue_id in (0, 1):
            data, answers = by_bulk(client, topic, queue_id)
            assert data == by_pulls(client, topic, queue_id)
            assert answers == 1
    assert len(decode_records(by_bulk(client, "T")[0])) == 60


def test_adjacent_records_leave_as_one_view_of_the_log(running: InProcess) -> None:
    client = running.connect()
    fill(client, {"T": 100}, size=1000)
    sent: list[object] = []
    client.link.send = sent.append  # type: ignore[method-assign,assignment]
    client.feed(request(BULK, bulk_ext("T")))
    head, view = sent
    assert isinstance(head, bytes)
    assert isinstance(view, memoryview)
    (segment,) = running.broker.store.log.segments
    assert view.obj is segment.map
    assert len(decode_records(bytes(view))) == 100


@KINDS
def test_the_answer_speaks_the_language_of_the_request(client: Client, kind: int) -> None:
    fill(client, {"T": 3})
    answer = client.call(BULK, bulk_ext("T", 1), serialize_type=kind)
    assert (answer.code, answer.remark, answer.serialize_type) == (0, "FOUND", kind)
    assert four(answer) == (0, 3, 0, 3)
    assert [r.queue_offset for r in decode_records(answer.body)] == [1, 2]


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0),
        (3, ResponseCode.PULL_NOT_FOUND, 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, 3),
    ],
)
def test_an_offset_outside_the_queue_is_told_where_to_go(
    client: Client, offset: int, code: int, next_offset: int
) -> None:
    fill(client, {"T": 3})
    answer = client.call(BULK, bulk_ext("T", offset))
    assert answer.code == code
    assert four(answer) == (0, next_offset, 0, 3)
    assert answer.body == b""


def test_an_end_and_a_size_bound_the_answer_and_the_first_message_always_comes(running: InProcess) -> None:
    client = running.connect()
    fill(client, {"T": 50}, size=1000)

    def offsets(**header: object) -> list[int]:
        answer = client.call(BULK, {**bulk_ext("T"), **header})
        found = [r.queue_offset for r in decode_records(answer.body)]
        assert int(answer.ext["nextBeginOffset"]) == found[-1] + 1
        return found

    assert offsets(endOffset=7) == list(range(7))
    assert offsets(offset=5, endOffset=7) == [5, 6]
    few = offsets(maxBytes=5000)
    assert few == list(range(len(few)))
    assert 3 <= len(few) <= 4
    assert offsets(maxBytes=1) == [0]


def test_the_brokers_own_bound_counts_when_it_is_the_smaller_one(start_broker: StartBroker) -> None:
    client = start_broker(bulkReadMaxBytes=65_536).connect()
    fill(client, {"T": 100}, size=1000)
    answer = client.call(BULK, bulk_ext("T", maxBytes=1 << 30))
    assert 50_000 < len(answer.body) <= 65_536


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_tags_are_filtered_by_the_queue_entry_and_the_offset_moves_over_the_others(
    running: InProcess, cold: bool
) -> None:
    if cold:
        running.broker.bulk_reader.warm_window = 0
    client = running.connect()
    fill(client, {"T": 40}, tags="A,B,C")
    answer = client.call(BULK, bulk_ext("T", subscription="A || C"))
    assert {r.properties["TAGS"] for r in decode_records(answer.body)} == {"A", "C"}
    assert four(answer) == (0, 40, 0, 40)
    nothing = client.call(BULK, bulk_ext("T", subscription="D"))
    assert (nothing.code, nothing.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert four(nothing) == (0, 40, 0, 40)


@pytest.mark.parametrize(
    ("ext", "code", "says"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "nowhere"),
        ({"queueId": 9}, ResponseCode.INVALID_PARAMETER, "queueId[9]"),
        ({"offset": 4, "endOffset": 4}, ResponseCode.INVALID_PARAMETER, "from 4 to 4 is empty"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "names no tag"),
        ({"offset": None}, ResponseCode.SYSTEM_ERROR, "offset"),
        ({"topic": "closed"}, ResponseCode.NO_PERMISSION, "closed"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    running: InProcess, ext: dict[str, object], code: int, says: str
) -> None:
    running.broker.topics.update(TopicConfig("closed", 1, 1, Permission.WRITE), START_MS)
    client = running.connect()
    fill(client, {"T": 3})
    answer = client.call(BULK, {**bulk_ext("T"), **ext})
    assert answer.code == code
    assert says in (answer.remark or "")


def test_cold_bytes_are_read_off_the_loop_and_sends_go_on(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.broker.bulk_reader.warm_window = 0
    client = running.connect()
    fill(client, {"T": 20}, size=1000)
    gate, threads, real = threading.Event(), set[str](), MappedFile.read_at

    def slow(file: MappedFile, position: int, size: int) -> bytes:
        threads.add(threading.current_thread().name)
        assert gate.wait(20)
        return real(file, position, size)

    monkeypatch.setattr(MappedFile, "read_at", slow)
    opaque = client.ask(BULK, bulk_ext("T"))
    other = running.connect()
    assert other.send("T").code == 0
    assert other.pull("T").code == 0
    assert not client.answers()
    gate.set()
    assert len(decode_records(client.answer(opaque).body)) == 20
    assert threads == {"ropewalk-bulk-reader"}


def test_too_many_cold_reads_are_answered_busy_at_once(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.broker.bulk_reader.warm_window = 0
    client = running.connect()
    fill(client, {"T": 2})
    gate, real = threading.Event(), MappedFile.read_at
    monkeypatch.setattr(MappedFile, "read_at", lambda f, p, s: real(f, p, s) if gate.wait(20) else b"")
    for _ in range(8):
        client.ask(BULK, bulk_ext("T"))
    assert not client.answers()
    client.ask(BULK, bulk_ext("T"))
    (busy,) = client.answers()
    assert busy.code == ResponseCode.SYSTEM_BUSY
    gate.set()
    answers: list[Command] = []

    def all_came() -> bool:
        answers.extend(client.answers())
        return len(answers) == 8

    running.until(all_came)
    assert {answer.code for answer in answers} == {0}


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_an_entry_that_names_no_record_of_its_queue_leaves_a_gap(running: InProcess, cold: bool) -> None:
    if cold:
        running.broker.bulk_reader.warm_window = 0
    client = running.connect()
    fill(client, {"T": 10, "U": 10}, size=3000)
    queue, other = (running.broker.store.find_queue(topic, 0) for topic in ("T", "U"))
    assert queue is not None
    assert other is not None
    queue.tail[4 * 20 : 5 * 20] = other.tail[5 * 20 : 6 * 20]
    answer = client.call(BULK, bulk_ext("T"))
    assert [r.queue_offset for r in decode_records(answer.body)] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert four(answer) == (0, 10, 0, 10)


def test_a_disk_error_is_busy_and_not_the_end_of_the_process(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.broker.bulk_reader.warm_window = 0
    client = running.connect()
    fill(client, {"T": 2})

    def broken(file: MappedFile, position: int, size: int) -> bytes:
        raise OSError("no such luck")

    monkeypatch.setattr(MappedFile, "read_at", broken)
    assert client.call(BULK, bulk_ext("T")).code == ResponseCode.SYSTEM_BUSY
    assert running.broker.bulk_reader.failed == 1


def test_old_entries_are_read_off_the_loop_too(start_broker: StartBroker) -> None:
    running = start_broker(mappedFileSizeCommitLog=8 << 20, mappedFileSizeConsumeQueue=20_000)
    client = running.connect()
    fill(client, {"T": 9000})

    def written() -> bool:
        running.tick(1000)
        queue = running.broker.store.find_queue("T", 0)
        return queue is not None and queue.tail_base > 2000

    running.until(written)
    data, answers = by_bulk(client, "T")
    records: list[Record] = decode_records(data)
    assert [r.queue_offset for r in records] == list(range(9000))
    assert 9 <= answers <= 12  # a file of entries at a time


def test_the_port_without_pulls_serves_no_bulk_pulls(running: InProcess) -> None:
    answer = running.connect(fast=True).call(BULK, bulk_ext("T"))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_broker_that_must_not_be_read_says_busy(running: InProcess) -> None:
    client = running.connect()
    fill(client, {"T": 3})
    running.broker.replication.limits.unread = "not before the logs are compared"
    answer = client.call(BULK, bulk_ext("T"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "not before the logs are compared")
    running.broker.replication.limits.unread = None
    assert client.call(BULK, bulk_ext("T")).code == 0


def test_a_range_is_counted_as_read(running: InProcess) -> None:
    client = running.connect()
    fill(client, {"T": 7})
    before = running.broker.statistics.gets.messages
    client.call(BULK, bulk_ext("T"))
    assert running.broker.statistics.gets.messages == before + 7


class _Mute:
    """A session that says nothing."""

    has_backlog = False

    def receive(self, data: bytes) -> None: ...

    def resume(self) -> None: ...

    def closed(self) -> None: ...


class _Idle:
    peer_reply_expected = False
    next_turn_s = None

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...

    def on_wakeup(self) -> None: ...

    def on_priority_served(self) -> None: ...


def test_views_that_a_slow_peer_leaves_behind_are_copied_so_that_they_never_grow_cold(tmp_path: Path) -> None:
    import socket

    shell = Shell(_Idle())
    made: list[Connection] = []

    def make(connection: Connection) -> _Mute:
        made.append(connection)
        return _Mute()

    port = shell.listeners.listen("127.0.0.1", 0, make)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        deadline = time.monotonic() + 30
        while not made:
            assert time.monotonic() < deadline
            shell.turn(shell.epoll.poll(0.01), time.monotonic())
        (connection,) = made
        log = bytearray(range(256)) * 65_536  # 16 MiB, more than the kernel takes
        connection.send(memoryview(log))
        shell.flush()
        assert connection.out_size > 0
        assert any(memoryview(piece).obj is log for piece in connection.out)
        shell.sweep()
        assert not any(memoryview(piece).obj is log for piece in connection.out)
        expected = bytes(log)
        log.clear()  # nobody exports it any more: a bytearray would refuse
        got = bytearray()
        peer.setblocking(False)
        while len(got) < len(expected):
            assert time.monotonic() < deadline
            try:
                got += peer.recv(1 << 20)
            except BlockingIOError:
                shell.turn(shell.epoll.poll(0.01), time.monotonic())
        assert got == expected
    shell.close()


def test_a_view_outlives_the_segment_that_retention_removes(running: InProcess) -> None:
    client = running.connect()
    fill(client, {"T": 100}, size=1000)
    results: list[BulkResult | None] = []
    reader: BulkReader = running.broker.bulk_reader
    queue = running.broker.store.find_queue("T", 0)
    reader.get(queue, 0, 100, 1 << 20, None, results.append)
    (result,) = results
    assert result is not None
    (view,) = result.pieces
    before = bytes(view)
    (segment,) = running.broker.store.log.segments
    path = segment.file.path
    file = running.broker.context.disk.open_mapped(path)
    view = memoryview(file.map)[: len(before)]
    file.close()
    path.rename(path.with_suffix(".gone"))
    assert bytes(view) == before
    path.with_suffix(".gone").rename(path)
