"""Pending timers and open half messages in one directory that goes back and forth between Apache RocketMQ and Ropewalk.

Each broker's turn also ends by kill -9. A roll window of twenty seconds has the later timers come back into the timer
topic at either broker; half messages of a turn are decided in the next one, by the other broker, and what was decided
is decided again by Ropewalk, in vain. At the end every message is in its topic, none was stored there before its time,
only a kill repeats timers, and every commit was carried out once.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, command_of, pull_request, recall_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import MessageSysFlag, RequestCode, ResponseCode
from ropewalk.format.headers import EndTransactionHeader
from ropewalk.format.record import Record, decode_records, parse_message_id
from ropewalk.format.remoting import Command
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
    # No checks: they have a test of their own, and decide nothing here.
    "transactionTimeOut": 600_000,
    "transactionCheckInterval": 600_000,
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


class Halves:
    """The half messages that were sent, where they lie, and how they are decided."""

    GROUP = "shop"
    KINDS = ("commit", "rollback", "open")

    def __init__(self, address: str) -> None:
        self.address = address
        self._decisions: dict[str, Command] = {}
        """Of halves that nobody has decided yet."""
        self._decided: dict[str, Command] = {}

    def send(self, turn: int) -> None:
        """Send a half message of each kind."""
        with Connection(self.address, 20.0) as connection:
            now_ms = time.time_ns() // 1_000_000
            for number, kind in enumerate(self.KINDS):
                name = f"{kind}-{turn}"
                message = Message(name.encode(), properties={"TRAN_MSG": "true", "PGROUP": self.GROUP})
                request = send_request(
                    TOPIC, Queue("broker-a", number), message, name, now_ms, producer_group=self.GROUP
                )
                answer = connection.call(request)
                assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
                if kind != "open":
                    self._decisions[name] = self._decision(name, kind, answer)

    def _decision(self, name: str, kind: str, answer: Command) -> Command:
        end = MessageSysFlag.TRANSACTION_COMMIT if kind == "commit" else MessageSysFlag.TRANSACTION_ROLLBACK
        header = EndTransactionHeader(
            producer_group=self.GROUP,
            tran_state_table_offset=int(answer.ext["queueOffset"]),
            commit_log_offset=parse_message_id(answer.ext["msgId"])[2],
            commit_or_rollback=end,
            msg_id=name,
            transaction_id=name,
        )
        return command_of(RequestCode.END_TRANSACTION, header)

    def decide(self) -> None:
        """Have this turn's broker decide what the one before it has left open."""
        with Connection(self.address, 20.0) as connection:
            for name, decision in self._decisions.items():
                answer = connection.call(decision)
                assert answer.code == ResponseCode.SUCCESS, (name, answer.code, answer.remark)
        self._decided |= self._decisions
        self._decisions.clear()

    def decide_again(self) -> None:
        """Repeat every decision, as a producer does that heard of none: all are refused."""
        with Connection(self.address, 20.0) as connection:
            for name, decision in self._decided.items():
                answer = connection.call(decision)
                assert answer.code == ResponseCode.SYSTEM_ERROR, (name, answer.code, answer.remark)

    @property
    def committed(self) -> list[str]:
        """The messages that must be in the topic, each once."""
        return sorted(name for name in self._decided if name.startswith("commit"))


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


def test_pending_timers_and_open_halves_change_hands(java: str, tools_classpath: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {**SETTINGS, "listenPort": port, "haListenPort": port + 1}
    place = Place(tmp_path, checkout_command(), settings)
    config = {key: str(value) for key, value in settings.items()} | {"storePathRootDir": str(place.store)}
    sent, halves = Sent(f"127.0.0.1:{port}"), Halves(f"127.0.0.1:{port}")
    for turn, (broker, kill) in enumerate(TURNS):
        with contextlib.ExitStack() as stack:
            if broker == "Ropewalk":
                server = stack.enter_context(Server(place))
            else:
                original = Original(tmp_path / f"original-{turn}", "256m", config, short_lived=True)
                original.start()
                stack.callback(original.stop, orderly=not kill)
            if broker == "Ropewalk":
                halves.decide_again()
            halves.decide()
            halves.send(turn)
            sent.send(turn)
            if turn == len(TURNS) - 1:
                wait_for_all(sent)
                halves.decide_again()
                records = stored(sent.address)
            else:
                time.sleep(PAUSE_S)
            if broker == "Ropewalk" and not kill:
                assert server.terminate() == 0, place.errors()
            assert "given up" not in (place.errors() if broker == "Ropewalk" else "")
    transactional = [record for record in records if "TRAN_MSG" in record.properties]
    assert sorted(record.body.decode() for record in transactional) == halves.committed
    judge(sent, [record for record in records if record not in transactional])


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
