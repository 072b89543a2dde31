"""Transactions and timer messages beside Apache RocketMQ: the same load on both, one after the other, round by round.

    python -m tests.bench.peers.rocketmq.deferred       --quick for an impression, --only ropewalk for one of them

    transactions    half and commit, 64 at a time over one connection; each counts when its commit is answered
    timers stored   sends due in an hour, 64 in flight
    timers due      500,000 that are due at one moment: from then until the last is in its topic
    idle            CPU of the broker in the ten seconds that begin five after its first transaction

Frames are templates in which a number and a key change, so that the sender is no measure. A round starts a server on an
empty folder. Absolute figures are this machine's; the ratio is the result.
"""

from __future__ import annotations

import re
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command, FrameBuffer, encode_frame
from tests.bench.peers.rocketmq.rows import ORIGINAL, ROPEWALK, Mode
from tests.bench.peers.rocketmq.servers import FAILURES, Running, Starter, start_original, start_ropewalk
from tools.bench import prepare
from tools.bench.link import LoadFailed
from tools.bench.server import cpu_seconds

TOPIC, QUEUES, GROUP = "deferred", 4, "bench"
IN_FLIGHT = 64
BODY = bytes(128)
HOUR_MS = 3_600_000
COMMIT = 8
IDLE_AFTER_S, IDLE_S = 5.0, 10.0
TARGETS: Mapping[str, str] = {
    "transactions/s": ">= 2x",
    "timers stored/s": ">= 3x",
    "timers due/s": ">= 30,000",
    "idle CPU, %": "~0",
}

_FIRST = 10_000_000
"""Opaques have eight digits, so that every frame of a template has the same length."""
_KEY = "7F0000010ABC18B4AAC2000010000000"
_OPAQUE = re.compile(rb'"opaque":(\d{8})')
_HALF = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})".*?"queueOffset":"(\d+)"')


