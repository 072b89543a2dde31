"""Names that the system looks up slowly: nobody waits for longer than the time that they gave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ropewalk import AsyncProducer, Producer, Unreachable
from ropewalk.client import resolver
from ropewalk.client.aio.connection import open_connection
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.blocking.links import BlockingLinks
from ropewalk.client.core.steps import Ask
from ropewalk.client.resolver import resolve
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.ropewalk.client.fake_cluster import FakeCluster

Run = Callable[[Callable[[], Awaitable[None]]], None]


class SlowNames:
    """A system whose look-ups of names take until they are let go; `slow` of them have begun."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real, self.slow, self.go = real, 0, threading.Event()

    def __call__(self, host: str, *arguments: Any, **named: Any) -> Any:
        if named.get("flags", 0) & socket.AI_NUMERICHOST or host == "127.0.0.1":
            return self.real(host, *arguments, **named)
        self.slow += 1
        self.go.wait()
        return self.real("127.0.0.1", *arguments, **named)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield slow
    slow.go.set()


def test_a_blocking_client_gives_up_when_its_time_is_up(names: SlowNames) -> None:
    with (
        Producer("ns.example:9876", timeout=0.2) as producer,
        pytest.raises(Unreachable),
    ):
        producer.send("orders", b"x")
    with pytest.raises(Unreachable, match=r"the name broker.example was not resolved within"):
        Connection("broker.example:10911", 0.1)


def test_a_client_in_a_loop_gives_up_when_its_time_is_up_and_the_loop_goes_on(
    names: SlowNames, run: Run
) -> None:
    async def story() -> None:
        async with AsyncProducer("ns.example:9876", timeout=0.2) as producer:
            with pytest.raises(Unreachable):
                await producer.send("orders", b"x")
        with pytest.raises(Unreachable, match=r"in time|not resolved"):
            async with open_connection("broker.example:10911", timeout=0.1):
                pass

    run(story)


def test_all_who_wait_for_a_name_wait_for_one_thread(names: SlowNames) -> None:
    for _ in range(5):
        with pytest.raises(Unreachable):
            resolve("shared.example", 0.01)
    assert names.slow == 1
    names.go.set()
    assert resolve("shared.example", 30) == [(socket.AF_INET, "127.0.0.1")]
    assert "shared.example" not in resolver._resolver._under_way


def test_a_name_that_is_known_in_time_leaves_the_rest_of_it_to_the_answer(
    names: SlowNames, cluster: FakeCluster
) -> None:
    names.go.set()
    port = cluster.address.rpartition(":")[2]
    links = BlockingLinks(timeout=5)
    ask = Ask(f"cluster.example:{port}", Command(RequestCode.GET_BROKER_CLUSTER_INFO, {}), 5.0)
    assert links.carry_out(ask)
    links.close()


def test_no_error_speaks_of_a_time_below_nothing(
    monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster
) -> None:
    """The connection took all of the time."""
    links = BlockingLinks(timeout=5)
    ask = Ask(cluster.address, Command(RequestCode.GET_BROKER_CLUSTER_INFO, {}), 0.0)
    with pytest.raises(Unreachable, match=r"no connection to .* within 0 s"):
        links.carry_out(ask)
    links.close()


def test_a_host_of_which_nobody_knows_says_so(run: Run) -> None:
    def unknown(*arguments: Any, **named: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def story() -> None:
        with pytest.raises(Unreachable, match="not known"):
            async with open_connection("nobody.example:1", timeout=5):
                pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(Unreachable, match="not known"):
            Connection("nobody.example:1", 5)
        run(story)
