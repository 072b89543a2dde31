"""Events on their way to a core: one after the other, appends first, and none after a failure."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ha.dledger.events import EventQueue, MemberFailed
from ha.dledger.links.hello import Identity
from ha.dledger.links.peers import Peers
from ha.raft.types import Effects, Event, Leaving, Met, Received, TakeLead
from ropewalk.errors import RemoteProtocolError


class Owner:
    """An owner that writes down what happens; its core takes every event, or fails by it."""

    def __init__(self) -> None:
        self.core: Any = self
        self.happened: list[tuple[str, object]] = []
        self.answers: dict[Event, Event] = {}
        """Events that arise while the effects of others are carried out."""
        self.failures: dict[Event, Exception] = {}
        self.appended: list[Event] = []
        rng = random.Random(1)
        me = Identity("c", "g", "n0", b"i" * 16, 1 << 16)
        peers: Any = Peers(me, {"n0": "h:1"}, {}, (), self, lambda: 0, rng.randbytes)  # type: ignore[arg-type]
        peers.hang_up = lambda *why: self.happened.append(("hang up", why))
        self.queue = EventQueue(self, peers)

    def tell_appended(self) -> None:
        self.queue.put_first(self.appended)
        self.appended = []

    def step(self, event: Event) -> Effects:
        if event in self.failures:
            raise self.failures[event]
        self.happened.append(("step", event))
        return Effects()

    def carry_out(self, effects: Effects, event: Event, data: bytes | memoryview) -> None:
        if event in self.answers:
            self.queue.tell(self.answers[event])
        self.happened.append(("carried out", event))


ONE, TWO, THREE = (Met(peer, 1, False) for peer in ("n1", "n2", "n3"))


def test_an_event_that_arises_while_effects_are_carried_out_waits_until_they_are() -> None:
    owner = Owner()
    owner.answers[ONE] = TWO
    owner.queue.tell(ONE)
    assert owner.happened == [("step", ONE), ("carried out", ONE), ("step", TWO), ("carried out", TWO)]


def test_what_was_appended_is_told_in_its_order_before_any_other_event() -> None:
    owner = Owner()
    owner.appended = [TWO, THREE]
    owner.queue.tell(ONE)
    assert [event for what, event in owner.happened if what == "step"] == [TWO, THREE, ONE]


def test_a_peer_that_breaks_the_protocol_is_hung_up_on_and_the_next_event_is_heard() -> None:
    owner = Owner()
    bad = Received("n1", 7, TakeLead(1), 0)
    owner.failures[bad] = RemoteProtocolError("no such term")
    owner.queue.tell(bad)
    owner.queue.tell(ONE)
    owner.queue.refuse_to_go_on()
    assert owner.happened == [("hang up", ("n1", 7, "no such term")), ("step", ONE), ("carried out", ONE)]


def test_after_a_failure_no_event_is_heard() -> None:
    owner = Owner()
    owner.failures[ONE] = AssertionError("rule 12")
    owner.answers[Leaving()] = TWO
    with pytest.raises(AssertionError, match="rule 12"):
        owner.queue.tell(ONE)
    owner.queue.tell(Leaving())
    assert owner.happened == []
    with pytest.raises(MemberFailed, match="n0 of group g must stop: rule 12"):
        owner.queue.refuse_to_go_on()
