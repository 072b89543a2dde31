"""Runs of plain sends: that the quick ways and the readable way are one, message by message and header by header."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.properties import parse_properties, tags_code
from tests.broker.harness import UNIQ, FullDisk, InProcess, pull_ext, request, send_ext, text_of
from tests.broker.send_pairs import Pair, comparable, counted, facts, outcome, stored_since, with_header
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
V2 = RequestCode.SEND_MESSAGE_V2


_NAMES = (
    "TAGS KEYS UNIQ_KEY WAIT AWAIT DELAY XDELAY TRAN_MSG TIMER_DELAY_MS CLUSTER POP_CK a INNER_NUM __CRC32# "
    "XTAGS MY_UNIQ_KEY TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_OUT_MS PGROUP CHECK_IMMUNITY_TIME_IN_SECONDS"
)
_IN_AN_HOUR = str(START_MS + 3_600_000)
_names = st.sampled_from(["", *_NAMES.split()])
_values = st.sampled_from(
    ["A", "AB", "true", "false", "FALSE", "0", "-1", "3", "", "é", "😀", "\x01", "xTAGS\x01B", UNIQ, UNIQ]
)
_times = st.sampled_from([_IN_AN_HOUR, "3600000", "3600", "99999999999999999999"])
_deferred = st.builds(
    lambda asked, others: {"properties": text_of({"UNIQ_KEY": UNIQ, **dict([asked]), **others})},
    st.sampled_from(
        [("TRAN_MSG", "true"), ("TIMER_DELIVER_MS", _IN_AN_HOUR), ("TIMER_DELAY_SEC", "3600"), ("DELAY", "3")]
    ),
    st.dictionaries(
        st.sampled_from(["TAGS", "WAIT", "DELAY", "TIMER_DELAY_SEC"]), st.just("3600"), max_size=1
    ),
)
_pieces = st.lists(
    st.one_of(
        st.tuples(_names, st.one_of(_values, _values, _times)).map(lambda pair: f"{pair[0]}\x01{pair[1]}"),
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
    st.one_of(_plain, _plain, _deferred, _properties.map(lambda text: {"properties": text}), _odd),
    st.sampled_from([b"", b"x", b"y" * 300, b"z" * 401]),
    st.sampled_from([0, 0, 0, 1, 2]),
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
    # Properties without a name are stored the one way, and not the other.
    before = [counted(running, sizes=False) for running in (pair.fast, pair.plain)]
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
    for mark, counts, (running, answers, client) in zip(marks, before, outcomes, strict=True):
        running.settle()
        answers += client.answers()
        new = stored_since(running, mark)
        answered = sorted((comparable(running, c, own_key[c.opaque]) for c in answers), key=json.dumps)
        key_known = {r.offset: all(own_key) for r in new}
        counts = counted(running, sizes=False) - counts
        seen.append((answered, [facts(r, key_known[r.offset]) for r in new], counts))
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
            frame = with_header(frame, body, *damage)
        elif damage is not None:
            at = 8 + int(damage[0] * head)
            frame = frame[:at] + bytes([damage[1]]) + frame[at + 1 :]
        outcomes.append(outcome(running, client, frame, mark, sizes=False))
    assert outcomes[0] == outcomes[1]


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
    intake = running.broker.processors.intake
    assert intake is not None
    payloads = [request(V2, send_ext("T"), b"x", opaque=n)[4:] for n in range(10)]
    assert intake.take_run(client.session, payloads, 0) == 10
    assert client.session.fast.sends.known, "a header that comes again is learned"
    long = running.connect()
    properties = {"UNIQ_KEY": UNIQ, "WAIT": "true", "K": "v" * 5_000}
    frames = [request(V2, send_ext("T", properties=properties), b"x", opaque=n)[4:] for n in range(10)]
    assert intake.take_run(long.session, frames, 0) in (0, 10)
    assert not long.session.fast.sends.known, "a long one is read anew: a template keeps all of it"
    assert intake.take_run(client.session, payloads, 4) == 10
    pull = request(RequestCode.PULL_MESSAGE, pull_ext("T"))[4:]
    assert intake.take_run(client.session, [*payloads[:3], pull, *payloads], 0) == 3
    assert intake.take_run(client.session, [pull], 0) == 1, "a pull that comes again is known"


def test_the_first_message_to_each_queue_of_a_topic_that_is_there_is_taken_with_the_others(
    running: InProcess,
) -> None:
    intake = running.broker.processors.intake
    assert intake is not None
    for topic in "CD":
        running.broker.topics.update(TopicConfig(topic, 4, 4), START_MS)
    cold = [request(V2, send_ext("CD"[n % 2], queueId=n // 2), b"x", opaque=n)[4:] for n in range(8)]
    strange = [request(V2, send_ext(*at), b"x", opaque=9)[4:] for at in (("E",), ("%RETRY%g",))]
    beyond = request(V2, send_ext("C", queueId=4), b"x", opaque=9)[4:]
    for last in (*strange, beyond):
        running.broker.topics.update(TopicConfig("C", 4, 4), START_MS)  # all topics are judged anew
        running.connect().send("T")
        assert intake.take_run(running.connect().session, [*cold, last, *cold], 0) == 8
    assert "E" not in running.broker.topics
    assert running.broker.store.find_queue("C", 4) is None


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
