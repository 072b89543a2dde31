"""One store directory under two brokers by turns, Apache RocketMQ and Ropewalk, while clients go on.

    name server   Ropewalk's, a process of its own that outlives every broker
    broker        the one or the other: same directory, port, name, cluster, file sizes and delay levels
    group         two members in one Java process: one stays, one leaves while no broker is there and joins anew
    mqadmin       one Java process that asks whichever broker is there

A swap asks mqadmin, ends the broker, starts the other one on what it left, and asks mqadmin again: the answers about a
topic to which nobody is sending must be the same. What else must hold is decided at the end, by `swap_ledger`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from tests.bench.peers.rocketmq.original import Original
from tests.compat.driver import Driver, Event, LastingScenario
from tests.compat.mqadmin import Mqadmin
from tests.compat.swap_ledger import (
    COMMIT_AGE_S,
    DELAYS_S,
    LATER,
    PROMPT,
    SAVE_S,
    Commits,
    Ledger,
    Swap,
    Traffic,
    committed,
)
from tests.crash.server import NoStart, Place, Server
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment, first_line, stop
from tests.support.waiting import until

ROPEWALK, ROCKETMQ = "Ropewalk", "RocketMQ"
STILL = "swaps-still"
"""A topic that gets a few messages before each swap, and none while mqadmin is asked about it."""
SHARED_KEY = "shared"

_START_S = 60.0
_PATIENCE_S = 60.0

# Small files, so that every broker rolls all of them; the sizes are in no file, so both must be told the same.
SETTINGS: dict[str, str | int] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 20 * 200,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in DELAYS_S),
    "flushConsumerOffsetInterval": round(SAVE_S * 1000),  # Ropewalk goes by it with all its tables
    "diskMaxUsedSpaceRatio": 95,
}
# Without messageIndexSafe, the original deletes the youngest index file after a kill and builds anew only what the
# tail of the log has; it goes back over so many segments only, 10 GiB where a segment has the usual size. The timer
# wheel is 38 MB that nobody turns here; the last is patience with a cold JVM.
ORIGINAL_SETTINGS = {
    "commitLogRecoverMaxNum": "10000",
    "flushDelayOffsetInterval": str(round(SAVE_S * 1000)),
    "messageIndexSafe": "true",
    "timerWheelEnable": "false",
    "waitTimeMillsInSendQueue": "10000",
}


class Group(LastingScenario):
    """The Java process of the consumer group. Messages go into the ledger, other events wait to be expected."""

    def __init__(self, driver: Driver, namesrv: str, home: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        super().__init__(driver, namesrv, home, "lasting", prefix="swaps")

    def _take(self, event: Event) -> None:
        if event["event"] == "received":
            self._ledger.received.append(event)
        else:
            super()._take(event)

    def expect(self, kind: str) -> None:
        """Wait for the next event of this kind."""
        with self._news:
            came = self._news.wait_for(
                lambda: self._process.poll() is not None or bool(self._events), _PATIENCE_S
            )
            assert came and self._events, f"the group did not say {kind!r}: {self._tail()}"
            event = self._events.pop(0)
        assert event["event"] == kind, (event, self._tail())


class World:
    """Everything that runs. Entering it starts a name server, a first broker, traffic, the group and mqadmin."""

    def __init__(
        self,
        root: Path,
        first: str,
        driver: Driver,
        tools_classpath: str,
        seed: int,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.broker = first
        self._root = root
        self._driver = driver
        self._tools_classpath = tools_classpath
        self._stack = contextlib.ExitStack()
        self._still_count = 0
        self._still_keys = [SHARED_KEY]
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._settings = {**SETTINGS, "listenPort": port, "haListenPort": port + 1, **(settings or {})}
        self.namesrv = ""
        self._place: Place
        self._server: Server | None = None
        self._original: Original
        self._traffic = Traffic(self.address, self.ledger, seed)
        self._commits = Commits(self.address, self.ledger)
        self._group: Group
        self._admin: Mqadmin
        self._ready = 0.0

    @property
    def store(self) -> Path:
        return self._place.store

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:
            self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def _enter(self, stack: contextlib.ExitStack) -> None:
        self.namesrv = self._start_namesrv(stack)
        settings = self._settings | {"namesrvAddr": self.namesrv}
        self._place = Place(self._root, checkout_command(), settings)
        config = {key: str(value) for key, value in self._settings.items()} | ORIGINAL_SETTINGS
        config["storePathRootDir"] = str(self.store)
        self._original = Original(
            self._root / "original", "256m", config, namesrv=self.namesrv, short_lived=True
        )
        stack.callback(self._end, kill=True)
        self._start()
        self._traffic.start()
        stack.callback(self._traffic.stop.set)
        home = self._root / "java"
        home.mkdir()
        self.send_still()
        self._group = Group(self._driver, self.namesrv, home, self.ledger)
        stack.callback(self._group.close)
        self._admin = stack.enter_context(Mqadmin(self.namesrv, self._tools_classpath, home))
        self._group.expect("ready")
        self._commits.start()
        stack.callback(self._commits.stop.set)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start_namesrv(self, stack: contextlib.ExitStack) -> str:
        process = subprocess.Popen(
            [*checkout_command(), "namesrv", "--port", "0", "--json"],
            env=checkout_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        stack.callback(stop, process)
        ready: dict[str, Any] = json.loads(first_line(process, _START_S))
        return str(ready["namesrv"])

    # -- brokers -------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self.broker == ROCKETMQ:
            self._original.start()
        else:
            try:
                self._server = Server(self._place)
            except NoStart as exc:
                raise AssertionError(f"after {self.ledger.swaps}: {exc}") from exc
        self._ready = time.time()

    def _end(self, *, kill: bool) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            with server:  # which kills what is still there
                status = 0 if kill else server.terminate()
            assert status == 0, f"exit status {status}: {self._place.errors()}"
            assert "none of the log's" not in self._place.errors(), (
                "kills take nothing that an index speaks of"
            )
        else:
            self._original.stop(orderly=not kill)

    def swap(self, *, kill: bool) -> None:
        """Let the broker that is there serve for a while, end it, and start the other one."""
        self.serve(until_kill=kill)
        # On a busy machine the first commits come late, and a swap is to find some that it must keep.
        until(self._has_old_commits, "commits that are old enough to be kept", patience_s=_PATIENCE_S)
        self.send_still()
        before = self.ask()
        at = time.time()
        self._end(kill=kill)
        gone = time.time()
        if not kill and (self.store / "abort").exists():
            self.ledger.violations.append(f"{self.broker} left its abort file after an orderly stop")
        self._group.tell("leave")
        self._group.expect("left")
        of, self.broker = self.broker, ROCKETMQ if self.broker == ROPEWALK else ROPEWALK
        self._start()
        swap = Swap(of, kill, at, gone, self._ready)
        self.ledger.swaps.append(swap)
        self._check_commits(swap)
        self._group.tell("join")
        self._group.expect("joined")
        self._compare(swap, before)

    def _has_old_commits(self) -> bool:
        now = time.time()
        return any(self.ledger.floor((topic, 0), now - COMMIT_AGE_S, now) for topic in (PROMPT, LATER))

    def _check_commits(self, swap: Swap) -> None:
        """The new broker has every offset that the old one had for long enough."""
        with Connection(self.address, 10.0) as connection:
            for commit in committed(connection):
                # An orderly stop saves them all.
                since = swap.at - COMMIT_AGE_S if swap.kill else swap.at - 1.0
                floor = self.ledger.floor(commit.key, since, swap.at)
                if commit.offset < floor:
                    self.ledger.violations.append(f"{commit} after {swap}; it was {floor} before")

    def serve(self, *, until_kill: bool = False) -> None:
        """Let everything go on until the broker has been ready for long enough to have something to lose."""
        # The original saves offsets for the first time ten seconds after its start: what it is told before, a kill
        # takes, whoever comes next.
        seconds = 13.0 if until_kill and self.broker == ROCKETMQ else 8.0
        time.sleep(max(0.0, self._ready + seconds - time.time()))

    # -- mqadmin -------------------------------------------------------------------------------------

    def send_still(self) -> None:
        """A few more messages for mqadmin to find, under a key of their own and one they all share."""
        key = f"still-{len(self._still_keys)}"
        self._still_keys.append(key)
        with Connection(self.address, 10.0) as connection:
            for _ in range(5):
                self._still_count += 1
                name = f"S{self._still_count}"
                message = Message(name.encode(), [SHARED_KEY, key], "still")
                queue = Queue("broker-a", self._still_count % 3)
                answer = connection.call(
                    send_request(STILL, queue, message, name, time.time_ns() // 1_000_000)
                )
                assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)

    def ask(self) -> dict[str, list[str]]:
        """What mqadmin says about the still topic; the newest key first, when everything is indexed."""
        newest, answers = self._still_keys[-1], {}
        until(lambda: len(self._rows(newest)) == 5, lambda: self._query(newest))
        for key in self._still_keys:
            answers[key] = self._rows(key)
        # Behind the queues stands the topic's rate of puts, which is about the last seconds.
        rows = self._admin.table("topicStatus", "-t", STILL)
        answers["topicStatus"] = [" ".join(row) for row in rows if row[0] == "broker-a"]
        assert len(answers[SHARED_KEY]) == self._still_count, answers
        assert len(answers["topicStatus"]) == 4, rows
        return answers

    def _query(self, key: str) -> str:
        return self._admin.run("queryMsgByKey", "-t", STILL, "-k", key)

    def _rows(self, key: str) -> list[str]:
        rows = [" ".join(line.split()) for line in self._query(key).splitlines() if line.startswith("S")]
        # Started after a kill, the original puts the last record of its youngest full file into its index once more,
        # and answers with what stands there; Ropewalk gives a message once.
        may_repeat = self.broker == ROCKETMQ and any(swap.kill for swap in self.ledger.swaps)
        return sorted(set(rows) if may_repeat else rows)

    def _compare(self, swap: Swap, before: dict[str, list[str]]) -> None:
        """Ask again; a key index that is still being built gets a little time."""
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                after = self.ask()
            except AssertionError as exc:
                after = {"failed": [str(exc)]}
            if after == before:
                return
            if time.monotonic() > give_up:
                wrong = {
                    key: (before.get(key), after.get(key)) for key in before if before[key] != after.get(key)
                }
                self.ledger.violations.append(f"mqadmin is told otherwise after {swap}: {wrong}")
                return
            time.sleep(0.5)

    # -- the end -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Stop sending, and wait until everything acknowledged has been received."""
        self._traffic.stop.set()
        self._traffic.join(10)
        give_up = time.monotonic() + max(DELAYS_S) + _PATIENCE_S
        while self.ledger.missing() and time.monotonic() < give_up:
            time.sleep(0.2)
        time.sleep(1.0)  # for what should not come
        self._commits.stop.set()
        self._commits.join(10)

    def end(self) -> None:
        """Stop the last broker in good order."""
        self._group.close()
        self._end(kill=False)

    def verify(self) -> str:
        """What `ropewalk store verify` finds damaged in the directory, or nothing when it is clean."""
        config = self._root / "sizes.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        done = subprocess.run(
            [*checkout_command(), "store", "verify", str(self.store), "--config", str(config)],
            env=checkout_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr if done.returncode else ""