class Pipe:
    """One connection that keeps many requests under way."""

    def __init__(self, running: Running) -> None:
        self._socket = socket.create_connection((running.broker.host, running.broker.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameBuffer()
        self._out = bytearray()

    def send(self, frame: bytes) -> None:
        """Have a frame leave with the next `receive`."""
        self._out += frame

    def receive(self) -> list[bytes]:
        """Send what is gathered, and return the answers that have come. Raises `LoadFailed` for a refusal."""
        if self._out:
            self._socket.sendall(self._out)
            self._out.clear()
        answers = [bytes(payload) for payload in self._frames.feed(self._socket.recv(1 << 18))]
        for answer in answers:
            if b'"code":0' not in answer:
                raise LoadFailed(f"refused: {answer[:300]!r}")
        return answers

    def close(self) -> None:
        self._socket.close()


@contextmanager
def pipe_to(running: Running) -> Iterator[Pipe]:
    """A pipe that is closed at the end."""
    pipe = Pipe(running)
    try:
        yield pipe
    finally:
        pipe.close()


def send_template(**properties: str) -> bytes:
    """Return the frame of a send, with the first opaque and the key of templates."""
    text = "".join(
        f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": _KEY, "WAIT": "true", **properties}.items()
    )
    ext = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": "0"}
    ext |= {"f": "4" if "TRAN_MSG" in properties else "0", "g": str(time.time_ns() // 1_000_000)}
    ext |= {"h": "0", "i": text, "j": "0", "k": "false", "m": "false"}
    return encode_frame(Command(RequestCode.SEND_MESSAGE_V2, ext, BODY, opaque=_FIRST))


def numbered(template: bytes, number: int) -> bytes:
    """Return the frame of one request: its opaque, and its key, which ends in it."""
    return template.replace(b"%d" % _FIRST, b"%d" % (_FIRST + number))


def transactions(running: Running, seconds: float) -> float:
    """Measure transactions a second; each is a half message and its commit."""
    template = send_template(TRAN_MSG="true", PGROUP=GROUP)
    halves: set[int] = set()
    done = number = 0
    with pipe_to(running) as pipe:

        def begin() -> None:
            nonlocal number
            number += 1
            halves.add(number)
            pipe.send(numbered(template, number))

        for _ in range(IN_FLIGHT):
            begin()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for answer in pipe.receive():
                opaque = _OPAQUE.search(answer)
                assert opaque is not None
                known = int(opaque[1]) - _FIRST
                if known not in halves:
                    done += 1
                    begin()
                    continue
                halves.remove(known)
                place = _HALF.search(answer)
                if place is None:
                    raise LoadFailed(f"no place in {answer[:300]!r}")
                pipe.send(_commit(known, int(place[1], 16), place[2].decode()))
        return done / (time.perf_counter() - began)


def _commit(number: int, log_offset: int, queue_offset: str) -> bytes:
    key = _KEY.replace(str(_FIRST), str(_FIRST + number))
    ext = {"producerGroup": GROUP, "topic": TOPIC, "tranStateTableOffset": queue_offset}
    ext |= {
        "commitLogOffset": str(log_offset),
        "commitOrRollback": str(COMMIT),
        "fromTransactionCheck": "false",
    }
    ext |= {"msgId": key, "transactionId": key}
    return encode_frame(Command(RequestCode.END_TRANSACTION, ext, opaque=_FIRST + number))


def timers_stored(running: Running, due_ms: int, seconds: float, count: int = 1 << 60) -> tuple[int, float]:
    """Send timer messages for so long, or so many; return how many were stored, and how many a second."""
    template = send_template(TIMER_DELIVER_MS=str(due_ms))
    sent = done = 0
    with pipe_to(running) as pipe:
        began = time.perf_counter()
        while done < count and time.perf_counter() - began < seconds:
            while sent - done < IN_FLIGHT and sent < count:
                sent += 1
                pipe.send(numbered(template, sent))
            done += len(pipe.receive())
        return done, done / (time.perf_counter() - began)


def timers_due(running: Running, count: int, ahead_s: float) -> float:
    """Have so many due at one moment; return how many a second are delivered from then on."""
    with Connection(f"{running.broker.host}:{running.broker.port}", 60.0) as connection:

        def delivered() -> int:
            ext = {"topic": TOPIC, "queueId": "0"}
            answer = connection.call(Command(RequestCode.GET_MAX_OFFSET, ext))
            if answer.code != ResponseCode.SUCCESS:
                raise LoadFailed(f"{answer.code} {answer.remark}")
            return int(answer.ext["offset"])

        before = delivered()
        due_s = int(time.time() + ahead_s)
        stored, rate = timers_stored(running, due_s * 1000, ahead_s - 5.0, count)
        if stored < count:
            raise LoadFailed(
                f"{stored:,} of {count:,} were stored in time, {rate:,.0f} a second: raise --ahead"
            )
        time.sleep(max(due_s - time.time(), 0))
        began, last, news = time.perf_counter(), delivered(), time.perf_counter()
        while last < before + count:
            time.sleep(0.05)
            if (found := delivered()) != last:
                last, news = found, time.perf_counter()
            elif time.perf_counter() - news > 60:
                raise LoadFailed(f"{before + count - last:,} of {count:,} are not delivered")
        return count / (time.perf_counter() - began)


def idle_cpu(running: Running) -> float:
    """Return the percent of a core that the broker uses when its first transaction is over."""
    transactions(running, 0.5)
    time.sleep(IDLE_AFTER_S)
    before = cpu_seconds(running.pid)
    time.sleep(IDLE_S)
    after = cpu_seconds(running.pid)
    if before is None or after is None:
        raise LoadFailed("the broker is gone")
    return 100 * (after - before) / IDLE_S


@dataclass
class Figures:
    """Figures of one server: by row, one for each round."""

    rows: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, row: str) -> float | None:
        """Return the figure of a row; None if no round has one."""
        found = self.rows.get(row)
        return statistics.median(found) if found else None


def measure(start: Starter, parent: Path, seconds: float, count: int, ahead_s: float, into: Figures) -> None:
    """One round of one server."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        with start(folder) as running:
            prepare.create_topic(running.broker, TOPIC, QUEUES)
            # First: after a load of timers a broker has work for some time, entering them into its wheel.
            into.rows.setdefault("idle CPU, %", []).append(idle_cpu(running))
            steps: list[tuple[str, Callable[[], float]]] = [
                ("transactions/s", lambda: transactions(running, seconds)),
                ("timers stored/s", lambda: timers_stored(running, _in_an_hour(), seconds)[1]),
                ("timers due/s", lambda: timers_due(running, count, ahead_s)),
            ]
            transactions(running, seconds)  # for the original's compiler
            timers_stored(running, _in_an_hour(), seconds)
            for row, figure in steps:
                into.rows.setdefault(row, []).append(figure())
    except FAILURES as exc:
        into.failures.append(str(exc))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_an_hour() -> int:
    return time.time_ns() // 1_000_000 + HOUR_MS


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One short round with 50,000 due at once.")] = False,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    count: Annotated[int, typer.Option(min=1, help="Timer messages that are due at once.")] = 500_000,
    ahead: Annotated[float, typer.Option(help="Seconds in which they have to be stored.")] = 90.0,
    only: Annotated[str | None, typer.Option(help="original or ropewalk: leave the other one out.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the stores go.")] = None,
) -> None:
    """Measure transactions and timer messages of both brokers, in turn."""
    seconds = 10.0
    if quick:
        rounds, count, ahead, seconds = 1, 50_000, 25.0, 3.0
    mode = Mode("ASYNC_MASTER", "ASYNC_FLUSH")
    starters = {ORIGINAL: start_original(mode), ROPEWALK: start_ropewalk(mode)}
    figures = {name: Figures() for name in starters if only in (None, name)}
    parent = data_dir or Path(tempfile.gettempdir())
    for number in range(1, rounds + 1):
        for name, into in figures.items():
            print(f"{name}, round {number} of {rounds}", flush=True)
            measure(starters[name], parent, seconds, count, ahead, into)
    table = Table(title=f"transactions and timers, median of {rounds}, 128-byte bodies, ASYNC_FLUSH")
    for column in ("", *figures, "ratio", "target"):
        table.add_column(column, justify="left" if not column else "right")
    for row, target in TARGETS.items():
        found = [into.median(row) for into in figures.values()]
        ratio = f"{found[1] / found[0]:.1f}x" if len(found) == 2 and all(found) and "CPU" not in row else ""  # type: ignore[operator]
        table.add_row(row, *("-" if one is None else f"{one:,.1f}" for one in found), ratio, target)
    Console(width=120).print(table)
    for name, into in figures.items():
        for failure in into.failures:
            print(f"{name}: {failure}")


if __name__ == "__main__":
    typer.run(main)
