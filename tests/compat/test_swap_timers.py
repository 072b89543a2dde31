"""Pending timers in one directory that goes back and forth between Apache RocketMQ and Ropewalk, also by kill -9.

A roll window of twenty seconds has the later messages come back into the timer topic at either broker. At the end every
message is in its topic, none was stored there before its time, and only a kill repeats any.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, pull_request, recall_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.format.record import Record, decode_records
from tests.bench.peers.rocketmq.original import Original
from tests.crash.server import Place, Server
from tests.support.long_run import LONG
from tests.support.ports import free_ports
from tests.support.processes import checkout_command

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC = "timed"
AHEAD_S = (2, 5, 9, 14, 22, 31, 45) if LONG else (2, 5, 9, 14, 25)
PAUSE_S = 6.0
SETTINGS: dict[str, str | int] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 5_000,
    "mappedFileSizeTimerLog": 4096,
    "timerRollWindowSlot": 20,
    "recallMessageEnable": "true",
    "diskMaxUsedSpaceRatio": 95,
}
ALL_TURNS = (
    ("Ropewalk", False),
    ("RocketMQ", False),
    ("Ropewalk", True),
    ("RocketMQ", True),
    ("Ropewalk", False),
)
"""Each broker, and whether its turn ends by kill -9: four swaps, and two of them outside the long run."""
TURNS = ALL_TURNS if LONG else ALL_TURNS[2:]


class Sent:
    """What was sent: when each message is due, and which were taken back."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.due_ms: dict[str, int] = {}
        self.recalled: set[str] = set()

    def send(self, turn: int) -> None:
        """Send a message for each time ahead, and one more that is recalled at once."""
        with Connection(self.address, 20.0) as connection:
            now_ms = time.time_ns() // 1_000_000
            for number, ahead in enumerate((*AHEAD_S, AHEAD_S[3])):
                name = f"{turn:02}-{number:02}"
                due_ms = now_ms + ahead * 1000
                message = Message(name.encode(), properties={"TIMER_DELIVER_MS": str(due_ms)})
                request = send_request(TOPIC, Queue("broker-a", number % 4), message, name, now_ms)
                answer = connection.call(request)
                assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
                handle = answer.ext["recallHandle"]
                if number == len(AHEAD_S):
                    taken = connection.call(recall_request(handle, TOPIC))
                    assert (taken.code, taken.ext.get("msgId")) == (ResponseCode.SUCCESS, name), taken
                    self.recalled.add(name)
                else:
                    self.due_ms[name] = due_ms


def stored(address: str) -> list[Record]:
    """Everything in the topic."""
    records: list[Record] = []
    with Connection(address, 20.0) as connection:
        for queue_id in range(4):
            offset = 0
            while True:
                answer = connection.call(pull_request(TOPIC, Queue("broker-a", queue_id), offset, 32, "*", 0))
                if answer.code != ResponseCode.SUCCESS:
                    break
                found = decode_records(answer.body)
                records += found
                offset = found[-1].queue_offset + 1
    return records


def test_pending_timers_change_hands(java: str, tools_classpath: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {**SETTINGS, "listenPort": port, "haListenPort": port + 1}
    place = Place(tmp_path, checkout_command(), settings)
    config = {key: str(value) for key, value in settings.items()} | {"storePathRootDir": str(place.store)}
    sent = Sent(f"127.0.0.1:{port}")
    for turn, (broker, kill) in enumerate(TURNS):
        with contextlib.ExitStack() as stack:
            if broker == "Ropewalk":
                server = stack.enter_context(Server(place))
            else:
                original = Original(tmp_path / f"original-{turn}", "256m", config, short_lived=True)
                original.start()
                stack.callback(original.stop, orderly=not kill)
            sent.send(turn)
            if turn == len(TURNS) - 1:
                wait_for_all(sent)
                records = stored(sent.address)
            else:
                time.sleep(PAUSE_S)
            if broker == "Ropewalk" and not kill:
                assert server.terminate() == 0, place.errors()
            assert "given up" not in (place.errors() if broker == "Ropewalk" else "")
    judge(sent, records)


def wait_for_all(sent: Sent) -> None:
    """Wait until every message is there, or is later than anything may be."""
    until = time.time() + max(AHEAD_S) + 60
    while time.time() < until:
        if sent.due_ms.keys() <= {record.body.decode() for record in stored(sent.address)}:
            return
        time.sleep(1)


def judge(sent: Sent, records: list[Record]) -> None:
    """Hold what was delivered against what was sent."""
    counts = Counter(record.body.decode() for record in records)
    assert not sent.due_ms.keys() - counts.keys(), "lost"
    assert not counts.keys() & sent.recalled, "delivered though recalled"
    early = {
        record.body: sent.due_ms[record.body.decode()] - record.store_timestamp
        for record in records
        if record.store_timestamp < sent.due_ms[record.body.decode()]
    }
    assert not early, "before their time, by so many ms"
    twice = {name for name, count in counts.items() if count > 1}
    # The original writes its progress down once a second, and knows nothing of Ropewalk's page: a kill repeats as much.
    assert len(twice) <= len(AHEAD_S), twice
