"""`ropewalk admin` against a real broker: what it prints, for people and for programs, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from ropewalk import Admin, Message, Producer, PushConsumer, ReceivedMessage, __version__
from ropewalk.client.admin.groups import EARLIEST, LATEST
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import command_of
from ropewalk.client.core.produce.row_identity import KEY_VERSION
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import TryLater
from ropewalk.format.headers import SinkInitHeader
from ropewalk.testing import RopewalkBroker
from tests.support.processes import checkout_command, checkout_environment, running_broker
from tests.support.waiting import until
from tests.tools.conftest import Ended, RunCommand, command_environment, command_line
from tools.admin import sink
from tools.admin.base import Moment, Sheet, parse_permission
from tools.common.output import UsageError

BROKER = "broker-a"


class Shell:
    """`ropewalk admin …` at the test's broker."""

    def __init__(self, run: RunCommand, broker: RopewalkBroker) -> None:
        self._run = run
        self.broker = broker

    def __call__(self, *words: str, stdin: bytes = b"") -> Ended:
        return self._run("admin", *words, stdin=stdin, name_server=self.broker.namesrv)

    def json(self, *words: str) -> Any:
        ended = self(*words, "--json")
        assert ended.status == 0, ended
        return json.loads(ended.out)

    def rows(self, *words: str) -> list[list[str]]:
        """The rows of a table, without its heading."""
        ended = self(*words)
        assert ended.status == 0, ended
        return [line.split() for line in ended.lines[1:]]


@pytest.fixture
def shell(ropewalk: RunCommand, ropewalk_broker: RopewalkBroker) -> Shell:
    return Shell(ropewalk, ropewalk_broker)


@pytest.fixture
def admin(ropewalk_broker: RopewalkBroker) -> Iterator[Admin]:
    with Admin(ropewalk_broker.namesrv) as running:
        yield running


def fill(broker: RopewalkBroker, topic: str, count: int) -> None:
    for number in range(count):
        broker.send(topic, Message(b"body %d" % number, keys=f"key{number}", tags="tag"))


# Topics


