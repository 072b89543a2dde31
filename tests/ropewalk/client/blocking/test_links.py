"""Many conversations over the connections of one thread: none waits for another's answer."""

from __future__ import annotations

import threading

import pytest

from ropewalk.client.blocking.links import BlockingLinks, ConversationPool
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.steps import Ask, Steps, ask
from ropewalk.codes import RequestCode
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.remoting import Command
from tests.ropewalk.client.fake_cluster import FakeCluster

SEND = Command(RequestCode.SEND_MESSAGE_V2)


def talk(address: str, timeout_s: float = 5.0, times: int = 1) -> Steps[int]:
    """Ask so many times, one after the other; the result is the last answer's code."""
    code = -1
    for _ in range(times):
        code = (yield from ask(address, SEND, timeout_s)).code
    return code


def hold(together: ConversationPool[int, int], until: int) -> dict[int, int | RopewalkError]:
    found: dict[int, int | RopewalkError] = {}
    while len(found) < until:
        together.wait(5.0)
        ended, together.ended = together.ended, []
        found |= dict(ended)
    return found


@pytest.fixture
def links() -> BlockingLinks:
    return BlockingLinks()


def test_all_have_asked_before_the_first_is_answered(cluster: FakeCluster, links: BlockingLinks) -> None:
    cluster.answers[SEND.code] = lambda request: None
    together = ConversationPool[int, int](links, threading.Lock())
    for number in range(5):
        together.begin(number, talk(cluster.address))
    cluster.wait_for_request(SEND.code, 5)
    assert len(together) == 5 and not together.ended
    links.close()


def test_each_goes_on_from_its_own_answers(cluster: FakeCluster, links: BlockingLinks) -> None:
    cluster.answers[SEND.code] = lambda request: request.reply(0)
    together = ConversationPool[int, int](links, threading.Lock())
    for number in range(4):
        together.begin(number, talk(cluster.address, times=number + 1))
    assert hold(together, 4) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert not len(together) and len(cluster.requests) == 1 + 2 + 3 + 4
    links.close()


def test_silence_ends_one_and_leaves_the_others_waiting(cluster: FakeCluster, links: BlockingLinks) -> None:
    cluster.answers[SEND.code] = lambda request: None
    together = ConversationPool[int, int](links, threading.Lock())
    together.begin(0, talk(cluster.address, timeout_s=30.0))
    together.begin(1, talk(cluster.address, timeout_s=0.05))
    (outcome,) = hold(together, 1).items()
    assert outcome[0] == 1 and isinstance(outcome[1], OutcomeUnknown) and "within 0.05 s" in str(outcome[1])
    assert len(together) == 1
    links.close()


def test_a_peer_that_hangs_up_ends_all_that_waited_for_it(cluster: FakeCluster, links: BlockingLinks) -> None:
    cluster.answers[SEND.code] = lambda request: None
    together = ConversationPool[int, int](links, threading.Lock())
    for number in range(3):
        together.begin(number, talk(cluster.address))
    cluster.wait_for_request(SEND.code, 3)
    cluster.hang_up()
    assert [type(outcome) for outcome in hold(together, 3).values()] == [OutcomeUnknown] * 3
    links.close()


def test_a_conversation_hears_of_a_failure_and_may_go_on(cluster: FakeCluster, links: BlockingLinks) -> None:
    cluster.answers[SEND.code] = lambda request: request.reply(7)

    def elsewhere() -> Steps[int]:
        try:
            yield Ask("127.0.0.1:1", SEND, 1.0)
        except Unreachable:
            return (yield from talk(cluster.address))
        raise AssertionError("nobody is there")

    together = ConversationPool[int, int](links, threading.Lock())
    together.begin(0, elsewhere())
    assert hold(together, 1) == {0: 7}
    links.close()
