"""Have brokers turn their retention over ten times and more, and report memory, descriptors and removed files held.

    python -m tests.bench.retention_soak --minutes 60                     # plain, then pair, then dledger
    python -m tests.bench.retention_soak --minutes 60 --mode pair --rate 1000000

Modes are a master without a group, a master with a slave, and a DLedger group of three. Messages come at a steady rate,
with keys; old ones are read, asked for by key and by time; once a minute a topic is deleted. A segment counts as
expired when a twelfth of the time has passed since it was full: its modification time is set back then, so retention
removes it as it would after days. Every line is a sample, and the last ones compare the beginning with the end; the
exit code is 1 where a removed file was held for longer than a second, or memory or descriptors have grown by more than
a fifth since the second turn.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, pull_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command
from tests.crash.ledger_group import LedgerGroup
from tests.ha.process_group import Group
from tests.support.brokers import address_of, broker
from tests.support.open_files import descriptor_count, held_files, resident_bytes

MODES = ("plain", "pair", "dledger")
TURNS = 12
BODY = 20_000
SEGMENT = 2 << 20
LOOK_S = 0.5
GROWTH_MAX = 1.2
SETTINGS: dict[str, str | int] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "cleanResourceInterval": 1000,
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "metricsExporterType": "DISABLE",
}


@dataclass(frozen=True)
class Replica:
    """A broker under test."""

    name: str
    pid: int
    root: Path
    log: Path


@dataclass(frozen=True)
class Sample:
    """The figures of one broker at one time."""

    memory: int
    descriptors: int
    held: int
    kept: int
    removed: int


@contextmanager
def brokers_of(mode: str, folder: Path) -> Iterator[tuple[list[Replica], Callable[[], str]]]:
    """Start the brokers of a mode; yields them, and what tells the address of the one that takes messages."""
    if mode == "plain":
        root = folder / "store"
        words = [f"--set={key}={value}" for key, value in {**SETTINGS, "storePathRootDir": root}.items()]
        with broker(folder, *words) as running:
            yield (
                [Replica("master", running.process.pid, root, root / "commitlog")],
                lambda: address_of(running),
            )
    elif mode == "pair":
        group = Group(folder)
        try:
            group.start("a", brokerRole="SYNC_MASTER", **SETTINGS)
            group.start("b", brokerRole="SLAVE", brokerId=1, **SETTINGS)
            group.until_followed("a")
            found = []
            for name, each in group.replicas.items():
                assert each.process is not None
                found.append(Replica(name, each.process.pid, each.root, each.root / "commitlog"))
            yield found, lambda: group.replicas["a"].address
        finally:
            group.close()
    else:
        with LedgerGroup(folder, settings=SETTINGS) as ledger:
            members = [
                Replica(each.id, each.process.pid, each.store, each.store / f"dledger-{each.id}" / "data")
                for each in ledger.members
            ]
            yield members, lambda: ledger.leader().address


class Soak:
    """The traffic, the passing of time and the samples of one mode."""

    def __init__(
        self, replicas: list[Replica], address: Callable[[], str], minutes: float, rate: int
    ) -> None:
        self.samples: dict[str, list[Sample]] = {each.name: [] for each in replicas}
        self._replicas = replicas
        self._address = address
        self._seconds = minutes * 60
        self._rate = rate
        self._sent = 0
        self._full: dict[Path, float] = {}
        self._seen: dict[str, set[str]] = {each.name: set() for each in replicas}
        self._connection: Connection | None = None

    def run(self) -> None:
        """Send until the time is over; print a line for each broker twelve times a turn at most, once a minute."""
        began = time.monotonic()
        next_look = next_line = next_reads = began
        while (now := time.monotonic()) < began + self._seconds:
            due = int((now - began) * self._rate / BODY)
            try:
                while self._sent < due and time.monotonic() < now + LOOK_S:
                    self._send()
                if now >= next_reads:
                    next_reads = now + 60.0
                    self._read()
            except (RopewalkError, OSError) as exc:
                print(f"# {exc}", flush=True)
                self._connection = None
                time.sleep(1.0)
            if now >= next_look:
                next_look = now + LOOK_S
                self._age(now)
            if now >= next_line:
                next_line = now + min(60.0, self._seconds / (5 * TURNS))
                self._sample(now - began)
            time.sleep(0.02)

    def _link(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = Connection(self._address(), 30.0)
        return self._connection

    def _send(self) -> None:
        number, minute = self._sent, int(time.monotonic() // 60)
        topic = "demo" if number % 10 else f"minute-{minute}"
        message = Message(os.urandom(100) + bytes(BODY - 100), keys=(f"k{number % 1000}",))
        self._link().call(send_request(topic, Queue("", number % 4), message, f"{number:032X}", 0))
        self._sent += 1

    def _read(self) -> None:
        """Read old messages, ask by key and by time, and delete a topic: all that opens files."""
        link = self._link()
        for queue_id in range(4):
            ext = {"topic": "demo", "queueId": str(queue_id)}
            first = int(link.call(Command(RequestCode.GET_MIN_OFFSET, ext)).ext.get("offset", "0"))
            link.call(pull_request("demo", Queue("", queue_id), first, 32, "*", 0))
            link.call(Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**ext, "timestamp": "1"}))
        asked = {"topic": "demo", "key": "k7", "maxNum": "32", "beginTimestamp": "0"}
        link.call(Command(RequestCode.QUERY_MESSAGE, {**asked, "endTimestamp": str(1 << 60)}))
        old = f"minute-{int(time.monotonic() // 60) - 2}"
        link.call(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": old}))

    def _age(self, now: float) -> None:
        old = time.time() - 80 * 3600
        for replica in self._replicas:
            names = sorted(each.name for each in replica.log.iterdir()) if replica.log.exists() else []
            self._seen[replica.name].update(names)
            for name in names[:-2]:
                path = replica.log / name
                if now - self._full.setdefault(path, now) > self._seconds / TURNS:
                    try:
                        os.utime(path, (old, old))
                    except FileNotFoundError:
                        continue

    def _sample(self, seconds: float) -> None:
        for replica in self._replicas:
            held = held_files(replica.pid, replica.root)
            if held:  # a second to let go
                time.sleep(1.0)
                held = [each for each in held_files(replica.pid, replica.root) if each in held]
            kept = len(list(replica.log.iterdir()))
            removed = max(0, len(self._seen[replica.name]) - kept)
            sample = Sample(
                resident_bytes(replica.pid), descriptor_count(replica.pid), len(held), kept, removed
            )
            self.samples[replica.name].append(sample)
            print(
                f"{seconds / 60:7.1f} min  {replica.name:8}  memory {sample.memory / 1e6:7.1f} MB  descriptors "
                f"{sample.descriptors:4}  removed but held {sample.held:3}  segments {kept:4}  removed {removed:5}  "
                f"turns {removed / max(kept, 1):5.1f}",
                flush=True,
            )
            for each in held[:5]:
                print(f"#   {each}", flush=True)


def judged(samples: list[Sample]) -> tuple[bool, str]:
    """Return whether nothing was held and nothing has grown since the second turn, and that in words."""
    begin = samples[len(samples) * 2 // TURNS : len(samples) * 4 // TURNS] or samples[:1]
    end = samples[-max(1, len(samples) * 2 // TURNS) :]
    memory = max(each.memory for each in end) / max(each.memory for each in begin)
    descriptors = max(each.descriptors for each in end) / max(each.descriptors for each in begin)
    held = max(each.held for each in samples)
    is_flat = not held and memory <= GROWTH_MAX and descriptors <= GROWTH_MAX
    return is_flat, f"memory x {memory:.2f}, descriptors x {descriptors:.2f}, removed but held at most {held}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Turn the retention of brokers over many times.")
    parser.add_argument("--minutes", type=float, default=60.0, help="for each mode")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--rate", type=int, default=500_000, help="bytes a second")
    options = parser.parse_args()
    code = 0
    for mode in options.mode or MODES:
        with tempfile.TemporaryDirectory() as folder, brokers_of(mode, Path(folder)) as (replicas, address):
            soak = Soak(replicas, address, options.minutes, options.rate)
            soak.run()
        for name, samples in soak.samples.items():
            is_flat, words = judged(samples)
            code |= not is_flat
            print(f"{mode} {name}: {'flat' if is_flat else 'NOT FLAT'}: {words}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
