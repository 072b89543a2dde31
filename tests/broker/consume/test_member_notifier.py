"""Members of changed groups: each is told once, and of each of its groups."""

import json
from itertools import count

import pytest

from broker.remoting.cold_lane import TURN_S
from broker.state import client_sizes
from ropewalk.codes import RequestCode
from tests.broker.harness import InProcess, frame_of, heartbeat_body, request, told


def test_a_thousand_that_join_together_are_each_told_once(running: InProcess) -> None:
    clients = [running.connect() for _ in range(1000)]
    for n, client in enumerate(clients):
        client.heartbeat(client_id=f"c{n}")
    for _ in range(4):  # some hundreds of them a tick
        running.tick(50)
    assert all(len(client.answers()) == 1 for client in clients)
    for client in clients[:999]:
        client.disconnect()
    found = [group for _ in range(5) for group in told(clients[999])]
    assert found == ["cg"]
    running.tick(50)
    assert all(client.answers() == [] for client in clients)


def test_news_about_several_groups_are_told_for_each(running: InProcess) -> None:
    client = running.connect()
    client.heartbeat(group="g1")
    client.heartbeat(group="g2")
    assert told(client) == ["g1", "g2"]


def test_a_connection_that_was_in_a_thousand_groups_leaves_them_over_turns(running: InProcess) -> None:
    """A stranger whose connection ended took two seconds of everybody."""
    running.broker._work._clock = count().__next__  # a step a turn
    stays, goes = running.connect(), running.connect()
    groups = [f"g{n}" for n in range(500)]
    for client, name in ((stays, "stays"), (goes, "goes")):
        for group in groups:
            client.heartbeat(client_id=name, group=group)
    told_first = {group for _ in range(8) for group in told(stays)}
    goes.answers()
    goes.disconnect()
    left = sum(len(running.broker.clients.members_of(group)) for group in groups)
    assert left == 950, "some at once"
    for turn in range(1, 11):
        running.turn()
        left = sum(len(running.broker.clients.members_of(group)) for group in groups)
        assert left == max(500, 950 - 50 * turn)
    found = {group for _ in range(5) for group in told(stays)}
    assert found == told_first == set(groups)
    assert not goes.link.sent


def test_groups_take_turns_in_being_told(running: InProcess) -> None:
    crowd = [running.connect() for _ in range(1_000)]
    for n, client in enumerate(crowd):
        client.heartbeat(client_id=f"c{n}", group="crowd")
    alone = running.connect()
    alone.heartbeat(group="alone")
    assert told(alone) == ["alone"], "in the first tick already"
    crowd[0].disconnect()
    for _ in range(8):
        running.tick(50)
    for client in crowd[1:]:
        assert len(client.answers()) == 2, "a group that changes while it is told is told again"


def test_a_client_that_takes_most_is_closed_when_all_bytes_are_taken(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sizes, "SIZE_MAX", 1 << 20)
    honest = running.connect(peer=("10.0.0.1", 1))
    honest.heartbeat()
    strangers = [running.connect(peer=("10.0.0.9", n)) for n in range(8)]
    for number, client in enumerate(strangers):
        tags = " || ".join(f"{number}-{n}" for n in range(1_000))
        client.ask(RequestCode.HEART_BEAT, body=heartbeat_body(client_id=f"s{number}", topics={"T": tags}))
        for _ in range(20):
            running.turn()
    assert any(client.link.closed for client in strangers)
    assert not honest.link.closed
    assert running.broker.clients.sizes.size <= 1 << 20
    assert honest.heartbeat().code == 0
    told(honest)


def test_the_connections_of_a_group_are_written_in_steps(running: InProcess) -> None:
    for n in range(400):
        running.connect().heartbeat(client_id=f"c{n}")
    seconds = count()
    running.broker.lane.clock = lambda: next(seconds) * TURN_S / 2
    tool = running.connect()
    opaque = tool.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "cg"})
    assert not tool.link.sent, "it was written at once"
    assert len(json.loads(tool.answer(opaque).body)["connectionSet"]) == 400


def test_of_the_name_of_a_clients_language_little_is_kept(running: InProcess) -> None:
    client = running.connect()
    frame = request(RequestCode.HEART_BEAT, body=heartbeat_body())
    client.feed(
        frame_of(frame[8:].partition(b"}")[0].replace(b"JAVA", b"J" * 30_000) + b"}", heartbeat_body())
    )
    client.answers()
    (member,) = running.broker.clients.consumer_group("cg").members.values()  # type: ignore[union-attr]
    assert member.language == "J" * 32


def test_the_list_of_a_groups_ids_is_written_once_until_members_change(running: InProcess) -> None:
    """All members of a large group ask for it when one comes or goes."""
    clients = [running.connect() for _ in range(300)]
    for n, client in enumerate(clients):
        client.heartbeat(client_id=f"c{n}")
    seconds, steps = count(), 0

    def clock() -> float:
        nonlocal steps
        steps += 1
        return next(seconds) * TURN_S / 8

    running.broker.lane.clock = clock
    tool = running.connect()

    def ids() -> list[str]:
        opaque = tool.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cg"})
        found: list[str] = json.loads(tool.answer(opaque).body)["consumerIdList"]
        return found

    assert ids() == [f"c{n}" for n in range(300)]
    before = steps
    assert len(ids()) == 300
    assert steps - before <= 4, "it was written again"
    clients[7].disconnect()
    assert len(ids()) == 299
    clients[8].heartbeat(client_id="other")
    assert len(ids()) == 299 and "other" in ids()