def test_the_life_of_a_topic(shell: Shell, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.name("life")
    assert shell("topic", "create", topic, "--queues", "3").lines == [f"{topic}: 3 queues at {BROKER}"]
    again = shell("topic", "create", topic)
    assert again.status == 1 and "exists already" in again.errors and "topic update" in again.errors
    assert [topic, "normal"] in shell.rows("topic", "list")
    (row,) = [row for row in shell.json("topic", "list", "--long") if row["topic"] == topic]
    assert (row["readQueues"], row["writeQueues"], row["permission"]) == (3, 3, "RW-")

    fill(ropewalk_broker, topic, 6)
    shown = shell.json("topic", "show", topic)
    assert shown["messages"] == 6 and [queue["maxOffset"] for queue in shown["queues"]] == [2, 2, 2]
    people = shell("topic", "show", topic).lines
    assert people[0].split() == ["topic", topic] and ["messages", "6"] in [line.split() for line in people]

    (route,) = shell.json("topic", "route", topic)
    assert (route["broker"], route["address"], route["writeQueues"]) == (BROKER, ropewalk_broker.broker, 3)
    assert shell.json("topic", "perm", topic, "r") == [
        {"broker": BROKER, "before": "RW-", "permission": "R--"}
    ]
    (changed,) = shell.json("topic", "update", topic, "--queues", "5", "--permission", "6")
    assert (changed["readQueues"], changed["permission"]) == (5, "RW-")

    refused = shell("topic", "delete", topic)
    assert refused.status == 2 and "Delete" in refused.errors and "with 6 messages?" in refused.errors
    assert "--yes" in refused.errors and topic in shell("topic", "list").out.decode()
    assert shell("topic", "delete", topic, "--yes").lines == [f"{topic} deleted at {BROKER}"]
    missing = shell("topic", "show", topic)
    assert missing.status == 1 and "topic list" in missing.errors


def test_fewer_queues_than_hold_messages_are_asked_about(
    shell: Shell, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic(queues=4)
    fill(ropewalk_broker, topic, 8)
    refused = shell("topic", "update", topic, "--queues", "3")
    assert refused.status == 2 and "2 messages" in refused.errors
    (kept,) = shell.json("topic", "update", topic, "--write-queues", "3")
    assert (kept["readQueues"], kept["writeQueues"]) == (4, 3)
    (fewer,) = shell.json("topic", "update", topic, "--read-queues", "3", "--yes")
    assert fewer["readQueues"] == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("topic", "create", "bad name"), "contains ' '"),
        (("topic", "create", "T", "--permission", "x"), "none of: rw"),
        (("topic", "create", "T", "--attribute", "x"), "not name=value"),
        (("topic", "update", "T"), "say what to change"),
        (("group", "update", "G"), "say what to change"),
        (("group", "create", "bad/name"), "contains '/'"),
        (("group", "reset", "G", "T", "--to", "3"), "--to 3: for an offset write offset:3"),
        (("message", "by-time", "T", "--from", "latest"), "is no time"),
        (("message", "by-time", "T", "--from", "yesterday"), "is no time; write it as in 2026"),
        (("message", "by-id", "C00002025BA68DD4AF237A36B3D30000"), "by-unique-key TOPIC ID"),
        (("message", "by-id", "zzz"), "no id that says where a message lies"),
        (("message", "by-time", "T", "--from", "2000000000000", "--to", "1500000000000"), "before --from"),
        (("message", "show", "short"), "no message id"),
        (("message", "send", "T", "x", "--delay", "1y"), "neither a level"),
        (("message", "send", "T", "x", "--tags", "a b"), "one tag"),
        (("broker", "config", "set", "x"), "not name=value"),
        (("broker", "wipe-write-perm", "nobody"), "the name server knows broker-a"),
        (("broker", "config", "get", "nonsense"), "no broker has a setting"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(shell: Shell, words: tuple[str, ...], text: str) -> None:
    ended = shell(*words)
    assert ended.status == 2, ended
    assert text in ended.errors and "Traceback" not in ended.errors and ended.out == b""


def test_nobody_there_is_told_with_what_to_do(shell: Shell) -> None:
    ended = shell("topic", "list", "-n", "127.0.0.1:1", "--timeout", "0.5", "--json")
    assert ended.status == 1 and ended.out == b""
    document = json.loads(ended.errors)
    assert "no name server at 127.0.0.1:1" in document["error"] and "ropewalk broker" in document["hint"]


# Groups


def test_who_sets_retries_is_told_which_consumers_go_by_them(
    shell: Shell, ropewalk_broker: RopewalkBroker
) -> None:
    group = ropewalk_broker.group()
    for words in (("create", group, "--retries", "3"), ("update", group, "--retries", "5")):
        told = " ".join(shell("group", *words).errors.split())
        assert f"{words[-1]} counts for consumers that name no number of their own" in told
        assert "max_retries of Ropewalk's Python consumers" in told and "maxReconsumeTimes" in told
    assert "retries" not in shell("group", "update", group, "--no-consume").errors
    sent = signature(PushConsumer).parameters["max_retries"].default
    assert sent == 16, "the number that the sentence names"


def test_the_life_of_a_group(shell: Shell, ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    fill(ropewalk_broker, topic, 6)
    missing = shell("group", "show", group)
    assert missing.status == 1 and "group create" in missing.errors
    (made,) = shell.json("group", "create", group, "--retries", "3")
    assert (made["broker"], made["retryMaxTimes"]) == (BROKER, 3)
    (changed,) = shell.json("group", "update", group, "--no-consume")
    assert (changed["retryMaxTimes"], changed["consumeEnable"]) == (3, False)
    shell("group", "update", group, "--consume")
    assert shell("group", "lag", group).errors.strip() == f"{group} has committed nothing yet"

    with PushConsumer(
        group,
        {topic: "*"},
        lambda message: None,
        ropewalk_broker.namesrv,
        consume_from="first",
        commit_interval=0.2,
    ) as c:
        ropewalk_broker.wait_until(lambda: ropewalk_broker.committed(group, topic) == 6)
        shown = shell.json("group", "show", group)
        assert shown["online"] == 1 and shown["clients"][0]["clientId"] == c.client_id
        assert shown["subscriptions"][topic] == "*" and shown["lag"] == 0
        (row,) = [row for row in shell.json("group", "list") if row["group"] == group]
        assert (row["clients"], row["messageModel"], row["topics"], row["lag"]) == (
            1,
            "clustering",
            [topic],
            0,
        )
        (mine,) = [row for row in shell.json("connections", group) if row["kind"] == "consumer"]
        assert (mine["clientId"], mine["language"]) == (c.client_id, "PYTHON")
        warned = shell("group", "delete", group)
        assert warned.status == 2 and "1 client of it would go on" in warned.errors
    assert shell("connections", group).errors.strip() == f"nobody of group {group} is connected"
    lag = shell.rows("group", "lag", group, "--topic", topic)
    assert [row[:6] for row in lag] == [[topic, BROKER, str(n), "3", "3", "0"] for n in range(2)]
    assert shell("group", "delete", group, "--yes").lines == [f"{group} deleted at {BROKER}"]
    assert shell("group", "lag", group).status == 1


def test_a_group_is_sent_elsewhere_only_when_somebody_says_so(
    shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic, group, other = (
        ropewalk_broker.topic(queues=2),
        ropewalk_broker.group(),
        ropewalk_broker.group("other"),
    )
    fill(ropewalk_broker, topic, 8)
    for name in (group, other):
        admin.create_group(name)
    admin.reset_offsets(group, topic, LATEST)

    def committed(name: str) -> list[int]:
        return [queue.consumer_offset for queue in admin.progress(name, topic).queues]

    planned = shell.json("group", "reset", group, topic, "--to", "earliest", "--dry-run")
    assert [row["again"] for row in planned] == [4, 4] and committed(group) == [4, 4]
    refused = shell("group", "reset", group, topic, "--to", "earliest")
    assert refused.status == 2 and "will consume 8 messages again" in refused.errors
    assert committed(group) == [4, 4]
    done = shell.json("group", "reset", group, topic, "--to", "earliest", "--yes")
    assert [(row["before"], row["offset"]) for row in done] == [(4, 0), (4, 0)] and committed(group) == [0, 0]
    refused = shell("group", "skip", group, topic)
    assert refused.status == 2 and "never see 8 messages" in refused.errors
    shell("group", "skip", group, topic, "--yes")
    assert committed(group) == [4, 4]
    (row,) = shell.json("group", "reset", group, topic, "--to", "offset:1", "--queue", "1", "--yes")
    assert (row["queueId"], row["offset"], row["again"]) == (1, 1, 3) and committed(group) == [4, 1]
    outside = shell("group", "reset", group, topic, "--to", "offset:9", "--queue", "1", "--yes")
    assert outside.status == 2 and "which holds 0 to 4" in outside.errors
    nowhere = shell("group", "reset", group, topic, "--to", "latest", "--queue", "7", "--yes")
    assert nowhere.status == 2 and "no such queue" in nowhere.errors

    assert [row["offset"] for row in shell.json("group", "clone", group, other, topic)] == [4, 1]
    assert committed(other) == [4, 1]
    again = shell("group", "clone", group, other, topic)
    assert again.status == 2 and "has read" in again.errors
    assert shell("group", "clone", group, ropewalk_broker.group("none"), topic).status == 1

    shown = shell.json("offset", "show", other, topic)
    assert [(row["maxOffset"], row["committed"]) for row in shown] == [(4, 4), (4, 1)]
    assert shell.json("offset", "set", other, topic, "1", "2") == [
        {"broker": BROKER, "queueId": 1, "before": 1, "offset": 2}
    ]
    assert [row["offset"] for row in shell.json("offset", "search", topic, "1500000000000")] == [0, 0]
    shell.json("group", "skip", other, topic, "--yes")
    kept = shell("offset", "set", other, topic, "1", "2")
    assert kept.status == 1 and "the broker keeps 4: the group was reset" in kept.errors
    assert f"group reset {other} {topic} --to offset:2 --queue 1" in kept.errors
    assert shell("lag", ropewalk_broker.group("nobody")).status == 1


def test_a_yes_on_the_terminal_is_enough(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()

    def answer(word: str) -> tuple[int, str]:
        ours, theirs = os.openpty()
        with subprocess.Popen(
            command_line("admin", "topic", "delete", topic),
            env=command_environment(ropewalk_broker.namesrv),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.write(ours, f"{word}\n".encode())
            _, errors = process.communicate(timeout=30)
        os.close(ours)
        os.close(theirs)
        return process.returncode, errors

    status, errors = answer("n")
    assert status == 2 and "[y/N]" in errors and "nothing was done" in errors
    assert answer("y")[0] == 0
    with Admin(ropewalk_broker.namesrv) as admin:
        assert topic not in admin.topics()


# Lag


def test_lag_of_all_groups_begins_with_the_furthest_behind(
    shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 5)
    near, far = ropewalk_broker.group("near"), ropewalk_broker.group("far")
    for group, place in ((near, LATEST), (far, EARLIEST)):
        admin.create_group(group)
        admin.reset_offsets(group, topic, place)
    rows = [row for row in shell.json("lag") if row["group"] in (near, far)]
    assert [(row["group"], row["lag"]) for row in rows] == [(far, 5), (near, 0)]
    assert [row["lag"] for row in shell.json("lag", far)] == [5]


def test_a_watched_lag_is_drawn_again_and_again_until_ctrl_c(
    ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    admin.create_group(group)
    admin.reset_offsets(group, topic, EARLIEST)
    words = ("admin", "lag", group, "--watch", "--interval", "0.1", "--json")
    with subprocess.Popen(
        command_line(*words),
        env=command_environment(ropewalk_broker.namesrv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["rows"][0]["lag"] == 0
        fill(ropewalk_broker, topic, 3)
        deadline = time.monotonic() + 30
        while json.loads(process.stdout.readline())["rows"][0]["lag"] != 3:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and errors == b""


def test_a_watched_lag_is_redrawn_in_its_place_on_a_terminal(
    ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    admin.create_group(group)
    admin.reset_offsets(group, topic, EARLIEST)
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command_line("admin", "lag", group, "--watch", "--interval", "0.1", "--count", "3"),
        env=command_environment(ropewalk_broker.namesrv) | {"TERM": "xterm"},
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        printed = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            if not data:
                break
            printed += data
    os.close(ours)
    assert process.returncode == 0
    assert printed.count(f"group {group}".encode()) >= 3
    assert b"\x1b[1A" in printed, "the cursor goes up to draw over what was there"


# What members say themselves


def test_members_of_a_group_are_asked_and_judged(
    shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    assert shell("group", "status", group).status == 1
    fill(ropewalk_broker, topic, 6)
    seen: list[ReceivedMessage] = []
    with PushConsumer(group, {topic: "*"}, seen.append, ropewalk_broker.namesrv, consume_from="first") as one:
        ropewalk_broker.wait_until(lambda: len(seen) == 6 and len(one.queues) == 2)
        document = shell.json("group", "status", group)
        assert document["agreed"] and document["troubles"] == []
        (member,) = document["members"]
        assert (member["clientId"], member["queues"], member["cached"]) == (one.client_id, 2, 0)
        assert member["lastConsumed"] > 0 and member["started"] > 0
        (status,) = admin.members_status(group)
        assert {queue.committed for queue in status.queues if queue.source.topic == topic} == {3}
        with PushConsumer(group, {topic: "other"}, seen.append, ropewalk_broker.namesrv):
            ended = shell("group", "status", group)
            assert ended.status == 1 and "subscribes to something else" in ended.errors
    gone = shell("group", "status", group)
    assert gone.status == 1 and "nobody of group" in gone.errors


# Messages


def test_a_message_that_waits_for_a_retry_or_is_dead_is_not_shown_as_consumed(
    shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    patient, strict = ropewalk_broker.group("patient"), ropewalk_broker.group("strict")

    def handle(message: ReceivedMessage) -> None:
        raise ValueError("poison")

    sent = shell.json("message", "send", topic, "poison")
    for group, retries in ((patient, 3), (strict, 0)):
        admin.create_group(group)
        with PushConsumer(
            group, {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="first",
            on_error=lambda *_: None, max_retries=retries, commit_interval=0.1,
        ):  # fmt: skip
            ropewalk_broker.wait_until(lambda g=group: ropewalk_broker.committed(g, topic) == 1)  # type: ignore[misc]
    tracks = {one["group"]: one for one in shell.json("message", "show", sent["offsetMsgId"])["groups"]}
    assert (tracks[patient]["state"], tracks[patient]["failures"]) == ("waiting for retry", 1)
    stored_ms = shell.json("message", "by-id", sent["offsetMsgId"])["storeTimestamp"]
    assert 9_000 < tracks[patient]["nextAt"] - stored_ms < 60_000, "the third level is ten seconds"
    assert tracks[strict]["state"] == "dead letter" and tracks[strict]["deadSince"] > 0
    people = " ".join(" ".join(shell("message", "show", sent["offsetMsgId"]).lines).split())
    assert f"{patient} waiting for retry 1 time next" in people
    assert f"{strict} dead letter 1 time dead since 20" in people
    assert shell.json("group", "show", patient)["waitingRetries"] == 1
    assert shell.json("group", "show", strict)["deadLetters"] == 1
    shown = dict(line.split(maxsplit=1) for line in shell("group", "show", strict).lines if " " in line)
    assert shown["deadLetters"] == f"1, in topic %DLQ%{strict}", "that is where to look"
    listed = {one["group"]: one["deadLetters"] for one in shell.json("group", "list")}
    assert (listed[patient], listed[strict]) == (0, 1)


def test_a_life_is_drawn_from_traces(shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin) -> None:
    topic = ropewalk_broker.topic()
    key = "order-7"
    pub = f"Pub\x011000\x01R\x01shop\x01orders\x01{key}ID\x01\x01{key}\x0110.0.0.1:10911\x017\x013\x010\x01\x01true\x02"
    sub = f"SubBefore\x012000\x01R\x01billing\x01r1\x01{key}ID\x010\x01\x02"
    for body, keys in ((pub, [key, f"{key}ID"]), (sub, [f"{key}ID"])):
        message = Message(body.encode(), keys=keys)
        with Producer(ropewalk_broker.namesrv) as producer:
            producer.send(topic, message)
    until(lambda: len(admin.messages_by_key(topic, f"{key}ID")) == 2, "the key index has both")
    for wanted in (key, f"{key}ID"):
        steps = shell.json("message", "trace", wanted, "--trace-topic", topic)
        assert [(step["event"], step["group"]) for step in steps] == [
            ("sent", "shop"), ("stored", "shop"), ("delivered", "billing"),
        ]  # fmt: skip
    missing = shell("message", "trace", "no-such-key", "--trace-topic", topic)
    assert missing.status == 1 and "no trace of no-such-key" in missing.errors


def test_a_message_is_sent_and_found(shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    words = ("message", "send", topic, "hello", "--keys", "k1 k2", "--tags", "new", "--property", "shop=7")
    sent = shell.json(*words, "--queue", "1")
    assert (sent["status"], sent["queueId"], sent["queueOffset"]) == ("SEND_OK", 1, 0)
    admin.create_group(group)
    admin.reset_offsets(group, topic, LATEST)

    by_id = shell.json("message", "by-id", sent["offsetMsgId"])
    assert (by_id["body"], by_id["keys"], by_id["properties"]["shop"]) == ("hello", "k1 k2", "7")
    by_place = shell.json("message", "show", sent["offsetMsgId"])
    assert by_place == shell.json("message", "show", sent["msgId"], "--topic", topic)
    (track,) = by_place["groups"]
    assert track == {
        "group": group, "state": "consumed", "online": False, "failures": 0, "nextAt": None, "deadSince": None,
    }  # fmt: skip
    found: tuple[tuple[str, ...], ...] = (
        ("message", "by-key", topic, "k2"),
        ("message", "by-unique-key", topic, sent["msgId"]),
        ("message", "by-time", topic, "--from", "1500000000000"),
    )
    for query in found:
        assert [message["body"] for message in shell.json(*query)] == ["hello"], query
    assert shell.json("message", "by-offset", topic, "1", "0")["msgId"] == sent["msgId"]

    people = [line.split() for line in shell("message", "show", sent["offsetMsgId"]).lines]
    assert ["body", "hello"] in people and [group, "consumed", "no"] in people
    not_found: tuple[tuple[str, ...], ...] = (
        ("message", "by-key", topic, "none"),
        ("message", "by-unique-key", topic, "F" * 32),
        ("message", "by-offset", topic, "1", "9"),
    )
    for query in not_found:
        missing = shell(*query)
        assert missing.status == 1 and missing.out == b"" and "no message" in missing.errors
    unplaced = shell("message", "show", sent["msgId"])
    assert unplaced.status == 2 and f"{sent['msgId']} is a msgId" in unplaced.errors
    assert "Name the topic with --topic" in " ".join(unplaced.errors.split())
    for command in ("show", "by-id"):
        gone = shell("message", command, "7F00000100000001000000000000000A")  # 127.0.0.1:1, offset 10
        told = " ".join(gone.errors.split())
        assert gone.status == 1 and "names a broker that does not answer" in told and "--topic TOPIC" in told
        assert "is it still running" not in told
    # What `message` prints can be sent again.
    copy = shell._run(
        "produce",
        topic,
        "--json-lines",
        stdin=json.dumps(by_id).encode(),
        name_server=ropewalk_broker.namesrv,
    )
    assert copy.status == 0, copy


def test_an_offset_id_is_enough_also_where_the_broker_is_registered_under_a_host_name(
    ropewalk: RunCommand, tmp_path: Path
) -> None:
    words = ("--set", "brokerIP1=localhost")
    with running_broker(
        checkout_command(), *words, cwd=tmp_path, environment=checkout_environment()
    ) as running:
        with Producer(running.namesrv) as producer:
            (offset_id,) = producer.send("orders", b"hello").offset_message_ids
        shown = ropewalk("admin", "message", "show", offset_id, "--json", name_server=running.namesrv)
        assert shown.status == 0 and json.loads(shown.out)["body"] == "hello", shown


def test_a_message_group_and_a_delay_travel_with_a_message(
    shell: Shell, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic(queues=4)
    places = {
        shell.json("message", "send", topic, "x", "--message-group", "order-7")["queueId"] for _ in range(3)
    }
    assert len(places) == 1
    began = time.time()
    shell.json("message", "send", topic, "later", "--delay", "1s")
    bodies = ropewalk_broker.messages(topic, 4)
    assert bodies[-1].body == b"later" and time.time() - began >= 0.9


def test_direct_consumption_needs_a_member_that_is_online(
    shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    sent = ropewalk_broker.send(topic, "once more")
    nobody = shell("message", "consume-directly", sent.offset_message_ids[0], group, "--yes")
    assert nobody.status == 1 and "nobody of group" in nobody.errors
    seen: list[ReceivedMessage] = []
    with PushConsumer(group, {topic: "*"}, seen.append, ropewalk_broker.namesrv, consume_from="first"):
        ropewalk_broker.wait_until(lambda: len(seen) == 1)
        asked = shell("message", "consume-directly", sent.offset_message_ids[0], group)
        assert asked.status == 2 and "Have " in asked.errors and len(seen) == 1
        done = shell.json("message", "consume-directly", sent.offset_message_ids[0], group, "--yes")
        assert done["result"] == "CR_SUCCESS" and len(seen) == 2
        wrong = shell(
            "message", "consume-directly", sent.offset_message_ids[0], group, "--client", "x", "--yes"
        )
        assert wrong.status == 2 and "has no member x" in wrong.errors


# Brokers


def test_brokers_and_clusters_are_listed(shell: Shell, ropewalk_broker: RopewalkBroker) -> None:
    (broker,) = shell.json("broker", "list")
    assert (broker["broker"], broker["brokerId"], broker["address"]) == (BROKER, 0, ropewalk_broker.broker)
    assert broker["answers"] is True and broker["version"].startswith("V")
    assert broker["ropewalkVersion"] == __version__, "Ropewalk's own beside the compatible one"
    (cluster,) = shell.json("cluster", "list")
    assert cluster["members"] == [f"0={ropewalk_broker.broker}"]
    (status,) = shell.json("broker", "status", BROKER)
    assert status["runtime"]["brokerActive"] == "true"
    facts = dict(line.split(None, 1) for line in shell("broker", "status").lines[1:])
    assert facts["brokerActive"] == "true"
    (server,) = shell.json("cluster", "name-servers")
    assert server["address"] == ropewalk_broker.namesrv and server["config"]["enableTopicList"] == "true"


def test_settings_are_shown_and_changed(shell: Shell, admin: Admin) -> None:
    (config,) = shell.json("broker", "config", "get", "maxMessageS*", "BROKERNAME", "--broker", BROKER)
    assert set(config["config"]) == {"brokerName", "maxMessageSize"}
    before = config["config"]["maxMessageSize"]
    (changed,) = shell.json("broker", "config", "set", "maxMessageSize=4000000", "--broker", BROKER)
    assert (changed["before"], changed["value"]) == (before, "4000000")
    assert shell("broker", "config", "get", "maxMessageSize").lines[1:] == ["maxMessageSize=4000000"]
    shell.json("broker", "config", "set", f"maxMessageSize={before}")
    refused = shell("broker", "config", "set", "listenPort=1")
    assert refused.status == 1 and "start it again" in refused.errors


def test_producers_are_turned_away_from_a_broker_and_let_in_again(
    shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin
) -> None:
    topic = ropewalk_broker.topic()
    refused = shell("broker", "wipe-write-perm", BROKER)
    assert refused.status == 2 and "no other broker" in refused.errors
    try:
        (wiped,) = shell.json("broker", "wipe-write-perm", BROKER, "--yes")
        assert wiped["topics"] >= 1 and admin.topic_route(topic).write_queues() == ()
    finally:
        shell.json("broker", "restore-write-perm", BROKER)
    assert len(admin.topic_route(topic).write_queues()) == 4


def test_what_goes_in_and_out_is_counted(shell: Shell, ropewalk_broker: RopewalkBroker, admin: Admin) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    fill(ropewalk_broker, topic, 4)
    (alone,) = shell.json("broker", "stats", "--topic", topic)
    assert alone["inDay"] == 4 and alone["group"] is None
    admin.create_group(group)
    admin.reset_offsets(group, topic, EARLIEST)
    (row,) = shell.json("broker", "stats", "--topic", topic)
    assert (row["group"], row["lag"]) == (group, 4)


# Help, and what a shell completes


def test_every_command_has_help_and_json(shell: Shell) -> None:
    import typer

    from tools.admin.cli import app

    root = typer.main.get_group(app)
    names = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children is not None:
            assert command.help, path
            for name, child in children.items():
                walk(child, (*path, name))
            return
        names.append(" ".join(path))
        assert command.help and command.help.split("\n")[0].endswith((".", ")")), path
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--json", "--name-server", "--timeout"} <= options, path
        for parameter in command.params:
            assert parameter.hidden or parameter.help or parameter.param_type_name == "argument", (
                path,
                parameter,
            )

    for name, child in root.commands.items():
        if name != "ha":
            walk(child, (name,))
    for expected in (
        *(f"topic {name}" for name in ("list", "show", "create", "update", "delete", "route", "perm")),
        *(
            f"group {name}"
            for name in ("list", "show", "status", "create", "delete", "lag", "reset", "clone", "skip")
        ),
        *(f"message {name}" for name in ("show", "by-key", "by-id", "by-unique-key", "by-offset", "by-time")),
        *("message send", "message consume-directly", "cluster list", "lag", "connections"),
        *("broker list", "broker status", "broker config get", "broker config set", "broker stats"),
        *("broker wipe-write-perm", "offset show", "offset set", "offset search"),
    ):
        assert expected in names


def complete(broker: RopewalkBroker, line: str) -> list[str]:
    """What bash would offer at the end of a line."""
    words = line.split(" ")
    done = subprocess.run(
        command_line(),
        env=command_environment(broker.namesrv)
        | {"_ROPEWALK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def test_a_shell_completes_commands_options_and_names(ropewalk_broker: RopewalkBroker, admin: Admin) -> None:
    topic, group = ropewalk_broker.topic("completed"), ropewalk_broker.group("completed-group")
    admin.create_group(group)
    assert "admin" in complete(ropewalk_broker, "ropewalk ad")
    assert {"create", "delete"} <= set(complete(ropewalk_broker, "ropewalk admin topic "))
    assert "--yes" in complete(ropewalk_broker, "ropewalk admin topic delete --")
    # Names come from the name server, which a shell waits for no longer than for half a second.
    for line, name in (
        (f"ropewalk admin topic show {topic[:-3]}", topic),
        (f"ropewalk admin group lag {group[:-3]}", group),
        (f"ropewalk consume {topic[:-3]}", topic),
        ("ropewalk admin broker wipe-write-perm b", BROKER),
    ):
        until(lambda line=line, name=name: complete(ropewalk_broker, line) == [name], line)  # type: ignore[misc]
    assert complete(ropewalk_broker, "ropewalk admin broker config set maxM") == ["maxMessageSize="]
    assert complete(ropewalk_broker, "ropewalk broker --set flushDisk") == ["flushDiskType="]
    assert complete(ropewalk_broker, "ropewalk drill run switc") == ["switch"]


def test_completion_is_silent_without_a_name_server(tmp_path: Path) -> None:
    done = subprocess.run(
        command_line(),
        env=command_environment("127.0.0.1:1")
        | {
            "_ROPEWALK_COMPLETE": "complete_bash",
            "COMP_WORDS": "ropewalk admin topic show x",
            "COMP_CWORD": "4",
        },
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == b"" and done.stderr == b""


# Small things


def test_a_sheet_is_text_for_people_and_values_for_programs() -> None:
    sheet = Sheet(
        (("when", "time"), ("on", "on"), ("names", "names")),
        [(Moment(0), True, ["a", "b"]), (None, False, [])],
    )
    assert sheet.cells == [["never", "yes", "a, b"], [None, "no", ""]]
    assert sheet.as_json() == [
        {"time": 0, "on": True, "names": ["a", "b"]},
        {"time": None, "on": False, "names": []},
    ]


def test_permissions_are_words_or_rocketmqs_numbers() -> None:
    assert [parse_permission(text) for text in ("rw", "WR", "6", "r", "4", "w", "2", "none", "0")] == [
        6, 6, 6, 4, 4, 2, 2, 0, 0,
    ]  # fmt: skip
    with pytest.raises(UsageError):
        parse_permission("7")


def test_a_broker_that_reads_its_sinks_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([TryLater("the rows of open batches are being read"), None, TryLater("still")])
    monkeypatch.setattr(sink, "_RETRY_S", 0.0)

    def ask() -> str:
        if (answer := next(answers)) is not None:
            raise answer
        return "loaded"

    assert sink._when_loaded(ask) == "loaded"
    monkeypatch.setattr(sink, "_LOADING_S", 0.0)
    with pytest.raises(TryLater, match="still"):
        sink._when_loaded(ask)


def test_sinks_are_listed_and_forgotten(shell: Shell, ropewalk_broker: RopewalkBroker) -> None:
    with Connection(ropewalk_broker.broker) as connection:
        for sink_id in ("one", "two"):
            init = command_of(
                RequestCode.ROPEWALK_SINK_INIT, SinkInitHeader(sink_id, "T", key_version=KEY_VERSION)
            )
            assert connection.call(init).code == ResponseCode.SUCCESS
    listed = {row["sinkId"]: row for row in shell.json("sink", "list")}
    assert {"one", "two"} <= set(listed)
    assert (listed["one"]["epoch"], listed["one"]["batch"], listed["one"]["openRows"]) == (1, -1, 0)
    assert shell("sink", "forget", "one").status == 2  # nobody said yes
    ended = shell("sink", "forget", "one", "--yes")
    assert (ended.status, b"one" in ended.out) == (0, True)
    assert "one" not in {row["sinkId"] for row in shell.json("sink", "list")}
    assert shell("sink", "forget", "one", "--yes").status == 1
