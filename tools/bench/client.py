"""Load a broker with the client library: what one Python process gets from a broker, with the defaults its users have.

It counts like the raw sender. A send that was stored with a reservation, or refused for good, voids the rate, and so
does one without an outcome; what the library tries again behind its callers' backs is the library's affair. A latency
is the time from the call to its result: a gathered message's holds the wait for company, a poll's is that of all it
brought.

Consumers read a backlog that is there already and begin anew when they are through with it. Between the last message
of one push consumer and the first of the next the clock stands still.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import anyio

from ropewalk.client.admin.groups import EARLIEST
from ropewalk.client.aio.producer import AsyncProducer
from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.producer import Producer
from ropewalk.client.blocking.pull_consumer import PullConsumer
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import SendResult, SendStatus
from ropewalk.errors import OutcomeUnknown, Refused, RopewalkError
from tools.bench.link import LoadFailed, Stopped, Tally, now_us
from tools.bench.spec import ClientSpec, Outcome

GROUP = "ropewalk-bench"
POLL_S = 0.2
LOOK_S = 0.02
UNKNOWN_CODE = -1
"""The code of an error without a response code."""


def run_client(spec: ClientSpec) -> Outcome:
    """Carry out one load in this process."""
    return _ClientLoad(spec).run()


class _ClientLoad:
    """A run of the load. Only what comes between the warm-up and the end of the measured time counts."""

    def __init__(self, spec: ClientSpec) -> None:
        self._spec = spec
        self._body = bytes(spec.body_size)
        self._tally = Tally(spec.server_pid)
        self._lock = threading.Lock()
        self._missing = 0
        self._opens_us = self._closes_us = 0
        self._state = "before"

    def run(self) -> Outcome:
        modes: dict[str, Callable[[], None]] = {
            "sync": self._sync,
            "async": lambda: anyio.run(self._async, backend="trio"),
            "batched": self._batched,
            "pull": self._pull,
            "push": self._push,
        }
        error = None
        try:
            modes[self._spec.mode]()
        except (RopewalkError, LoadFailed) as exc:
            error = str(exc)
        except Stopped as exc:
            error = str(exc)
        if self._state == "open":
            self._tally.end()
        return self._tally.outcome(self._missing, error)

    # The window

    @property
    def _goes_on(self) -> bool:
        """Open and close the window when it is due; return whether there is time left."""
        now = now_us()
        with self._lock:
            if (
                not self._closes_us
            ):  # the first call: an event loop that had to be started is no part of the load
                self._opens_us = now + int(self._spec.warm_up_s * 1e6)
                self._closes_us = self._opens_us + int(self._spec.duration_s * 1e6)
            if self._state == "before" and now >= self._opens_us:
                self._tally.begin()
                self._state = "open"
            if self._state == "open" and now >= self._closes_us:
                self._tally.end()
                self._state = "closed"
        return self._state != "closed"

    def _count(self, began_us: int, messages: int, body_bytes: int, ended_us: int | None = None) -> None:
        with self._lock:
            if self._state != "closed":
                took_us = (now_us() if ended_us is None else ended_us) - began_us
                self._tally.accepted([took_us], messages, body_bytes)

    def _count_result(self, began_us: int, result: SendResult, ended_us: int | None = None) -> None:
        if result.status is SendStatus.SEND_OK:
            self._count(began_us, 1, self._spec.body_size, ended_us)
        else:
            with self._lock:
                self._tally.refused([(0, result.status.value, result.status.name)])

    def _count_error(self, exc: RopewalkError) -> None:
        with self._lock:
            if isinstance(exc, OutcomeUnknown):
                self._missing += 1
            else:
                self._tally.refused([(0, exc.code if exc.code is not None else UNKNOWN_CODE, str(exc))])
        if not isinstance(exc, (Refused, OutcomeUnknown)):
            raise LoadFailed(str(exc)) from exc

    # Producers

    def _sync(self) -> None:
        spec = self._spec
        with Producer(spec.name_servers, timeout=spec.reply_timeout_s) as producer:
            while self._goes_on:
                began = now_us()
                try:
                    self._count_result(began, producer.send(spec.topic, self._body))
                except RopewalkError as exc:
                    self._count_error(exc)

    async def _async(self) -> None:
        spec = self._spec

        async def send_on(producer: AsyncProducer) -> None:
            while self._goes_on:
                began = now_us()
                try:
                    self._count_result(began, await producer.send(spec.topic, self._body))
                except RopewalkError as exc:
                    self._count_error(exc)

        failure: LoadFailed | None = None
        async with AsyncProducer(spec.name_servers, timeout=spec.reply_timeout_s) as producer:
            try:
                async with anyio.create_task_group() as tasks:
                    for _ in range(spec.in_flight):
                        tasks.start_soon(send_on, producer)
            except* LoadFailed as group:
                failure = LoadFailed(str(group.exceptions[0]))
        if failure is not None:
            raise failure

    def _batched(self) -> None:
        spec = self._spec

        def settle(began: int, ended: int, future: Future[SendResult]) -> None:
            try:
                self._count_result(began, future.result(), ended)
            except OutcomeUnknown:
                self._missing += 1
            except RopewalkError as exc:
                self._tally.refused([(0, UNKNOWN_CODE if exc.code is None else exc.code, str(exc))])

        # Noted by the library's thread and counted by this one: neither waits for the other.
        done: deque[tuple[int, int, Future[SendResult]]] = deque()
        with Producer(spec.name_servers, timeout=spec.reply_timeout_s) as producer:
            while self._goes_on:
                began = now_us()
                future = producer.send_async(spec.topic, self._body)
                future.add_done_callback(lambda one, began=began: done.append((began, now_us(), one)))  # type: ignore[misc]
                while done:
                    settle(*done.popleft())
            if not producer.flush(spec.reply_timeout_s):
                raise LoadFailed(f"messages are still pending after {spec.reply_timeout_s:g} s")
            while done:
                settle(*done.popleft())

    # Consumers

    def _pull(self) -> None:
        spec = self._spec
        with PullConsumer(GROUP, {spec.topic: "*"}, spec.name_servers) as consumer:
            consumer.assign_topics()
            while self._goes_on:
                consumer.seek_to_begin()
                left = spec.backlog
                while left > 0 and self._goes_on:
                    began = now_us()
                    messages = consumer.poll(spec.max_messages, timeout=spec.reply_timeout_s)
                    if not messages:
                        raise LoadFailed(
                            f"no message came for {spec.reply_timeout_s:g} s; {left:,} were left"
                        )
                    left -= len(messages)
                    self._count(began, len(messages), sum(len(message.body) for message in messages))

    def _push(self) -> None:
        spec = self._spec
        with Admin(spec.name_servers) as admin:
            if not admin.group_config(GROUP):
                admin.create_group(GROUP)
            while self._goes_on:
                admin.reset_offsets(GROUP, spec.topic, EARLIEST)
                anyio.run(self._push_once, backend="trio")

    async def _push_once(self) -> None:
        """Have a consumer read the backlog once, or until time is up."""
        spec = self._spec
        handled = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal handled
            if not handled:
                self._tally.resume()
            handled += 1
            if handled == spec.backlog:
                self._tally.pause()
            if self._state != "closed":
                self._tally.messages += 1
                self._tally.body_bytes += len(message.body)

        with anyio.CancelScope() as scope:
            async with AsyncPushConsumer(
                GROUP, {spec.topic: "*"}, handle, spec.name_servers, consume_from="first"
            ):
                progress, since = 0, now_us()
                while self._goes_on and handled < spec.backlog:
                    await anyio.sleep(LOOK_S)
                    if handled != progress:
                        progress, since = handled, now_us()
                    elif now_us() - since > spec.reply_timeout_s * 1e6:
                        raise LoadFailed(f"no message came for {spec.reply_timeout_s:g} s")
                scope.cancel()
