"""Processor time that one message costs the broker, without sockets: `python -m tests.bench.hot_path [--plain]`.

Feeds prebuilt frames to a real session over a real store and prints CPU microseconds for each message, the best of
many rounds. On a busy machine the best is the figure that says something about the code. Nothing here is asserted:
it is for looking at before and after a change to the send or the pull path.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from broker.broker import Broker
from broker.process.launch import monotonic_ms, now_ms
from broker.remoting.connection import Connection
from broker.settings.config import load_config
from ropewalk.codes import RequestCode
from ropewalk.format.record import parse_message_id
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from store.io.disk import Disk

RUN = 256
CLIENTS = 32
PULLS = 64
PULL_COUNT = 32
ROUNDS = 30


class NoWire:
    """A connection that takes everything."""

    peer = ("127.0.0.1", 50000)
    congested = False
    sole_ready = False

    def push(self) -> None:
        pass

    def __init__(self) -> None:
        self.sent = 0

    def send(self, data: bytes | memoryview) -> None:
        self.sent += len(data)

    def close(self) -> None:
        pass


def send_frame(number: int, body: bytes, **asked: str) -> bytes:
    properties = f"UNIQ_KEY\x017F0000010BCC18B4AAC20A6B2C{number:06X}\x02WAIT\x01true\x02TAGS\x01TagA"
    properties += "".join(f"\x02{name}\x01{value}" for name, value in asked.items())
    ext = {
        "a": "bench",
        "b": "hot",
        "c": "TBW102",
        "d": "4",
        "e": str(number % 4),
        "f": "0",
        "g": "1700000000000",
    }
    ext |= {"h": "0", "i": properties, "j": "0", "k": "false", "l": "-1", "m": "false"}
    return encode_frame(Command(RequestCode.SEND_MESSAGE_V2, ext, body, opaque=number, language="JAVA"))


def pull_frame(number: int) -> bytes:
    ext = {
        "consumerGroup": "bench",
        "topic": "hot",
        "queueId": str(number % 4),
        "queueOffset": str(number * 8),
    }
    ext |= {"maxMsgNums": str(PULL_COUNT), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    ext |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
    return encode_frame(Command(RequestCode.PULL_MESSAGE, ext, opaque=number, language="JAVA"))


def end_frame(answer: Command) -> bytes:
    ext = {
        "producerGroup": "bench",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitOrRollback": "8",
    }
    ext |= {
        "commitLogOffset": str(parse_message_id(answer.ext["msgId"])[2]),
        "msgId": answer.ext["transactionId"],
    }
    return encode_frame(Command(RequestCode.END_TRANSACTION, ext, opaque=answer.opaque, language="JAVA"))


def best_us(turn: Callable[[], None], between: Callable[[], None], messages: int) -> float:
    """CPU time of this thread for a message, in us: the best of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(10):
            turn()
        best = min(best, time.thread_time() - began)
        between()
    return best / 10 / messages * 1e6


def measure(broker: Broker, body_size: int) -> list[tuple[str, float]]:
    link = NoWire()
    session = broker.new_session(cast(Connection, link))
    body = b"x" * body_size
    frames = [send_frame(number, body) for number in range(RUN)]
    pulls = b"".join(pull_frame(number) for number in range(PULLS))

    def turn_of(data: bytes) -> Callable[[], None]:
        def turn() -> None:
            broker.begin_turn()
            session.receive(data)
            broker.end_turn()

        return turn

    def between() -> None:
        broker.on_wakeup()
        broker.tick()

    sessions = [broker.new_session(cast(Connection, link)) for _ in range(CLIENTS)]

    def turn_of_many() -> None:
        broker.begin_turn()
        for session, frame in zip(sessions, frames, strict=False):
            session.receive(frame)
        broker.end_turn()

    turn_of(frames[0])()
    turn_of_many()
    return [
        (f"send, runs of {RUN}", best_us(turn_of(b"".join(frames)), between, RUN)),
        ("send, one to a turn", best_us(turn_of(frames[0]), between, 1)),
        (f"send, one each from {CLIENTS}", best_us(turn_of_many, between, CLIENTS)),
        (f"pull, {PULL_COUNT} at a time", best_us(turn_of(pulls), between, PULLS * PULL_COUNT)),
    ]


class Echo(NoWire):
    """A connection that keeps the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Command] = []

    def send(self, data: bytes | memoryview) -> None:
        self.answers += map(decode_frame, FrameBuffer().feed(bytes(data)))


def measure_deferred(broker: Broker, body_size: int) -> list[tuple[str, float]]:
    """Measure timer messages, stored and enqueued, and transactions: the best of the rounds, as `best_us`."""
    link = Echo()
    session = broker.new_session(cast(Connection, link))
    body, run = b"x" * body_size, RUN // 4
    in_an_hour = str(now_ms() + 3_600_000)
    timers = b"".join(send_frame(number, body, TIMER_DELIVER_MS=in_an_hour) for number in range(run))
    halves = b"".join(send_frame(number, body, TRAN_MSG="true", PGROUP="bench") for number in range(run))

    def cost_of(work: Callable[[], object]) -> float:
        began = time.thread_time()
        broker.begin_turn()
        work()
        broker.end_turn()
        return (time.thread_time() - began) / run * 1e6

    found: dict[str, list[float]] = {}
    for _ in range(5 * ROUNDS):
        link.answers.clear()
        found.setdefault("timer, stored", []).append(cost_of(lambda: session.receive(timers)))
        before = broker.timers.enqueued
        enqueue = cost_of(lambda: [*iter(broker.timers.run, False)])
        if broker.timers.enqueued == before + run:
            found.setdefault("timer, enqueued", []).append(enqueue)
        link.answers.clear()
        found.setdefault("half message", []).append(cost_of(lambda: session.receive(halves)))
        ends = b"".join(map(end_frame, link.answers))
        found.setdefault("commit", []).append(cost_of(partial(session.receive, ends)))
        assert all(not answer.code for answer in link.answers)
        broker.on_wakeup()
    return [(f"{name}, runs of {run}", min(costs)) for name, costs in found.items()]


def main(*, fast: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as folder:
        config = load_config(
            config_file=None,
            settings=(),
            named={"storePathRootDir": str(Path(folder) / "store"), "fastPathEnable": str(fast).lower()},
            environ={},
        )
        broker = Broker(
            config,
            address=("127.0.0.1", 10911),
            disk=Disk(),
            now_ms=now_ms,
            monotonic_ms=monotonic_ms,
            rng=random.Random(1),
            wake=lambda: None,
        )
        broker.open()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        for body_size in (128, 1024):
            for name, cost in [*measure(broker, body_size), *measure_deferred(broker, body_size)]:
                print(f"{body_size:5} B  {name:30} {cost:6.2f} us/message")
        broker.close()


if __name__ == "__main__":
    main(fast="--plain" not in sys.argv[1:])
