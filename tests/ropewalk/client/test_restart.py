"""A broker that is away for a moment, and one that says nothing: sends use the time they were given, and no more."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from ropewalk import AsyncProducer, Message, OutcomeUnknown, Producer, PullConsumer, SendStatus, Unreachable
from tests.support.long_run import ROOM_S
from tests.support.ports import free_ports
from tests.support.processes import RunningBroker, checkout_command, checkout_environment, running_broker

AWAY_S = 1.2


class Place:
    """Ports and a folder where one broker after the other lives."""

    def __init__(self, folder: Path) -> None:
        self.broker_port = free_ports(1)[0]
        self.namesrv_port = free_ports(1, (0,))[0]
        self._folder = folder
        self._running = ExitStack()
        self.broker = self.start()
        self.namesrv = self.broker.namesrv

    def start(self) -> RunningBroker:
        return self._running.enter_context(
            running_broker(
                checkout_command(),
                "--set", f"listenPort={self.broker_port}", "--namesrv-port", str(self.namesrv_port),
                cwd=self._folder, environment=checkout_environment(),
            )
        )  # fmt: skip

    def restart(self) -> threading.Thread:
        """Stop the broker now, and start another one a while later."""
        self.broker.process.terminate()
        self.broker.process.wait()

        def later() -> None:
            time.sleep(AWAY_S)
            self.broker = self.start()

        thread = threading.Thread(target=later)
        thread.start()
        return thread

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it say nothing for the length of the block."""
        os.kill(self.broker.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.broker.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    it = Place(tmp_path_factory.mktemp("place"))
    yield it
    it.close()


def test_a_send_waits_for_a_broker_that_restarts(place: Place) -> None:
    with Producer(place.namesrv, timeout=60) as producer:
        producer.send("orders", b"before")
        away = place.restart()
        began = time.monotonic()
        futures = [producer.send_async("orders", b"%d" % number) for number in range(20)]
        assert producer.send("orders", b"meanwhile").status is SendStatus.SEND_OK
        assert all(future.result(60).status is SendStatus.SEND_OK for future in futures)
        assert time.monotonic() - began > AWAY_S / 2
        away.join()
        assert producer.counts.acknowledged == 22


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_async_send_waits_too(place: Place, backend: str) -> None:
    async def story() -> None:
        async with AsyncProducer(place.namesrv, timeout=60) as producer:
            await producer.send("orders", b"before")
            away = await anyio.to_thread.run_sync(place.restart)
            await anyio.sleep(
                0.05
            )  # the loop learns that the connection has ended: what follows has not left
            assert (await producer.send("orders", Message(b"x", group="g"))).status is SendStatus.SEND_OK
            away.join()

    anyio.run(story, backend=backend)


@pytest.mark.parametrize("known", [True, False], ids=["with a route", "without one"])
def test_the_time_limit_of_a_send_is_kept_by_a_broker_that_says_nothing(place: Place, known: bool) -> None:
    with Producer(place.namesrv) as producer:
        if known:
            producer.send("orders", b"x")
        with place.stopped():
            began = time.monotonic()
            with pytest.raises((OutcomeUnknown, Unreachable)):
                producer.send("orders" if known else "others", b"x", timeout=1)
            assert time.monotonic() - began < 1.9 + ROOM_S, "one limit, and not one for each attempt"
            with pytest.raises((OutcomeUnknown, Unreachable)):
                producer.send_batch("orders", [b"x", b"y"], timeout=0.5)
            assert time.monotonic() - began < 2.9 + ROOM_S


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("known", [True, False], ids=["with a route", "without one"])
def test_and_of_an_async_one(place: Place, backend: str, known: bool) -> None:
    async def story() -> None:
        async with AsyncProducer(place.namesrv) as producer:
            if known:
                await producer.send("orders", b"x")
            with place.stopped():
                began = time.monotonic()
                with pytest.raises((OutcomeUnknown, Unreachable)):
                    await producer.send("orders", b"x", timeout=1)
                assert time.monotonic() - began < 1.9 + ROOM_S

    anyio.run(story, backend=backend)


@pytest.mark.parametrize("known", [True, False], ids=["with positions", "without"])
def test_a_poll_does_not_wait_much_longer_than_it_was_told(place: Place, known: bool) -> None:
    with PullConsumer("g", {"orders": "*"}, place.namesrv) as consumer:
        consumer.assign_topics()
        if known:
            consumer.poll(timeout=0.1)
        with place.stopped():
            began = time.monotonic()
            with suppress(OutcomeUnknown, Unreachable):
                assert consumer.poll(timeout=0.5) == []
            assert time.monotonic() - began < 2.5 + ROOM_S
