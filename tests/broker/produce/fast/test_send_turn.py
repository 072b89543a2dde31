"""What a turn of the loop brings from many clients: one append, and every promise to each of them kept."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.produce.fast import runs as send_run
from ropewalk.codes import RequestCode
from ropewalk.format.record import decode_records
from ropewalk.format.record_pattern import SPLIT_MIN
from store.append import Alike
from tests.broker.harness import UNIQ, Client, FullDisk, InProcess, pull_ext, request, send_ext, text_of
from tests.broker.send_pairs import Pair, counted, stored_since

StartBroker = Callable[..., InProcess]
V2 = RequestCode.SEND_MESSAGE_V2


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
    mark, before = running.broker.store.log.end_offset, counted(running)
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
    new = stored_since(running, mark)
    counts = counted(running) - before
    for topic in ("T", "U"):
        assert counts[topic, 0] == sum(record.topic == topic for record in new)
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


def give(client: Client, body: bytes, opaque: int, **header: Any) -> None:
    client.session.receive(request(V2, send_ext("T", **header), body, opaque=opaque))


@pytest.mark.parametrize(("run_max", "appends"), [(256, [5]), (3, [3, 2])])
def test_one_append_takes_what_many_clients_sent_in_a_turn(
    running: InProcess, monkeypatch: pytest.MonkeyPatch, run_max: int, appends: list[int]
) -> None:
    monkeypatch.setattr(send_run, "RUN_MAX", run_max)
    clients = learned(running, 5)
    appended: list[int] = []
    put_alike = running.broker.store.put_alike

    def noted(batch: list[Alike]) -> list[tuple[int, int]]:
        appended.append(len(batch))
        return put_alike(batch)

    monkeypatch.setattr(running.broker.store, "put_alike", noted)
    running.broker.begin_turn()
    for n, client in enumerate(clients):
        give(client, b"body%d" % n, n)
    assert appended == appends[:-1]
    running.broker.end_turn()
    assert appended == appends
    assert [c.answers()[0].ext["queueOffset"] for c in clients] == [str(n) for n in range(10, 15)]


def test_a_turn_of_bodies_of_every_size_stores_them_as_they_came(running: InProcess) -> None:
    """Larger ones are placed without being copied into a record first; with its header a body is longer than it is."""
    sizes = [SPLIT_MIN - n for n in (600, 200, 1, 0, -1)] + [60_000, 3, 200_000, 400_000, 500_000]
    bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
    clients = learned(running, len(bodies))
    running.broker.begin_turn()
    for n, (client, body) in enumerate(zip(clients, bodies, strict=True)):
        give(client, body, n)
    running.broker.end_turn()
    assert [client.answers()[0].code for client in clients] == [0] * len(bodies)
    assert [record.body for record in running.stored("T", last=len(bodies))] == bodies
    assert len(running.broker.store.log.segments) > 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_many_clients_send_in_a_turn_wakes_who_waits_for_it(
    start_broker: StartBroker, flush: str
) -> None:
    running = start_broker(flushDiskType=flush)
    clients = learned(running, 2)
    consumer = running.connect()
    consumer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", sysFlag=6, queueOffset=4))
    assert running.broker.held_pulls.size == 1
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
        broker.context.stopping = True
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
    fate = {"stopping": "service_not_available", "topics": "success", "rules": "message_illegal"}[what]
    assert counted(running)["send_message_v2", fate, "success"] == (5 if what == "topics" else 1)
    assert len(running.stored("T")) == (1 if what == "topics" else 4)


def test_a_header_learned_under_older_rules_is_judged_anew_beside_one_learned_since(
    running: InProcess,
) -> None:
    newer, older = learned(running, 2)
    newer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"traceOn=false")
    other = text_of({"UNIQ_KEY": UNIQ, "TAGS": "A"})
    for _ in range(2):
        newer.send("T", b"another", properties=other)
    running.broker.begin_turn()
    give(newer, b"newer", 1, properties=other)
    give(older, b"older", 2)
    running.broker.end_turn()
    traced = {record.body: record.properties["TRACE_ON"] for record in running.stored("T")}
    assert traced == {b"warm": "true", b"another": "false", b"newer": "false", b"older": "false"}


def test_a_client_that_sends_one_by_one_has_a_header_learned_again_when_others_helped_for_long(
    running: InProcess,
) -> None:
    (client,) = learned(running, 1)

    def send(tags: int) -> bytes:
        frame = request(V2, send_ext("T", properties=text_of({"UNIQ_KEY": UNIQ, "TAGS": "x" * tags})), b"x")
        client.feed(frame)
        assert [answer.code for answer in client.answers()] == [0]
        return frame[4:8]

    for tags in range(1, 40):
        send(tags)
    templates = client.session.fast.sends
    assert send(50) not in templates.known, "it never sends the same again"
    for _ in range(100):
        client.send("T", b"like the first ones")
    assert send(60) in templates.known


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
