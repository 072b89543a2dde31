"""Runs of plain sends: that the quick ways and the readable way are one, within a read and across a turn."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import send_columns, send_run
from ropewalk.codes import RequestCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.properties import parse_properties, tags_code
from ropewalk.format.record import Record, decode_record, decode_records, parse_message_id
from ropewalk.format.remoting import Command
from store.appending import Alike
from store.disk import MappedFile
from tests.broker.harness import (
    START_MS,
    UNIQ,
    Client,
    FlushGate,
    FullDisk,
    InProcess,
    config_of,
    pull_ext,
    request,
    send_ext,
    text_of,
    without_fsync,
)

StartBroker = Callable[..., InProcess]
V2 = RequestCode.SEND_MESSAGE_V2


@dataclass
class Pair:
    """Two brokers that get the same bytes; `plain` has no fast way."""

    fast: InProcess
    plain: InProcess
    gate: FlushGate

    def clients(self) -> tuple[Client, Client]:
        return self.fast.connect(), self.plain.connect()


@pytest.fixture(scope="module", params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    gate = FlushGate()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(MappedFile, "sync", lambda file: gate.sync(file))  # noqa: PLW0108 - to be bound
        without_fsync(patch)
        fast, plain = (
            stack.enter_context(
                InProcess(
                    config_of(
                        tmp_path_factory.mktemp(name),
                        flushDiskType=request.param,
                        maxMessageSize=400,
                        mappedFileSizeCommitLog=256 << 10,
                    )
                )
            )
            for name in ("fast", "plain")
        )
        plain.broker.handlers.run = None
        stack.callback(gate.open)
        yield Pair(fast, plain, gate)


_NAMES = (
    "TAGS KEYS UNIQ_KEY WAIT AWAIT DELAY XDELAY TRAN_MSG TIMER_DELAY_MS CLUSTER POP_CK a INNER_NUM __CRC32# "
    "XTAGS MY_UNIQ_KEY"
)
_names = st.sampled_from(["", *_NAMES.split()])
_values = st.sampled_from(
    ["A", "AB", "true", "false", "FALSE", "0", "-1", "3", "", "é", "😀", "\x01", "xTAGS\x01B", UNIQ, UNIQ]
)
_pieces = st.lists(
    st.one_of(
        st.tuples(_names, _values).map(lambda pair: f"{pair[0]}\x01{pair[1]}"),
        st.sampled_from(
            ["", "x", "loose", "\x01", "TAGS", f"UNIQ_KEY\x01{UNIQ}", "TAGS\x01A", "WAIT\x01false"]
        ),
    ),
    max_size=5,
)
_properties = st.builds(
    lambda pieces, plain, close: "\x02".join(pieces + plain) + close,
    _pieces,
    st.sampled_from([[], [f"UNIQ_KEY\x01{UNIQ}"], ["WAIT\x01true", f"UNIQ_KEY\x01{UNIQ}"]]),
    st.sampled_from(["", "\x02", "\x02\x02"]),
)
_plain = st.fixed_dictionaries({"properties": st.just(text_of({"UNIQ_KEY": UNIQ, "TAGS": "A"}))})
_odd = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "U", "a/b", "SELF_TEST_TOPIC", "%RETRY%g"]),
        "queueId": st.sampled_from([0, 1, 3, 4, 99, -1]),
        "sysFlag": st.sampled_from([0, 0, 1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x700, -1]),
        "flag": st.sampled_from([0, 5, -1, 2**31 - 1]),
        "reconsumeTimes": st.sampled_from([None, 0, 3]),
        "bornTimestamp": st.sampled_from([0, START_MS, -1]),
        "batch": st.sampled_from([False, False, True]),
        "properties": _properties,
    }
)
_one = st.tuples(
    st.one_of(_plain, _plain, _properties.map(lambda text: {"properties": text}), _odd),
    st.sampled_from([b"", b"x", b"y" * 300, b"z" * 401]),
    st.sampled_from([0, 0, 0, 1, 2]),
)


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
        for topic in ("T", "U", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX")
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


@given(messages=st.lists(_one, min_size=1, max_size=6))
def test_the_fast_way_and_the_readable_way_store_and_answer_the_same(
    pair: Pair, messages: list[tuple[dict[str, Any], bytes, int]]
) -> None:
    sync = pair.fast.broker.store.config.sync_flush
    pair.gate.open()
    for client in pair.clients():  # the topics exist and are known, so that the fast way is open
        for topic in ("T", "U"):
            for queue_id in range(4):
                client.send(topic, b"warm", queueId=queue_id)
    marks = [p.broker.store.log.end_offset for p in (pair.fast, pair.plain)]
    if sync:
        pair.gate.shut()
    stream = b"".join(
        request(
            V2,
            send_ext(header.get("topic", "T"), **{k: v for k, v in header.items() if k != "topic"}),
            body,
            opaque=n,
            flag=flag,
        )
        for n, (header, body, flag) in enumerate(messages)
    )
    own_key = ["UNIQ_KEY" in parse_properties(header["properties"]) for header, _body, _flag in messages]
    outcomes = []
    for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
        client.feed(stream)
        outcomes.append((running, client.answers(), client))
    at_once = [sorted(c.opaque for c in answers) for _running, answers, _client in outcomes]
    assert at_once[0] == at_once[1], "one way waits for the flush where the other does not"
    pair.gate.open()
    seen = []
    for mark, (running, answers, client) in zip(marks, outcomes, strict=True):
        running.settle()
        answers += client.answers()
        new = sorted((r for r in records_of(running) if r.offset >= mark), key=lambda r: r.offset)
        answered = sorted((comparable(running, c, own_key[c.opaque]) for c in answers), key=json.dumps)
        key_known = {r.offset: all(own_key) for r in new}
        seen.append((answered, [facts(r, key_known[r.offset]) for r in new]))
        queues = running.broker.store.queues
        for record in new:
            tags = queues[record.topic][record.queue_id].read(record.queue_offset)[2]
            if record.topic == "SCHEDULE_TOPIC_XXXX":
                assert tags == record.store_timestamp + 10_000
            else:
                assert tags == tags_code(record.properties.get("TAGS")), record.properties
    assert seen[0] == seen[1]


_byte = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255))
_replacements = st.sampled_from(
    [
        (b'"g":"1', b'"g":"0'),
        (b'"e":"1"', b'"e":"7"'),
        (b'"e":"1"', b'"e":"9"'),
        (b'"opaque":', b'"opaque":0'),
        (b'"opaque":9', b'"opaque":0'),
        (b'"flag":0', b'"code":31'),
        (b'"flag":0', b'"flag":2'),
        (b'"flag":0', b'"flag":1'),
        (b'"f":"0"', b'"f":"8"'),
        (b'"j":"0"', b'"j":"3"'),
        (UNIQ.encode(), UNIQ.encode()[:-1] + b'"'),
        (UNIQ.encode(), UNIQ.encode()[:-1] + b"\xff"),
        (UNIQ.encode(), b"TRAN_MSG" + UNIQ.encode()[8:]),
        (b"TAGS", b"KEYS"),
        (b'"b":"T"', b'"b":"U"'),
        (b'"c":"TBW102"', b'"c":' + b"[" * 5000),
        (b'"language"', b'"lan\x88uage"'),
        (b'"language":"JAVA"', b'"language":[]'),
        (b'"version":4', b'"version":0.4'),
    ]
)


@settings(max_examples=40)
@given(
    repeated=st.integers(2, 5),
    body=st.sampled_from([b"", b"x", b"y" * 400, b"z" * 401]),
    damage=st.one_of(st.none(), _byte, _replacements),
    flag=st.sampled_from([0, 0, 2]),
)
def test_a_header_like_a_learned_one_is_taken_as_it_would_be_without_it(
    pair: Pair, repeated: int, body: bytes, damage: tuple[Any, Any] | None, flag: int
) -> None:
    pair.gate.open()
    outcomes = []
    for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
        for topic in ("T", "U"):
            client.send(topic, b"warm", queueId=1)
        running.settle()
        mark = running.broker.store.log.end_offset
        properties = text_of({"UNIQ_KEY": UNIQ, "TAGS": "A"})
        for n in range(repeated):
            text = properties.replace(UNIQ, UNIQ[:-4] + f"{n:04d}")
            ext = send_ext("T", queueId=1, properties=text)
            client.feed(request(V2, ext, b"b" * n, opaque=10 + n, flag=flag))
        frame = request(V2, send_ext("T", queueId=1, properties=properties), body, opaque=99, flag=flag)
        head = int.from_bytes(frame[4:8], "big")
        if isinstance(damage, tuple) and isinstance(damage[0], bytes):
            frame = frame.replace(*damage, 1)
            header = len(frame) - len(body) - 8
            frame = (len(frame) - 4).to_bytes(4, "big") + header.to_bytes(4, "big") + frame[8:]
        elif damage is not None:
            at = 8 + int(damage[0] * head)
            frame = frame[:at] + bytes([damage[1]]) + frame[at + 1 :]
        try:
            client.feed(frame)
            hung_up = False
        except RemoteProtocolError:
            hung_up = True
        running.settle()
        answers = sorted(json.dumps(comparable(running, c, True)) for c in client.answers())
        new = sorted((r for r in records_of(running) if r.offset >= mark), key=lambda r: r.offset)
        outcomes.append((hung_up, answers, [facts(r, True) for r in new], len(client.answers())))
    assert outcomes[0] == outcomes[1]


_odd_ones = st.one_of(
    st.none(),
    st.sampled_from([b"topic", b"queue", b"key", b"opaque", b"body", b"flag", b"born", b"long body"]),
)


@settings(max_examples=60)
@given(
    count=st.integers(2, 24),
    odd=_odd_ones,
    place=st.floats(0, 1, exclude_max=True),
    spread=st.booleans(),
    size=st.sampled_from([2, 2, 400, 401]),
)
def test_a_run_that_is_taken_by_columns_is_stored_and_answered_as_one_by_one(
    pair: Pair, count: int, odd: bytes | None, place: float, spread: bool, size: int
) -> None:
    pair.gate.open()
    outcomes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_columns, "COLUMNS_MIN", 2)
        for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
            for queue_id in range(4):
                client.send("T", b"warm", queueId=queue_id)
                client.send("U", b"warm", queueId=queue_id)
            frames = []
            for n in range(3 + count):
                key = UNIQ[:-4] + f"{n:04d}"
                here = odd if n == 3 + int(place * count) else None
                ext = send_ext(
                    "U" if here == b"topic" else "T",
                    queueId=7 if here == b"queue" else n % 4 if spread else 2,
                    properties=text_of({"UNIQ_KEY": key, "TAGS": "A"}),
                    bornTimestamp=START_MS + (n if spread else 0) - (1 if here == b"born" else 0),
                    flag=5 if here == b"flag" else 0,
                )
                body = b"x" * 401 if here == b"long body" else (b"%02d" % n).ljust(2 if n < 3 else size, b"y")
                frame = request(V2, ext, body, opaque=1000 + n)
                if here == b"opaque":
                    frame = frame.replace(b'"opaque":10', b'"opaque":1e')
                elif here == b"key":  # text that ends the value, and another property behind it
                    frame = frame.replace(key.encode(), b"AAAAAAAAAAA\\u0002WAIT\\u0001false")
                frames.append(frame)
            for frame in frames[:3]:
                client.feed(frame)
            running.settle()
            client.answers()
            mark = running.broker.store.log.end_offset
            try:
                client.feed(b"".join(frames[3:]))
                hung_up = False
            except RemoteProtocolError:
                hung_up = True
            running.settle()
            answers = sorted(json.dumps(comparable(running, c, True)) for c in client.answers())
            new = sorted((r for r in records_of(running) if r.offset >= mark), key=lambda r: r.offset)
            outcomes.append((hung_up, answers, [facts(r, True) for r in new], taken_queues(running)))
    assert outcomes[0] == outcomes[1]


_WIDE = {
    b"unknown topic": (b'"b":"T"', b'"b":"V"'),
    b"spelled topic": (b'"b":"T"', b'"b":"\\u0054"'),
    b"two topics": (b'"c":"TBW102"', b'"c":"T","b":"U"'),
    b"two topics, one spelled": (b'"j":"', b'"\\u0062":"U","j":"'),
    b"no such queue": (b'"e":"', b'"e":"7'),
    b"spelled queue": (b'"e":"', b'"e":" '),
    b"other default": (b'"c":"TBW102"', b'"c":"TBW103"'),
    b"bits": (b'"f":"0"', b'"f":"8"'),
    b"born": (b'"g":"1', b'"g":"-'),
    b"key": (b"UNIQ_KEY", b"UNIQ_KEX"),
    b"opaque": (b'"opaque":10', b'"opaque":1e'),
    b"oneway": (b'"flag":0', b'"flag":2'),
}


@settings(max_examples=30)
@given(
    count=st.integers(2, 8),
    topics=st.lists(st.sampled_from("TU"), min_size=8, max_size=8),
    odd=st.one_of(st.none(), st.sampled_from(sorted(_WIDE)), st.sampled_from([b"retry", b"long body", b"longer"])),
    everywhere=st.booleans(),
    place=st.floats(0, 1, exclude_max=True),
    flag=st.sampled_from([0, 0, 2]),
)  # fmt: skip
def test_a_run_to_many_topics_is_stored_and_answered_as_one_by_one(
    pair: Pair,
    count: int,
    topics: list[str],
    odd: bytes | None,
    everywhere: bool,
    place: float,
    flag: int,
) -> None:
    pair.gate.open()
    outcomes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_columns, "COLUMNS_MIN", 2)
        patch.setattr(send_run, "CHANGES_MIN", 1)
        for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
            for topic, queue_id in product("TU", range(4)):
                client.send(topic, b"warm", queueId=queue_id)
            frames = []
            warm = 24
            for n in range(warm + count):
                key = UNIQ[:-4] + f"{n:04d}"
                here = odd if (everywhere and odd != b"opaque") or n == warm + int(place * count) else None
                ext = send_ext(
                    "TU"[n % 2] if n < warm else "%RETRY%g" if here == b"retry" else topics[n - warm],
                    queueId=n // 2 % 4,
                    properties=text_of({"UNIQ_KEY": key, "TAGS": "A"}),
                )
                body = b"x" * ({b"long body": 401, b"longer": 5}.get(here or b"", 2) if n >= warm else 2)
                frame = request(V2, ext, body, opaque=1000 + n, flag=flag)
                if here in _WIDE and (n >= warm or everywhere):
                    frame = frame.replace(*_WIDE[here], 1)
                    header = len(frame) - len(body) - 8
                    frame = (len(frame) - 4).to_bytes(4, "big") + header.to_bytes(4, "big") + frame[8:]
                frames.append(frame)
            for frame in frames[:warm]:
                client.feed(frame)
            running.settle()
            client.answers()
            if running is pair.fast and odd is None:
                assert client.session.shapes is not None
                assert client.session.shapes.wide, "so many topics make a shape wide"
            mark = running.broker.store.log.end_offset
            try:
                client.feed(b"".join(frames[warm:]))
                hung_up = False
            except RemoteProtocolError:
                hung_up = True
            running.settle()
            answers = sorted(json.dumps(comparable(running, c, True)) for c in client.answers())
            new = sorted((r for r in records_of(running) if r.offset >= mark), key=lambda r: r.offset)
            ends = [taken_queues(running, topic) for topic in "TU"]
            outcomes.append((hung_up, answers, [facts(r, True) for r in new], ends))
    assert outcomes[0] == outcomes[1]


def taken_queues(running: InProcess, topic: str = "T") -> list[object]:
    """What the store says of each queue of a topic: its bounds, and that its entries lead to its records."""
    found: list[object] = []
    for queue in running.broker.store.queues[topic].values():
        offset, size, tags = queue.read(queue.next_offset - 1)
        assert queue.max_physical == offset + size
        found.append((queue.queue_id, queue.next_offset, queue.readable, size, tags))
    return found


def test_a_run_of_sends_wakes_held_pulls_and_counts_every_message(running: InProcess) -> None:
    client, reader = running.connect(), running.connect()
    reader.heartbeat(topics={"T": "*"})
    for number in range(3):
        client.feed(request(V2, send_ext("T"), b"warm", opaque=1000 + number))
    client.answers()
    held = pull_ext("T", queueOffset=3, sysFlag=2, suspendTimeoutMillis=15_000)
    reader.feed(request(RequestCode.PULL_MESSAGE, held, opaque=5))
    assert reader.answers() == []
    log_size = running.broker.store.log.end_offset
    put = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            running.broker.statistics, "put", lambda topic, _now, *what: put.append((topic, *what[:2]))
        )
        client.feed(b"".join(request(V2, send_ext("T"), b"x", opaque=2000 + n) for n in range(40)))
    running.settle()
    assert {topic for topic, _count, _size in put} == {"T"}
    assert sum(count for _topic, count, _size in put) == 40
    assert sum(size for _topic, _count, size in put) == running.broker.store.log.end_offset - log_size
    assert sorted(a.opaque for a in client.answers() if a.code == 0) == list(range(2000, 2040))
    (found,) = reader.answers()
    assert (found.code, found.ext["nextBeginOffset"], found.ext["maxOffset"]) == (0, "35", "43")


@pytest.mark.parametrize("opaque", [b"2147483648", b"9999999999", b"0100000000"])
def test_an_opaque_that_is_no_number_of_the_protocol_is_not_taken_for_one(pair: Pair, opaque: bytes) -> None:
    pair.gate.open()
    outcomes = []
    for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
        for number in range(2_000_000_000, 2_000_000_003):
            client.feed(request(V2, send_ext("T"), b"x", opaque=number))
        running.settle()
        client.answers()
        mark = running.broker.store.log.end_offset
        frame = request(V2, send_ext("T"), b"x", opaque=2_000_000_003)
        assert frame.count(b"2000000003") == 1
        try:
            client.feed(frame.replace(b"2000000003", opaque))
            hung_up = False
        except RemoteProtocolError:
            hung_up = True
        running.settle()
        said = re.findall(rb'"opaque":\w+', bytes(client.link.sent))
        outcomes.append((hung_up, said, running.broker.store.log.end_offset > mark))
    assert outcomes[0] == outcomes[1]


def test_most_of_a_loads_messages_take_the_fast_way(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    run = running.broker.handlers.run
    assert run is not None
    payloads = [request(V2, send_ext("T"), b"x", opaque=n)[4:] for n in range(10)]
    assert run(client.session, payloads, 0, 10) == 10
    assert client.session.shapes is not None
    assert client.session.shapes.known, "a header that comes again is learned"
    assert run(client.session, payloads, 4, 10) == 10
    pull = request(RequestCode.PULL_MESSAGE, pull_ext("T"))[4:]
    assert run(client.session, [*payloads[:3], pull, *payloads], 0, 14) == 3
    assert run(client.session, [pull], 0, 1) == 0


def test_of_a_run_only_what_was_stored_is_acknowledged(start_broker: StartBroker) -> None:
    disk = FullDisk()
    running = start_broker(disk, mappedFileSizeCommitLog=128 << 10)
    client = running.connect()
    client.send("T")
    running.tick(100)
    running.until(lambda: running.broker.store.log.spare is not None)
    disk.full = True
    client.feed(b"".join(request(V2, send_ext("T"), b"%02d" % n * 5000, opaque=n) for n in range(40)))
    answers = {c.opaque: c for c in client.answers()}
    assert sorted(answers) == list(range(40))
    acknowledged = [n for n in range(40) if answers[n].code == 0]
    assert 10 < len(acknowledged) < 30
    assert {a.code for a in answers.values()} == {0, 14}
    by_offset = {r.queue_offset: r.body for r in running.stored("T")}
    assert len(by_offset) == 1 + len(acknowledged)
    for n in acknowledged:
        assert by_offset[int(answers[n].ext["queueOffset"])] == b"%02d" % n * 5000


# -- what a turn brings from many ----------------------------------------------------------------------------


_reads = st.lists(
    st.tuples(
        st.integers(0, 3), st.lists(st.sampled_from(["T0", "T1", "U0", "pull"]), min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=12,
)


@given(reads=_reads)
def test_what_many_clients_send_in_a_turn_is_stored_as_each_of_them_sent_it(
    pair: Pair, reads: list[tuple[int, list[str]]]
) -> None:
    running = pair.fast
    pair.gate.open()
    clients = [running.connect() for _ in range(4)]
    for client in clients:  # every header that follows is a learned one
        for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
            client.send(topic, b"warm", queueId=queue_id)
    running.settle()
    mark = running.broker.store.log.end_offset
    sent: list[list[tuple[int, str, int, bytes]]] = [[] for _ in clients]
    pulls = [0] * len(clients)
    running.broker.begin_turn()
    number = 100
    for at, words in reads:
        data = b""
        for word in words:
            number += 1
            if word == "pull":
                pulls[at] += 1
                data += request(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=0), opaque=number)
                continue
            topic, queue_id = word[0], int(word[1])
            body = b"%d" % number
            sent[at].append((number, topic, queue_id, body))
            data += request(V2, send_ext(topic, queueId=queue_id), body, opaque=number)
        clients[at].session.receive(data)
    running.broker.end_turn()
    running.settle()
    new = sorted((r for r in records_of(running) if r.offset >= mark), key=lambda r: r.offset)
    assert sorted(r.body for r in new) == sorted(body for mine in sent for *_, body in mine)
    by_body = {r.body: r for r in new}
    for client, mine, pulled in zip(clients, sent, pulls, strict=True):
        answers = client.answers()
        assert len(answers) == len(mine) + pulled
        by_opaque = {c.opaque: c for c in answers}
        for opaque, topic, queue_id, body in mine:
            record, answer = by_body[body], by_opaque[opaque]
            assert (record.topic, record.queue_id, record.born_host[1]) == (
                topic,
                queue_id,
                client.link.peer[1],
            )
            assert (answer.code, answer.ext["msgId"]) == (0, record.msg_id)
            assert answer.ext["queueOffset"] == str(record.queue_offset)
        offsets = [by_body[body].offset for *_, body in mine]
        assert offsets == sorted(offsets), "one client's messages changed places"


def learned(running: InProcess, count: int) -> list[Client]:
    """Clients whose next send is like the last one."""
    clients = [running.connect() for _ in range(count)]
    for client in clients:
        for _ in range(2):  # the first one of all makes the topic
            client.send("T", b"warm")
    running.settle()
    return clients


def give(client: Client, body: bytes, opaque: int) -> None:
    client.session.receive(request(V2, send_ext("T"), body, opaque=opaque))


def test_one_append_takes_what_many_clients_sent_in_a_turn(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = learned(running, 5)
    appended: list[int] = []
    put_alike = running.broker.store.put_alike

    def counted(batch: list[Alike]) -> list[tuple[int, int]]:
        appended.append(len(batch))
        return put_alike(batch)

    monkeypatch.setattr(running.broker.store, "put_alike", counted)
    running.broker.begin_turn()
    for n, client in enumerate(clients):
        give(client, b"body%d" % n, n)
    assert appended == []
    running.broker.end_turn()
    assert appended == [5]
    assert [c.answers()[0].ext["queueOffset"] for c in clients] == [str(n) for n in range(10, 15)]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_many_clients_send_in_a_turn_wakes_who_waits_for_it(
    start_broker: StartBroker, flush: str
) -> None:
    running = start_broker(flushDiskType=flush)
    clients = learned(running, 2)
    consumer = running.connect()
    consumer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", sysFlag=6, queueOffset=4))
    assert running.broker.hold.size == 1
    running.broker.begin_turn()
    for n, client in enumerate(clients):
        give(client, b"body%d" % n, n)
    running.broker.end_turn()
    if flush == "SYNC_FLUSH":
        running.settle()
    (answer,) = consumer.answers()
    assert [record.body for record in decode_records(answer.body)] == [b"body0", b"body1"]


@pytest.mark.parametrize("what", ["stopping", "topics", "rules"])
def test_what_changed_in_the_turn_counts_for_sends_that_came_before(running: InProcess, what: str) -> None:
    client, other = learned(running, 2)
    broker = running.broker
    broker.begin_turn()
    give(client, b"new", 7)
    if what == "stopping":
        broker.stopping = True
    elif what == "topics":
        other.session.receive(request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, opaque=8))
    else:
        config = b"maxMessageSize=2"
        other.session.receive(request(RequestCode.UPDATE_BROKER_CONFIG, {}, config, opaque=8))
    broker.end_turn()
    running.until(lambda: bool(client.link.sent))
    (answer,) = client.answers()
    assert answer.opaque == 7
    assert answer.code == {"stopping": 14, "topics": 0, "rules": 13}[what], answer.remark
    assert len(running.stored("T")) == (1 if what == "topics" else 4)


def test_a_topic_that_is_made_anew_gets_what_comes_under_a_learned_header(running: InProcess) -> None:
    (client,) = learned(running, 1)
    client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert client.send("T", b"first").code == 0
    client.feed(b"".join(request(V2, send_ext("T"), b"%d" % n, opaque=n) for n in range(1, 20)))
    assert [answer.ext["queueOffset"] for answer in client.answers()] == [str(n) for n in range(1, 20)]
    assert [r.body for r in running.stored("T")] == [b"first", *(b"%d" % n for n in range(1, 20))]


def test_a_send_that_finds_no_room_when_its_turn_ends_is_refused(start_broker: StartBroker) -> None:
    disk = FullDisk()
    running = start_broker(disk, mappedFileSizeCommitLog=128 << 10)
    clients = learned(running, 5)
    running.tick(100)
    running.until(lambda: running.broker.store.log.spare is not None)
    disk.full = True
    codes: list[int] = []
    while 14 not in codes:
        running.broker.begin_turn()
        for n, client in enumerate(clients):
            give(client, b"y" * 10_000, n)
        running.broker.end_turn()
        codes += [client.answers()[0].code for client in clients]
    assert set(codes) == {0, 14}
    assert len(running.stored("T")) == 10 + codes.count(0)


def test_a_failure_of_ours_costs_the_clients_of_the_turn_and_not_the_broker(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = learned(running, 2)

    def fail(batch: object) -> None:
        raise AssertionError("planted")

    running.broker.begin_turn()
    give(client, b"new", 7)
    with monkeypatch.context() as patch:
        patch.setattr(running.broker.store, "put_alike", fail)
        running.broker.end_turn()
    assert client.link.closed
    assert not client.answers()
    assert other.send("T").code == 0
