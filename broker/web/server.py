"""`/metrics`, `/livez` and `/readyz` over HTTP, from a thread with a loop of its own over published snapshots.

    thread waits for a visitor  ->  imports the web libraries  ->  serves until the broker stops
    one poll() on two numbers       60 ms, 7 MB                   trio, hypercorn, starlette, prometheus_client

The libraries come with the first visitor and not with the broker: they would be a tenth of the memory of an idle
broker, and most brokers of tests and laptops are never asked. The port is open from the start, so whoever comes first
waits a moment and is not refused.

Nothing here touches the broker but `Metrics`: two attributes that the loop publishes, and a number that asks for the
next census. `/livez` and `/readyz` read the pulse alone and answer while a look at a slow disk is going on.

Left to others: who may be connected, how many and how long (`visitors`).

    /livez    200 while the loop turns, 503 when it has not for `STUCK_MS`
    /readyz   200 while messages are taken, or would be if this were the master; else 503 with the reasons, a line each.
              503 at a slave, too, that its master refuses, or that refuses its master
    /metrics  Prometheus text, or OpenMetrics for who asks for it
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import structlog

from broker.metrics.families import trimmed
from broker.metrics.snapshot import COUNTER, LOOP_WAIT_S, Census, Family, HistogramFamily, LoopBusy, Metrics
from ropewalk.printable import printable

if TYPE_CHECKING:
    from prometheus_client import Metric
    from starlette.applications import Starlette

__all__ = ["MetricsServer"]

log = structlog.get_logger("broker.metrics")

STUCK_MS: Final = 10_000
_POLL_S: Final = 0.01
_STOP_S: Final = 5.0


class MetricsServer:
    """A listening socket and the thread behind it."""

    def __init__(self, metrics: Callable[[], Metrics], monotonic_ms: Callable[[], int]) -> None:
        """`metrics` is asked for when the first visitor comes: the port is bound before there is a broker."""
        self._metrics = metrics
        self._monotonic_ms = monotonic_ms
        self._socket: socket.socket
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None

    def listen(self, host: str, port: int, *, tried: int = 1) -> int:
        """Open the first free one of `tried` ports, and return it; any one where several are tried, and all are taken.

        Port 0 is any one, too. Raises OSError.
        """
        for each in range(port, port + tried):
            try:
                return self._open(host, each)
            except OSError as exc:
                if tried == 1 or exc.errno != errno.EADDRINUSE:
                    raise
        return self._open(host, 0)

    def _open(self, host: str, port: int) -> int:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(64)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        return int(sock.getsockname()[1])

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ropewalk-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the port; blocks for a moment."""
        if self._thread is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join(_STOP_S)
            self._thread = None
        self._socket.close()

    # -- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._visited():
                self._serve()
        except Exception:
            # Numbers for people: their absence is worth a line, and no reason to stop a broker.
            log.exception("the metrics server ended")

    def _visited(self) -> bool:
        """Wait for the first visitor; False if the broker stops before one comes."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        poll.register(self._stop_fd, select.POLLIN)
        return all(fd != self._stop_fd for fd, _event in poll.poll())

    def _serve(self) -> None:
        import trio

        from broker.web.visitors import Visitors

        async def stopped() -> None:
            await trio.lowlevel.wait_readable(self._stop_fd)

        async def main() -> None:
            self._socket.setblocking(False)
            await Visitors(self._socket, application(self._metrics(), self._monotonic_ms)).serve(stopped)

        trio.run(main)


def application(metrics: Metrics, monotonic_ms: Callable[[], int]) -> Starlette:
    """The three pages over one broker's snapshots."""
    import trio
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    one_at_a_time = trio.CapacityLimiter(1)
    process = CollectorRegistry()
    ProcessCollector(registry=process)

    def silent_ms() -> int:
        return monotonic_ms() - metrics.pulse.at_ms

    def stuck() -> str | None:
        silent = silent_ms()
        return f"the loop has not turned for {silent / 1000:.0f} s" if silent > STUCK_MS else None

    async def livez(_request: Request) -> Response:
        why = stuck()
        return PlainTextResponse(f"{why or 'ok'}\n", 503 if why else 200)

    async def readyz(_request: Request) -> Response:
        why = stuck()
        reasons = [why] if why else list(metrics.pulse.unready)
        lines = [*(reasons or ["ready"]), *metrics.pulse.notes]
        return PlainTextResponse("".join(f"{printable(line)}\n" for line in lines), 503 if reasons else 200)

    async def fresh_census() -> Census | None:
        metrics.wanted += 1
        wanted = metrics.wanted
        with trio.move_on_after(LOOP_WAIT_S):
            while metrics.census is None or metrics.census.number < wanted:  # noqa: ASYNC110 - another thread's
                await trio.sleep(_POLL_S)
            return metrics.census
        return None

    async def show(request: Request) -> Response:
        census = await fresh_census()
        if census is None:
            return PlainTextResponse(f"the loop is too busy to count: {stuck() or 'try again'}\n", 503)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))

        def text() -> bytes:
            return encode(_Both(census, process))

        try:
            # Given up when the broker stops: it may wait for a loop that is no more.
            body = await trio.to_thread.run_sync(text, limiter=one_at_a_time, abandon_on_cancel=True)
        except LoopBusy:
            return PlainTextResponse("the loop is too busy to count\n", 503)
        except Exception:
            log.exception("metrics cannot be shown")
            return PlainTextResponse("metrics cannot be shown: the broker's log says why\n", 500)
        return Response(body, headers={"content-type": content_type})

    return Starlette(routes=[Route("/metrics", show), Route("/livez", livez), Route("/readyz", readyz)])


class _Both:
    """The collectors that `prometheus_client` walks through: a census, then its own of the process."""

    def __init__(self, census: Census, process: Any) -> None:
        self._census = census
        self._process = process

    def collect(self) -> Iterator[Metric]:
        census = self._census
        later = chain.from_iterable(source() for source in census.later)
        for family in trimmed(chain(census.families, later)):
            yield _metric(family, census.base_labels)
        yield from self._process.collect()


def _metric(family: Family | HistogramFamily, base: tuple[tuple[str, str], ...]) -> Metric:
    """A family with the labels that every metric of this broker carries."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names = [name for name, _value in base]
    values = [value for _name, value in base]
    if isinstance(family, HistogramFamily):
        histogram = HistogramMetricFamily(family.name, family.help, labels=[*names, *family.labels])
        for labels, counts, total in family.rows:
            buckets, count = [], 0
            for bound, here in zip((*map(str, family.bounds), "+Inf"), counts, strict=True):
                count += here
                buckets.append((bound, float(count)))
            histogram.add_metric([*values, *map(printable, labels)], buckets, total)
        return histogram
    make = CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily
    metric = make(family.name, family.help, labels=[*names, *family.labels])
    for labels, number in family.rows:
        metric.add_metric([*values, *map(printable, labels)], number)
    return metric
