"""Delay levels and kill -9: none lost, none early, none late, and none twice but at the kill itself.

The judge is the log: the copies of a message and the record that waited carry the times at which they were stored,
by the same clock that the test reads when it kills and when it sees a broker ready.
"""

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import Message, pull_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.record import Record, decode_records
from tests.crash.campaign import chosen_seed
from tests.crash.server import Place, Server
from tests.support.long_run import LONG
from tests.support.processes import checkout_command
from tests.support.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.slow]

TOPIC, QUEUES = "Delayed", 4
DELAYS_S = (1, 2, 3)
LATE_MS = 1_000 if LONG else 15_000
"""The promise is a second. Beside other tests a broker may wait for a processor longer than that."""
REPEAT_MS = 200
"""What was delivered longer than this before a kill is not delivered again."""
_SETTLE_S = 60.0


@dataclass
class Life:
    """One incarnation: when it was seen ready and when it was killed, ms; the last one is never killed."""

    ready_ms: int
    killed_ms: int = 1 << 62
    dead_ms: int = 1 << 62
    """Between these two the kill came."""


@dataclass
class History:
    lives: list[Life] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def produce(address: str, history: History, rng: random.Random, stop: threading.Event) -> None:
    """Send delayed messages of all levels until told to stop, or the broker is gone."""
    number = len(history.lives) * 1_000_000
    try:
        with Connection(address, 5.0) as connection:
            while not stop.is_set():
                asked = {}
                for _ in range(rng.randrange(1, 12)):
                    number += 1
                    message_id = f"M{number}"
                    level = rng.randrange(len(DELAYS_S)) + 1
                    message = Message(message_id.encode(), properties={"DELAY": str(level)})
                    queue = Queue("broker", rng.randrange(QUEUES))
                    asked[connection.start(send_request(TOPIC, queue, message, message_id, now_ms()))] = (
                        message_id
                    )
                for opaque, message_id in asked.items():
                    answer = connection.wait(opaque)
                    if answer.code == ResponseCode.SUCCESS:
                        history.acknowledged.add(message_id)
                    else:
                        history.refused.append(f"{message_id}: {answer.code} {answer.remark}")
                time.sleep(rng.uniform(0.0, 0.03))
    except (Unreachable, OutcomeUnknown, OSError):
        pass  # killed: what was not answered may be there or not


def read(address: str, topic: str, queue_ids: range) -> list[Record]:
    """Every record of a topic, as a consumer gets them."""
    records: list[Record] = []
    with Connection(address, 20.0) as connection:
        for queue_id in queue_ids:
            offset = 0
            while True:
                answer = connection.call(pull_request(topic, Queue("broker", queue_id), offset, 1024, "*", 0))
                if answer.code != ResponseCode.SUCCESS:
                    break
                found = decode_records(answer.body)
                records += found
                offset = found[-1].queue_offset + 1
    return records


def judge(history: History, waited: list[Record], copies: list[Record]) -> list[str]:
    """What was promised and not kept, in sentences."""
    wrong = [f"refused: {text}" for text in history.refused]
    delivered: dict[str, list[int]] = defaultdict(list)
    for record in copies:
        delivered[record.body.decode()].append(record.store_timestamp)
    stored = {record.body.decode(): record for record in waited}
    for message_id in sorted(history.acknowledged - stored.keys()):
        wrong.append(f"{message_id} was acknowledged and does not even wait")
    for message_id in sorted(delivered.keys() - stored.keys()):
        wrong.append(f"{message_id} was delivered and never waited")
    for message_id, record in stored.items():
        due = record.store_timestamp + DELAYS_S[int(record.properties["DELAY"]) - 1] * 1000
        times = sorted(delivered[message_id])
        if not times:
            wrong.append(f"{message_id}, due at {due}, was lost")
            continue
        if times[0] < due:
            wrong.append(f"{message_id} came {due - times[0]} ms early")
        for first, again in pairwise(times):
            if not any(life.killed_ms - REPEAT_MS <= first <= life.dead_ms for life in history.lives):
                wrong.append(f"{message_id} came at {first} and again at {again}; due at {due}")
        for life in history.lives:
            latest = max(due, life.ready_ms) + LATE_MS
            if latest >= life.killed_ms or times[0] < life.ready_ms:
                continue
            if times[0] > latest:
                wrong.append(f"{message_id} came {times[0] - latest + LATE_MS} ms late; due at {due}")
            break
    return wrong


