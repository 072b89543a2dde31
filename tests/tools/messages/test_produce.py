import json
import os
import pty
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ropewalk.client.blocking.simple import Client, Message
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.ropewalk.client.fake_cluster import BROKER_NAME, FakeCluster, route_body
from tests.support.waiting import until
from tests.tools.conftest import RunCommand, command_environment, command_line
from tools.common.interrupts import Interrupts
from tools.common.output import PROGRESS_AFTER_S
from tools.messages import produce as produce_module
from tools.messages.produce import BATCH_BYTES_MAX, Report, Sender, choose_queues, produce

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def bodies(cluster: FakeCluster, topic: str = "T") -> list[bytes]:
    return [record.body for record in cluster.records(topic)]


def send(cluster: FakeCluster, messages: list[Message], queue_count: int = 4) -> Report:
    cluster.create_topic("T", queue_count)
    report = Report("T")
    with Client(cluster.address, timeout=1) as client:
        sender = Sender(client, "T", client.write_queues("T"), report)
        return produce(sender, iter([messages]), Interrupts())


# What is sent


def test_arguments_are_messages_and_each_answer_is_shown(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    ended = ropewalk("produce", "T", "hello", "wörld")
    assert ended.status == 0
    assert bodies(cluster) == [b"hello", "wörld".encode()]
    assert [line.split()[:6] for line in ended.lines] == [
        ["SEND_OK", BROKER_NAME, "queue", "0", "offset", "0"],
        ["SEND_OK", BROKER_NAME, "queue", "1", "offset", "0"],
    ]


def test_the_json_result_tells_where_each_argument_went(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    document = ropewalk("produce", "T", "hello", "--json").document
    assert (document["topic"], document["acknowledged"], document["failed"]) == ("T", 1, 0)
    (message,) = document["messages"]
    (record,) = cluster.records("T")
    assert message == {
        "msgId": record.uniq_key,
        "offsetMsgId": record.msg_id,
        "broker": BROKER_NAME,
        "queueId": 0,
        "queueOffset": 0,
        "status": "SEND_OK",
    }


def test_options_stamp_every_message(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    ended = ropewalk(
        "produce",
        "T",
        "x",
        "y",
        "--keys",
        "k1 k2",
        "--tags",
        "new",
        "-p",
        "a=1",
        "-p",
        "b=2=3",
        "--queue",
        "2",
    )
    assert ended.status == 0
    for record in cluster.records("T"):
        assert record.queue_id == 2
        kept = {name: record.properties[name] for name in ("KEYS", "TAGS", "a", "b")}
        assert kept == {"KEYS": "k1 k2", "TAGS": "new", "a": "1", "b": "2=3"}


def test_standard_input_is_sent_line_by_line_as_bytes(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    ended = ropewalk("produce", "T", stdin=b"one\n\n\xff\xfe\r\nlast")
    assert ended.status == 0
    assert sorted(bodies(cluster)) == sorted([b"one", b"\xff\xfe\r", b"last"])
    assert "3 messages acknowledged" in ended.errors
    assert "1 empty line skipped" in ended.errors


def test_a_file_is_sent_in_batches_that_keep_each_queues_order(
    ropewalk: RunCommand, cluster: FakeCluster, tmp_path: Path
) -> None:
    lines = [f"line {number}".encode() for number in range(20_000)]
    (tmp_path / "input.txt").write_bytes(b"\n".join(lines) + b"\n")
    ended = ropewalk("produce", "T", "--file", "input.txt", "--json")
    assert ended.status == 0
    assert ended.document["acknowledged"] == 20_000
    records = cluster.records("T")
    assert sorted(record.body for record in records) == sorted(lines)
    for queue_id in range(4):
        own = [record.body for record in records if record.queue_id == queue_id]
        assert own == lines[queue_id::4]
    assert sum(request.code in SENDS for request in cluster.requests) < 200


def test_an_empty_input_is_no_error(ropewalk: RunCommand) -> None:
    ended = ropewalk("produce", "T", "--json")
    assert ended.status == 0
    assert ended.document["acknowledged"] == 0


def test_lines_that_trickle_in_are_sent_as_they_come(cluster: FakeCluster, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command_line("produce", "T"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_environment(cluster.address),
        cwd=tmp_path,
    )
    assert process.stdin is not None

    def logged(count: int) -> bool:
        return len(cluster.log) == count

    for number in range(3):
        process.stdin.write(f"{number}\n".encode())
        process.stdin.flush()
        until(partial(logged, number + 1))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"3 messages acknowledged" in errors


def test_json_lines_carry_keys_tags_properties_and_any_body(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    lines: list[dict[str, object]] = [
        {"body": "text", "keys": ["a", "b"], "tags": "t", "properties": {"p": "1", "n": 2}},
        {"body": {"order": 7}, "keys": "k"},
        {"bodyBase64": "/wA="},
    ]
    ended = ropewalk("produce", "T", "--json-lines", "--tags", "default", stdin=as_lines(lines))
    assert ended.status == 0, ended.errors
    first, second, third = cluster.records("T")
    assert (first.body, first.keys, first.tags) == (b"text", ["a", "b"], "t")
    assert (first.properties["p"], first.properties["n"]) == ("1", "2")
    assert (json.loads(second.body), second.keys, second.tags) == ({"order": 7}, ["k"], "default")
    assert third.body == b"\xff\x00"


def test_a_copy_of_a_dead_letter_is_acknowledged_when_slaves_have_it(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    letter: dict[str, object] = {
        "body": "x",
        "properties": {"WAIT": "false", "RETRY_TOPIC": "orders", "shop": "7"},
    }
    assert ropewalk("produce", "T", "--json-lines", stdin=as_lines([letter])).status == 0
    (copied,) = cluster.records("T")
    assert copied.properties["WAIT"] == "true"
    assert (copied.properties["RETRY_TOPIC"], copied.properties["shop"]) == ("orders", "7")


def test_what_consume_prints_as_json_can_be_sent_again(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    ropewalk("produce", "T", "x", "--keys", "k", "--tags", "t", "-p", "p=1")
    copy = ropewalk("produce", "copy", "--json-lines", stdin=ropewalk("consume", "T", "--json").out)
    assert copy.status == 0, copy.errors
    (original,), (copied,) = cluster.records("T"), cluster.records("copy")
    assert copied.body == original.body
    assert copied.uniq_key != original.uniq_key
    assert {**copied.properties, "UNIQ_KEY": ""} == {**original.properties, "UNIQ_KEY": ""}


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b"{}",
        b'{"body":""}',
        b'{"body":null}',
        b'{"body":"x","properties":[]}',
        b'{"body":"x","properties":null}',
        b'{"body":"x","properties":{"a":null}}',
        b'{"body":"x","properties":{"a":"\\u0002"}}',
        b'{"body":"x","bodyBase64":"eA=="}',
        b'{"body":"x","tag":"misspelled"}',
        b'{"bodyBase64":"?"}',
        b'{"body":"' + bytes(4 * 1024 * 1024 + 1).replace(b"\0", b"x") + b'"}',
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_what_stands_before_it_is_sent(
    ropewalk: RunCommand, cluster: FakeCluster, line: bytes
) -> None:
    ended = ropewalk(
        "produce", "T", "--json-lines", stdin=b'{"body":"good"}\n' + line + b'\n{"body":"after"}\n'
    )
    assert ended.status == 1
    assert "error: stopped at line 2: " in ended.errors
    assert "; the rest was not sent" in ended.errors
    assert bodies(cluster) == [b"good"]


def test_a_plain_line_too_long_for_any_broker_stops_like_any_other_mistake(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    ended = ropewalk("produce", "T", "--json", stdin=b"good\n" + b"x" * (4 * 1024 * 1024 + 1) + b"\nafter\n")
    assert ended.status == 1
    assert ended.document["stoppedAtLine"] == 2
    assert (ended.document["acknowledged"], ended.document["failed"]) == (1, 1)
    assert "4,194,304" in ended.errors
    assert bodies(cluster) == [b"good"]


def test_a_broker_that_refuses_for_good_leaves_a_count_of_what_was_not_read(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    cluster.create_topic("T")
    for code in SENDS:
        cluster.answers[code] = lambda request: request.reply(16, "not writable")
    lines = (b"0123456789" * 100 + b"\n") * 4_000
    ended = ropewalk("produce", "T", "--json", stdin=lines)
    assert ended.status == 1
    document = ended.document
    assert document["stoppedAtLine"] is None
    assert document["failed"] + document["unreadLines"] == 4_000
    assert document["unreadLines"] > 0
    ended = ropewalk("produce", "T", stdin=b"only\nthese")
    assert "stopped at line 2: 0 lines behind it were not read" in ended.errors


def test_a_topic_that_no_registered_broker_would_create_is_not_promised_to_be_made_by_its_first_message(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    cluster.auto_create = False
    ended = ropewalk("produce", "unknown", "one")
    assert ended.status == 1
    assert "no broker that is registered now creates topics" in ended.errors
    assert "ropewalk admin broker list" in ended.errors
    assert "ropewalk produce" not in ended.errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("x", "--file", "f"), "not both"),
        (("",), "no empty messages"),
        (("x", "-p", "novalue"), "name=value"),
        (("x", "-p", "a=\x02"), "separate"),
        (("x", "-p", "a=\udcff"), "UTF-8"),
        (("x", "--tags", "a||b"), "one tag"),
        (("x", "--tags", "a b"), "one tag"),
        (("{}", "--json-lines"), "message 1: not an object"),
        (("x", "-n", "http://127.0.0.1:9876"), "is a URL: write host:port"),
        (("--file", "missing.txt"), "cannot read missing.txt"),
        (("x", "--queue", "99"), "has no such queue"),
        (("x", "--broker", "other"), f"It has {BROKER_NAME}"),
    ],
)
def test_wrong_use_is_told_before_anything_is_sent(
    ropewalk: RunCommand, cluster: FakeCluster, words: tuple[str, ...], text: str
) -> None:
    cluster.create_topic("T")
    ended = ropewalk("produce", "T", *words)
    assert ended.status == 2
    assert text in ended.errors
    assert not bodies(cluster)


# What became of it


def test_delayed_messages_travel_alone(cluster: FakeCluster) -> None:
    plain = [Message(str(number).encode()) for number in range(4)]
    report = send(
        cluster, [plain[0], Message(b"later", properties={"DELAY": "3"}), *plain[1:]], queue_count=1
    )
    assert report.acknowledged == 5
    alone = [request.body for request in cluster.requests if request.code == RequestCode.SEND_MESSAGE_V2]
    assert alone == [b"later"]


def test_a_batch_stays_below_the_size_a_broker_takes(cluster: FakeCluster) -> None:
    report = send(cluster, [Message(bytes(400 * 1024)) for _ in range(10)], queue_count=1)
    assert report.acknowledged == 10
    sizes = [len(request.body) for request in cluster.requests if request.code in SENDS]
    assert len(sizes) == 5
    assert max(sizes) < BATCH_BYTES_MAX + 64 * 1024


def test_one_illegal_message_does_not_take_its_batch_with_it(cluster: FakeCluster) -> None:
    def refuse_bad(request: Command) -> Command:
        if b"bad" in request.body:
            return request.reply(13, "the message is illegal")
        return cluster._answer(request)

    for code in SENDS:
        cluster.answers[code] = refuse_bad
    report = send(cluster, [Message(body) for body in (b"a", b"bad", b"b", b"c")], queue_count=1)
    assert (report.acknowledged, report.failed) == (3, 1)
    assert sorted(bodies(cluster)) == [b"a", b"b", b"c"]
    assert list(report.problems) == ["MESSAGE_ILLEGAL (13): the message is illegal"]


def test_a_busy_broker_is_tried_again(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.client.core.backoff.FIRST_PAUSE_S", 0.001)
    refusals = iter([2, 2, 14])

    def busy(request: Command) -> Command:
        code = next(refusals, None)
        return request.reply(code, "busy") if code is not None else cluster._answer(request)

    cluster.answers[RequestCode.SEND_MESSAGE_V2] = busy
    report = send(cluster, [Message(b"x")])
    assert (report.acknowledged, report.failed, len(bodies(cluster))) == (1, 0, 1)


def test_a_broker_that_stays_busy_is_given_up(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.client.core.backoff.FIRST_PAUSE_S", 0.001)
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(2, "busy")
    report = send(cluster, [Message(b"x")])
    assert (report.acknowledged, report.failed, report.complete) == (0, 1, False)


def elect(cluster: FakeCluster, questions: int, address: str | None = None) -> None:
    """Have the route show another master, or none, at the next questions, as while a group elects its leader."""
    answered: list[Command] = []

    def route(request: Command) -> Command:
        answered.append(request)
        if len(answered) > questions:
            return cluster._answer(request)
        member = 0 if address else 1
        body = route_body(BROKER_NAME, address or cluster.address, 4, broker_id=member)
        return request.reply(ResponseCode.SUCCESS, body=body)

    cluster.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = route


@pytest.mark.parametrize(
    "words",
    [
        ("produce", "T", "x"),
        ("produce", "T", "x", "--queue", "1", "--broker", BROKER_NAME),
        ("produce", "T", "x", "--message-group", "g"),
        ("admin", "message", "send", "T", "x", "--queue", "1"),
    ],
)
def test_a_group_without_a_leader_is_waited_for(
    ropewalk: RunCommand, cluster: FakeCluster, words: tuple[str, ...]
) -> None:
    cluster.create_topic("T")
    elect(cluster, 3)
    ended = ropewalk(*words, "--timeout", "30")
    assert (ended.status, bodies(cluster)) == (0, [b"x"]), ended.errors


def test_a_group_that_stays_without_a_leader_is_told_in_words(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    cluster.create_topic("T")
    elect(cluster, 999)
    ended = ropewalk("produce", "T", "x", "--timeout", "0.3")
    assert ended.status == 1 and "broker fake-broker has no master at the moment" in ended.errors
    assert "`ropewalk admin ha failover fake-broker`" in ended.errors, (
        "a slave is promoted by nobody but a person"
    )
    assert "a DLedger group elects its leader by itself, within seconds" in ended.errors


@contextmanager
def refusing_address() -> Iterator[str]:
    """Hold a port where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("group", [None, "g"], ids=["any order", "one group"])
def test_a_master_that_dies_between_two_lists_is_followed_to_the_next(
    cluster: FakeCluster, group: str | None
) -> None:
    cluster.create_topic("T")
    report = Report("T")
    with refusing_address() as dead, Client(cluster.address, timeout=30) as client:
        elect(cluster, 2, dead)
        sender = Sender(client, "T", client.write_queues("T"), report)
        produce(sender, iter([[Message(b"x", group=group)], [Message(b"y", group=group)]]), Interrupts())
    assert (report.acknowledged, report.complete, bodies(cluster)) == (2, True, [b"x", b"y"])


def test_a_broker_that_is_gone_for_good_is_waited_for_once(cluster: FakeCluster) -> None:
    cluster.create_topic("T")
    report = Report("T")
    with refusing_address() as dead, Client(cluster.address, timeout=1.0) as client:
        elect(cluster, 999, dead)
        sender = Sender(client, "T", client.write_queues("T"), report)
        produce(sender, iter([[Message(b"x")], [Message(b"y")]]), Interrupts())
    assert report.given_up and report.failed == 1 and not report.unknown


def test_a_refusal_for_good_stops_and_counts_what_was_never_sent(cluster: FakeCluster) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(16, "no permission")
    messages = [Message(b"x", properties={"DELAY": "1"}) for _ in range(100)]
    report = send(cluster, messages)
    assert (report.acknowledged, report.unknown) == (0, 0)
    assert report.failed == 100
    assert len([request for request in cluster.requests if request.code in SENDS]) < 50


def test_no_answer_is_an_unknown_outcome_and_is_not_sent_again(cluster: FakeCluster) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: None
    report = send(cluster, [Message(b"x")])
    assert (report.acknowledged, report.failed, report.unknown) == (0, 0, 1)
    assert cluster.codes().count(RequestCode.SEND_MESSAGE_V2) == 1


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_with_a_reservation_is_told_apart_and_exits_with_1(
    ropewalk: RunCommand, cluster: FakeCluster, code: int
) -> None:
    header = {"msgId": "00", "queueId": "0", "queueOffset": "0"}
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(code, ext=header)
    ended = ropewalk("produce", "T", "x")
    assert ended.status == 1
    assert not ended.lines[0].startswith("SEND_OK")
    assert "1 stored, but not flushed or replicated" in ended.errors


def test_failed_sends_exit_with_1_and_give_the_brokers_reason(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(13, "the body is too large")
    ended = ropewalk("produce", "T", "x")
    assert ended.status == 1
    assert "the body is too large" in ended.errors


@pytest.mark.parametrize("faults", range(5))
def test_every_message_ends_in_exactly_one_count(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    monkeypatch.setattr("ropewalk.client.core.backoff.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(produce_module, "BATCH_COUNT_MAX", 3)
    answers: list[int | None] = [0, 2, 13, 14, 10]

    def mixed(request: Command) -> Command | None:
        code = answers[(len(cluster.requests) * (faults + 1)) % len(answers)]
        if code in (0, 10):
            reply = cluster._answer(request)
            reply.code = code
            return reply
        return None if code is None else request.reply(code, "no")

    for code in SENDS:
        cluster.answers[code] = mixed
    report = send(cluster, [Message(str(number).encode()) for number in range(200)])
    assert report.acknowledged + report.reserved + report.failed + report.unknown == 200
    assert report.acknowledged + report.reserved == len(bodies(cluster))


def test_ctrl_c_waits_for_answers_under_way_and_counts(cluster: FakeCluster, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command_line("produce", "T", "--json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_environment(cluster.address),
        cwd=tmp_path,
    )
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    until(lambda: len(cluster.log) == 2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    document = json.loads(out)
    assert (document["acknowledged"], document["unknown"], document["interrupted"]) == (2, 0, True)
    assert b"Traceback" not in errors


def test_a_wish_to_stop_is_heard_between_two_lists(cluster: FakeCluster) -> None:
    cluster.create_topic("T")
    with Interrupts() as interrupts, Client(cluster.address) as client:

        def source() -> object:
            yield [Message(b"one")]
            os.kill(os.getpid(), signal.SIGINT)
            yield [Message(b"two")]

        report = Report("T")
        sender = Sender(client, "T", client.write_queues("T"), report)
        produce(sender, source(), interrupts)  # type: ignore[arg-type]
    assert report.interrupted
    assert bodies(cluster) == [b"one"]


def test_queues_are_chosen_by_number_and_broker() -> None:
    queues = [Queue(broker, number) for broker in ("a", "b") for number in range(2)]
    assert choose_queues(queues, "T", 1, None) == (Queue("a", 1), Queue("b", 1))
    assert choose_queues(queues, "T", None, "b") == (Queue("b", 0), Queue("b", 1))


def as_lines(documents: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def test_no_progress_is_drawn_over_what_is_typed(cluster: FakeCluster) -> None:
    cluster.create_topic("T")
    ours, theirs = pty.openpty()
    environment = command_environment(cluster.address) | {"TERM": "xterm"}
    with subprocess.Popen(
        command_line("produce", "T"), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = os.read(ours, 1000)  # that it reads from the terminal
        time.sleep(PROGRESS_AFTER_S + 0.2)
        os.write(ours, b"typed\n\x04")
        while not shown.endswith(b"s)\r\n"):
            shown += os.read(ours, 1000)
        assert process.wait(30) == 0
    os.close(ours)
    _, *lines = shown.decode().splitlines()
    assert lines[0] == "typed" and lines[-1].startswith("1 message acknowledged in ") and len(lines) == 2
