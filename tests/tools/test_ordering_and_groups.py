"""`produce` in order and with a delay, `consume` as a member of a group and from many topics, at a real broker."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from ropewalk import Admin, Message, PushConsumer, ReceivedMessage
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.produce.choice import queue_of_group
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.fake_cluster import BROKER_NAME, FakeCluster
from tests.tools.conftest import Ended, RunCommand, command_environment, command_line
from tools.common.output import UsageError
from tools.messages.delay import DELAY_LEVELS, parse_delay
from tools.messages.input import Stamp, parse_json_line

Run = Callable[..., Ended]


@pytest.fixture
def at_broker(ropewalk: RunCommand, ropewalk_broker: RopewalkBroker) -> Run:
    """`ropewalk …` at the test's broker."""

    def run(*words: str, stdin: bytes = b"") -> Ended:
        return ropewalk(*words, stdin=stdin, name_server=ropewalk_broker.namesrv)

    return run


# Order


def test_messages_of_a_group_lie_in_the_queue_every_client_chooses_in_the_order_sent(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    cluster.create_topic("T", 8)
    lines = [
        json.dumps({"body": f"{group} {number}", "messageGroup": group})
        for number in range(300)
        for group in ("order-1", "order-2", "order-3")
    ]
    ended = ropewalk("produce", "T", "--json-lines", stdin="\n".join(lines).encode())
    assert ended.status == 0, ended
    queues = [Queue(BROKER_NAME, number) for number in range(8)]
    by_group: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in cluster.records("T"):
        group, number = record.body.decode().split()
        assert record.properties["__SHARDINGKEY"] == group
        by_group[group].append((record.queue_id, int(number)))
    for group, places in by_group.items():
        assert places == [(queue_of_group(group, queues).queue_id, number) for number in range(300)], group
    assert len({places[0][0] for places in by_group.values()}) > 1


def test_what_is_tried_again_is_not_overtaken_by_what_follows(
    ropewalk: RunCommand, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.messages.produce.BATCH_COUNT_MAX", 5)
    monkeypatch.setattr("ropewalk.client.core.backoff.FIRST_PAUSE_S", 0.01)
    cluster.create_topic("T", 4)
    batches = 0

    def busy_at_times(request: Command) -> Command:
        nonlocal batches
        batches += 1
        if batches % 3 == 1:
            return request.reply(ResponseCode.SYSTEM_BUSY, "busy")
        return cluster._answer(request)

    cluster.answers[RequestCode.SEND_BATCH_MESSAGE] = busy_at_times

    cluster.answers[RequestCode.SEND_BATCH_MESSAGE] = busy_at_times
    lines = "\n".join(str(number) for number in range(60)).encode()
    ended = ropewalk("produce", "T", "--message-group", "g", stdin=lines)
    assert ended.status == 0, ended
    assert batches > 12
    assert [record.body for record in cluster.records("T")] == [b"%d" % number for number in range(60)]


def test_a_group_and_its_message_are_sent_again_as_they_were_printed(
    at_broker: Run, ropewalk_broker: RopewalkBroker
) -> None:
    topic, copy = ropewalk_broker.topic("first"), ropewalk_broker.topic("copy")
    at_broker("produce", topic, "a", "b", "--message-group", "order-7", "--keys", "k")
    printed = at_broker("consume", topic, "--json").out
    at_broker("produce", copy, "--json-lines", stdin=printed)
    copies = ropewalk_broker.messages(copy, 2)
    assert [record.body for record in copies] == [b"a", b"b"]
    assert {record.properties["__SHARDINGKEY"] for record in copies} == {"order-7"}
    assert len({record.queue_id for record in copies}) == 1


# Delay


@pytest.mark.parametrize(
    ("text", "level"), [("1", 1), ("18", 18), ("1s", 1), ("10S", 3), (" 1m ", 5), ("2h", 18)]
)
def test_a_delay_is_a_level_or_its_time(text: str, level: int) -> None:
    assert parse_delay(text) == {"DELAY": str(level)}
    assert len(DELAY_LEVELS) == 18


@pytest.mark.parametrize("text", ["-1", "soon", "", "1 s", "٣"])
def test_other_delays_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither a level"):
        parse_delay(text)


def test_a_line_may_bring_its_own_group_and_delay() -> None:
    stamp = Stamp(group="all", later={"DELAY": "2"})
    plain = parse_json_line(b'{"body": "x"}', stamp)
    assert (plain.group, plain.properties) == ("all", {"DELAY": "2"})
    own = parse_json_line(b'{"body": "x", "messageGroup": "mine", "delay": "10s"}', stamp)
    assert (own.group, own.properties) == ("mine", {"DELAY": "3"})
    assert parse_json_line(b'{"body": "x", "delay": 4}', stamp).properties == {"DELAY": "4"}
    at = parse_json_line(b'{"body": "x", "deliverAt": 1700000000000}', stamp)
    assert at.properties == {"TIMER_DELIVER_MS": "1700000000000"}
    with pytest.raises(UsageError, match="both given"):
        parse_json_line(b'{"body": "x", "delay": 4, "deliverAt": 90000}', stamp)
    with pytest.raises(UsageError, match="neither a level"):
        parse_json_line(b'{"body": "x", "delay": "never"}', stamp)


def test_a_delayed_message_comes_when_it_is_due(at_broker: Run, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    began_ms = int(time.time() * 1000)
    assert at_broker("produce", topic, "later", "--delay", "1s").status == 0
    (record,) = ropewalk_broker.messages(topic, 1)
    assert record.body == b"later" and record.store_timestamp_ms - began_ms >= 900


# Many topics


def test_several_topics_and_patterns_are_read_like_one(
    at_broker: Run, ropewalk_broker: RopewalkBroker
) -> None:
    east, west, other = (
        ropewalk_broker.topic(name, queues=2) for name in ("orders-east", "orders-west", "bills")
    )
    for number in range(4):
        ropewalk_broker.send((east, west)[number % 2], f"{number}")
        time.sleep(0.003)
    ropewalk_broker.send(other, "bill")
    both = [f"{east}\t0", f"{west}\t1", f"{east}\t2", f"{west}\t3"]
    assert at_broker("consume", east, west).lines == both
    assert at_broker("consume", ropewalk_broker.name("orders-*")).lines == both
    assert at_broker("consume", ropewalk_broker.name("orders-?est"), "--count", "1").lines == [f"{west}\t1"]
    found = at_broker("consume", ropewalk_broker.name("*"), "--json").documents
    assert [document["topic"] for document in found] == [east, west, east, west, other]
    nothing = at_broker("consume", ropewalk_broker.name("nope*"))
    assert nothing.status == 2 and "no topic matches" in nothing.errors
    assert at_broker("consume", east).lines == ["0", "2"], "one topic needs no name before its lines"


def test_a_topic_that_is_new_is_followed_too(
    at_broker: Run, ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.messages.consume.DISCOVER_S", 0.1)
    first = ropewalk_broker.topic("tail-1", queues=1)

    def write() -> None:
        time.sleep(0.5)
        ropewalk_broker.send(first, "one")
        second = ropewalk_broker.topic("tail-2", queues=1)
        ropewalk_broker.send(second, "two")

    writer = threading.Thread(target=write)
    writer.start()
    words = ("--follow", "--from", "earliest", "--count", "2")  # a reader that starts late misses nothing
    ended = at_broker("consume", ropewalk_broker.name("tail-*"), *words)
    writer.join()
    assert sorted(line.split("\t")[1] for line in ended.lines) == ["one", "two"]


def test_a_reader_goes_on_without_its_name_server(
    ropewalk: RunCommand, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.messages.consume.DISCOVER_S", 0.05)
    cluster.create_topic("T", 1)
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as listener:  # a name server that hands every question on, for a while
        name_server = f"127.0.0.1:{listener.getsockname()[1]}"
        questions = 0

        def serve() -> None:
            nonlocal questions
            connection, _ = listener.accept()
            with connection, socket.create_connection(("127.0.0.1", cluster.port)) as behind:
                behind.sendall(connection.recv(65536))
                connection.sendall(behind.recv(65536))
                questions += 1

        def write() -> None:
            server.join()
            listener.close()
            cluster.wait_for_request(RequestCode.PULL_MESSAGE)  # it has read where the queue ends
            time.sleep(0.5)
            cluster.put("T", 0, b"still there")

        server = threading.Thread(target=serve)
        writer = threading.Thread(target=write)
        server.start()
        writer.start()
        ended = ropewalk("consume", "T", "--follow", "--count", "1", name_server=name_server)
        writer.join()
    assert questions == 1
    assert ended.lines == ["still there"] and ended.errors == "", ended


# Groups


def test_a_group_prints_each_message_once_and_ends_at_the_end(
    at_broker: Run, ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    for number in range(30):
        ropewalk_broker.send(topic, f"{number}")
    words = ("consume", topic, "--group", group)
    first = at_broker(*words, "--count", "12")
    assert first.status == 0 and len(first.lines) == 12
    assert ropewalk_broker.committed(group, topic) == 12
    rest = at_broker(*words)
    assert sorted(first.lines + rest.lines) == sorted(map(str, range(30)))
    assert at_broker(*words).lines == []
    assert ropewalk_broker.committed(group, topic) == 30
    ropewalk_broker.send(topic, Message(b"one more", keys="k"))
    (document,) = at_broker(*words, "--json", "--orderly").documents
    assert (document["body"], document["keys"], document["topic"]) == ("one more", "k", topic)


def test_where_a_group_begins_counts_only_the_first_time(
    at_broker: Run, ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    ropewalk_broker.send(topic, "old")
    # A young queue is read from its beginning whatever is asked, so the group is made to have read it.
    assert at_broker("consume", topic, "-g", group, "--from", "earliest").lines == ["old"]
    ropewalk_broker.send(topic, "new")
    assert at_broker("consume", topic, "-g", group, "--from", "earliest").lines == ["new"]


def test_only_wanted_tags_are_printed_and_all_are_passed(
    at_broker: Run, ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    for number in range(6):
        ropewalk_broker.send(topic, Message(b"%d" % number, tags="even" if number % 2 == 0 else "odd"))
    ended = at_broker("consume", topic, "-g", group, "--tags", "even")
    assert sorted(ended.lines) == ["0", "2", "4"]
    assert ropewalk_broker.committed(group, topic) == 6


def test_the_queues_are_shared_with_the_groups_other_members(
    ropewalk_broker: RopewalkBroker,
) -> None:
    topic, group = ropewalk_broker.topic(queues=4), ropewalk_broker.group()
    seen: list[ReceivedMessage] = []
    with subprocess.Popen(
        command_line("consume", topic, "--group", group, "--follow", "--json"),
        env=command_environment(ropewalk_broker.namesrv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            with (
                PushConsumer(group, {topic: "*"}, seen.append, ropewalk_broker.namesrv) as other,
                Admin(ropewalk_broker.namesrv) as admin,
            ):

                def shared() -> bool:
                    """Each says of itself that it has two, so that neither still has what it is to give up."""
                    online = admin.consumers(group)
                    if online is None or len(online.clients) != 2:
                        return False
                    try:
                        infos = [admin.running_info(group, client.client_id) for client in online.clients]
                    except RopewalkError:
                        return False
                    tables = [fastjson.queue_keys(info["mqTable"]) for info in infos]
                    return all(sum(key.topic == topic for key in table) == 2 for table in tables)

                ropewalk_broker.wait_until(shared, "two members with two queues each")
                mine = {source.queue.queue_id for source in other.queues}
                for number in range(40):
                    ropewalk_broker.send(topic, f"{number}")
                ropewalk_broker.wait_until(lambda: ropewalk_broker.committed(group, topic) == 40)
            process.terminate()
            printed, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    theirs = [json.loads(line) for line in printed.splitlines()]
    assert {document["queueId"] for document in theirs} == set(range(4)) - mine
    bodies = [document["body"] for document in theirs] + [message.body.decode() for message in seen]
    assert sorted(bodies) == sorted(map(str, range(40)))


def test_ctrl_c_leaves_the_group_with_its_progress(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    ropewalk_broker.send(topic, "one")
    with subprocess.Popen(
        command_line("consume", topic, "--group", group, "--follow", "--from", "earliest"),
        env=command_environment(ropewalk_broker.namesrv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(2)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.decode().strip() == f"stopped: 1 message from {topic}"
    assert ropewalk_broker.committed(group, topic) == 1
    with Admin(ropewalk_broker.namesrv) as admin:
        assert admin.consumers(group) is None, "it said goodbye"
        assert admin.committed_offset(group, TopicQueue(topic, Queue("broker-a", 0))) == 1


def test_a_reader_that_has_seen_enough_leaves_the_rest_to_the_group(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    for _ in range(200):
        ropewalk_broker.send(topic, "x" * 4000)
    with subprocess.Popen(
        command_line("consume", topic, "--group", group, "--follow", "--from", "earliest"),
        env=command_environment(ropewalk_broker.namesrv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr is not None and process.stderr.read() == b""
    assert ropewalk_broker.committed(group, topic) < 200
    assert ropewalk_broker.messages(f"%RETRY%{group}") == [], "nothing was given back as failed"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--group", "g", "--queue", "0"), "do not go with --group"),
        (("--group", "g", "--broker", BROKER_NAME), "do not go with --group"),
        (("--group", "g", "--from", "offset:3"), "group reset"),
        (("--orderly",), "--orderly is for --group"),
        (("--group", "bad group"), "contains ' '"),
        (("--format", "xml"), "none of: text, json, hex"),
    ],
)
def test_wrong_use_is_told_before_anything_is_read(
    ropewalk: RunCommand, cluster: FakeCluster, words: tuple[str, ...], text: str
) -> None:
    cluster.create_topic("T")
    ended = ropewalk("consume", "T", *words)
    assert ended.status == 2 and text in ended.errors, ended
