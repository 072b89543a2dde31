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
from pathlib import Path
from typing import cast

from broker.broker import Broker
from broker.launch import monotonic_ms, now_ms
from broker.remoting.shell import Connection
from broker.settings.config import load_config
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command, encode_frame
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


def send_frame(number: int, body: bytes) -> bytes:
    properties = f"UNIQ_KEY\x017F0000010BCC18B4AAC20A6B2C{number:06X}\x02WAIT\x01true\x02TAGS\x01TagA"
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
            for name, cost in measure(broker, body_size):
                print(f"{body_size:5} B  {name:24} {cost:6.2f} us/message")
        broker.close()


if __name__ == "__main__":
    main(fast="--plain" not in sys.argv[1:])