def test_delayed_messages_survive_kill_9_in_time_and_once(tmp_path: Path, long_run: bool) -> None:
    """Under both kinds of flush, at the same time: most of it is waiting."""
    seed = chosen_seed()
    rounds = 12 if long_run else 3
    places = {flush: tmp_path / flush for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")}
    for folder in places.values():
        folder.mkdir()
    with ThreadPoolExecutor(len(places)) as pool:
        told = [pool.submit(broken_promises, flush, folder, seed, rounds) for flush, folder in places.items()]
        for flush, wrong in zip(places, [each.result() for each in told], strict=True):
            assert not wrong, f"{flush}, seed {seed}: {len(wrong)} promises broken:\n" + "\n".join(wrong[:20])


def broken_promises(flush: str, folder: Path, seed: int, rounds: int) -> list[str]:
    """Kill a broker so many times under delayed messages; return the promises that it did not keep."""
    rng = random.Random(f"{seed} {flush}")
    history = History()
    place = Place(
        folder,
        checkout_command(),
        {
            "flushDiskType": flush,
            "mappedFileSizeCommitLog": 1 << 20,
            "messageDelayLevel": " ".join(f"{delay}s" for delay in DELAYS_S),
            "maxTransferCountOnMessageInMemory": 1024,
        },
    )
    for _ in range(rounds):
        with Server(place) as server:
            history.lives.append(Life(now_ms()))
            stop = threading.Event()
            producer = threading.Thread(
                target=produce, args=(server.address, history, rng, stop), daemon=True
            )
            producer.start()
            time.sleep(rng.uniform(1.0, 4.5))
            history.lives[-1].killed_ms = now_ms()
            server.kill()
            history.lives[-1].dead_ms = now_ms()
            stop.set()
            producer.join(30)
            assert not producer.is_alive()
        time.sleep(rng.choice((0.0, 0.0, 1.5)))
    with Server(place) as server:
        history.lives.append(Life(now_ms()))
        give_up = time.monotonic() + _SETTLE_S
        waited = read(server.address, "SCHEDULE_TOPIC_XXXX", range(len(DELAYS_S)))
        copies = read(server.address, TOPIC, range(QUEUES))
        while {r.body for r in waited} - {r.body for r in copies} and time.monotonic() < give_up:
            time.sleep(0.2)
            copies = read(server.address, TOPIC, range(QUEUES))
        time.sleep(1.0)  # for what would come a second time
        copies = read(server.address, TOPIC, range(QUEUES))
        assert server.terminate() == 0
    assert len(history.acknowledged) > 100
    return judge(history, waited, copies)


def test_a_graceful_stop_repeats_nothing_at_all(tmp_path: Path) -> None:
    history = History()
    place = Place(
        tmp_path, checkout_command(), {"mappedFileSizeCommitLog": 1 << 20, "messageDelayLevel": "1s 2s 3s"}
    )
    rng = random.Random(chosen_seed())
    for _ in range(2):
        with Server(place) as server:
            history.lives.append(Life(now_ms()))
            stop = threading.Event()
            producer = threading.Thread(
                target=produce, args=(server.address, history, rng, stop), daemon=True
            )
            producer.start()
            time.sleep(1.5)
            stop.set()
            producer.join(30)
            assert server.terminate() == 0
        (place.store / "ropewalk" / "delay").unlink()  # after a good end the durable file knows all
    with Server(place) as server:

        def bodies_there() -> list[bytes]:
            return [record.body for record in read(server.address, TOPIC, range(QUEUES))]

        until(
            lambda: history.acknowledged <= {body.decode() for body in bodies_there()},
            "every acknowledged message is delivered",
            pause_s=0.2,
        )
        time.sleep(1.0)  # for what would come a second time
        bodies = bodies_there()
    assert len(bodies) == len(set(bodies))
