"""The connections of producers that are remembered because they sent half messages."""

from __future__ import annotations

from typing import cast

from broker.remoting.connection import Connection
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Handlers, Session
from broker.state.clients import ClientRegistry
from broker.transactions.producers import GROUPS_MAX, GROUPS_PER_SESSION_MAX, SESSIONS_MAX, CheckTargets
from tests.support.links import FakeLink


def session(host: str, port: int = 1) -> Session:
    link = cast(Connection, FakeLink((host, port)))
    return Session(link, Handlers(), lambda session: None, budget=IncomingBudget(lambda: 0))


def test_a_stranger_that_invents_groups_of_half_messages_takes_no_place_of_others() -> None:
    targets = CheckTargets(ClientRegistry())
    for port in range(GROUPS_MAX // GROUPS_PER_SESSION_MAX + 10):
        stranger = session("10.0.0.9", port)
        for n in range(GROUPS_PER_SESSION_MAX):
            targets.sent(f"s{port}-{n}", stranger)
    honest = session("10.0.0.1")
    targets.sent("orders", honest)
    assert targets.next_of("orders") is honest


def test_a_connection_is_remembered_for_the_groups_that_it_sent_for_last() -> None:
    targets = CheckTargets(ClientRegistry())
    one = session("10.0.0.1")
    for n in range(GROUPS_PER_SESSION_MAX + 5):
        targets.sent(f"g{n}", one)
    found = [n for n in range(GROUPS_PER_SESSION_MAX + 5) if targets.next_of(f"g{n}") is one]
    assert found == list(range(5, GROUPS_PER_SESSION_MAX + 5))
    targets.closed(one)
    assert targets.next_of("g50") is None


def test_a_name_that_no_group_has_is_not_remembered() -> None:
    targets = CheckTargets(ClientRegistry())
    targets.sent("g" * 256, session("10.0.0.1"))
    assert targets.next_of("g" * 256) is None


def test_of_a_group_the_newest_connections_are_remembered() -> None:
    targets = CheckTargets(ClientRegistry())
    sessions = [session("10.0.0.1", port) for port in range(SESSIONS_MAX + 3)]
    for each in sessions:
        targets.sent("g", each)
    assert {targets.next_of("g") for _ in range(60)} == set(sessions[3:])
