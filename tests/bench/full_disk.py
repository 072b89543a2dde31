"""Fill a disk of 200 MB by a broker's own traffic, and print a table of what was removed, lost and refused.

    python -m tests.bench.full_disk                        # both modes, the three cases, some two minutes each
    python -m tests.bench.full_disk --mode dledger --case young
    python -m tests.bench.full_disk --checkout DIRECTORY   # the same for the brokers of another checkout

    expired   segments age as soon as they are full: only expired ones go, `df` falls as `du` does, sends go on
    young     no segment is expired, and forced cleaning is on: one segment at a time goes, only until the level is
              met (85 %), and the metric of the alert has fallen below its bound before the first
    other     another file takes all the room that the disk gets: one segment is lost at most, and sends are refused

The disk is a tmpfs of its own: mounting one takes root, and without it the script says so and ends with 2. Modes are a
master without a group (plain) and the leader of a DLedger group of one member. A broker removes nothing in its first
minute, in which the disk is filled by half.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.support.open_files import held_files
from tests.support.ports import free_ports
from tests.support.processes import ROOT, running_broker
from tools.drill.testbed import damage
from tools.drill.testbed.group import CannotRun

CASES = ("expired", "young", "other")
MODES = ("plain", "dledger")
DISK = 200 << 20
BODY = 60_000
QUIET_S = 61.0
NEAR = 0.05
FILL_RATE = 8 << 20
ALL_HOURS_BUT_THIS = (time.localtime().tm_hour + 12) % 24


@dataclass(frozen=True)
class Form:
    """The size of a case. Sizes in bytes."""

    segment: int = 4 << 20
    rate: int = 4 << 20
    """Bytes a second."""
    seconds: float = 60.0
    """Of traffic behind the first minute."""
    asks: bool = False
    """Whether an administrator has retention act now again and again: then there is no quiet first minute."""


@dataclass
class Outcome:
    """The figures of one case."""

    mode: str
    case: str
    acknowledged: int = 0
    refused: int = 0
    words: str = ""
    removed: list[str] = field(default_factory=list)
    young: int = 0
    """Segments that were removed and had not expired."""
    lost: int = 0
    """Acknowledged messages that cannot be read any more, and had not expired."""
    used_max: float = 0.0
    used: float = 0.0
    du: float = 0.0
    held: int = 0
    room_before_first: float | None = None
    """The lowest value of the alert's metric before the first segment went; None where there is no such metric."""
    taken_at_end: bool = False

    def row(self) -> list[str]:
        """Return the cells of the table."""
        room = "-" if self.room_before_first is None else f"{self.room_before_first:.3f}"
        return [
            self.mode, self.case, str(self.acknowledged), str(self.refused), str(len(self.removed)),
            str(self.young), str(self.lost), f"{self.used_max:.0f} %", f"{self.used:.0f} %", f"{self.du:.0f} %",
            str(self.held), room, "yes" if self.taken_at_end else "no",
        ]  # fmt: skip


HEADS = [
    "mode", "case", "acknowledged", "refused", "removed", "young", "lost", "df max", "df end", "du end",
    "held open", "metric before first", "sends at end",
]  # fmt: skip


class Watch(threading.Thread):
    """A look at the disk, the log and the metric five times a second; segments age here, and the other file grows."""

    def __init__(self, disk: Path, log: Path, metrics: int, outcome: Outcome) -> None:
        super().__init__(daemon=True)
        self.disk, self.log, self.metrics, self.outcome = disk, log, metrics, outcome
        self.ballast = False
        self._left = 1 << 60
        """The blocks that the other file leaves: never more than there were once."""
        self.over = threading.Event()
        self._seen: dict[str, bool] = {}
        """Segments, and whether they are expired."""

    def used(self) -> float:
        """Return how full the disk is, in percent."""
        found = os.statvfs(self.disk)
        return 100 * (1 - found.f_bavail / found.f_blocks)

    def run(self) -> None:
        while not self.over.wait(0.2):
            self.look()

    def look(self) -> None:
        outcome = self.outcome
        names = sorted(each.name for each in self.log.iterdir()) if self.log.exists() else []
        for name in [each for each in self._seen if each not in names and each not in outcome.removed]:
            outcome.removed.append(name)
            outcome.young += not self._seen[name]
        room = self._room()
        if room is not None and not outcome.removed:
            before = outcome.room_before_first
            outcome.room_before_first = room if before is None else min(before, room)
        for name in names:
            self._seen.setdefault(name, False)
        for name in names[:-2] if outcome.case == "expired" else ():
            old = time.time() - 80 * 3600
            try:
                os.utime(self.log / name, (old, old))
            except FileNotFoundError:
                continue
            self._seen[name] = True
        outcome.used_max = max(outcome.used_max, self.used())
        if self.ballast:
            self._take_room()

    def _room(self) -> float | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as page:
                text = page.read().decode()
        except (OSError, urllib.error.URLError):
            return None
        found = re.search(r"^ropewalk_forced_cleaning_room_ratio\S* (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else None

    def _take_room(self) -> None:
        found = os.statvfs(self.disk)
        self._left = min(self._left, found.f_bavail, found.f_blocks * 3 // 100)
        over = (found.f_bavail - self._left) * found.f_frsize
        if over > 0:
            with (self.disk / "other").open("ab") as other:
                other.write(bytes(over))


def settings_of(mode: str, store: Path, metrics: int, segment: int) -> dict[str, object]:
    values: dict[str, object] = {
        "storePathRootDir": store,
        "mappedFileSizeCommitLog": segment,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "cleanResourceInterval": 2000,
        "deleteWhen": f"{ALL_HOURS_BUT_THIS:02d}",
        "metricsPromExporterPort": metrics,
    }
    if mode == "dledger":
        peer = f"n0-127.0.0.1:{free_ports(1)[0]}"
        values |= {"enableDLegerCommitLog": "true", "dLegerPeers": peer, "dLegerSelfId": "n0"}
    return values


class Sender:
    """A producer of one queue at a steady rate."""

    def __init__(self, address: str, outcome: Outcome, asks: bool) -> None:
        self._connection = Connection(address, 30.0)
        self._outcome = outcome
        self._ask_at = 0.0 if asks else float("inf")

    def send(self, rate: int, until: float, bytes_max: float = float("inf")) -> None:
        """Send so many bytes a second, up to a time or a number of bytes."""
        sent = 0
        while time.monotonic() < until and sent < bytes_max:
            if not self.send_one():
                time.sleep(0.2)
            sent += BODY
            time.sleep(BODY / rate)
            if time.monotonic() >= self._ask_at:
                self._ask_at = time.monotonic() + 0.3
                self._connection.call(Command(RequestCode.DELETE_EXPIRED_COMMITLOG, {}))

    def send_one(self) -> bool:
        outcome = self._outcome
        number = outcome.acknowledged + outcome.refused
        request = send_request(
            "demo", Queue("", 0), Message(bytes(BODY), keys=(f"k{number}",)), f"{number:032X}", 0
        )
        answer = self._connection.call(request)
        if answer.code == 0:
            outcome.acknowledged += 1
            return True
        outcome.refused += 1
        outcome.words = answer.remark or ""
        return False

    def close(self) -> None:
        self._connection.close()

    def lost(self) -> int:
        """Return how many acknowledged messages lie before the beginning of their queue."""
        ext = {"topic": "demo", "queueId": "0"}
        return int(self._connection.call(Command(RequestCode.GET_MIN_OFFSET, ext)).ext.get("offset", "0"))


def run(mode: str, case: str, disk: Path, checkout: Path, form: Form) -> Outcome:
    """Play one case on a disk that is mounted already; return its figures."""
    outcome = Outcome(mode, case)
    store, (metrics,) = disk / "store", free_ports(1)
    settings = settings_of(mode, store, metrics, form.segment)
    words = [f"--set={key}={value}" for key, value in settings.items()]
    log = store / ("dledger-n0/data" if mode == "dledger" else "commitlog")
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    size = os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize
    command = [sys.executable, "-m", "ropewalk"]
    with (
        running_broker(command, *words, cwd=disk.parent, environment=environment) as running,
        ExitStack() as ends,
    ):
        began = time.monotonic()
        watch = Watch(disk, log, metrics, outcome)
        watch.start()
        sender = Sender(str(running.ready["broker"]), outcome, form.asks)
        ends.callback(sender.close)
        until_leads(sender)
        sender.send(FILL_RATE, began + QUIET_S, 0.5 * size)
        if not form.asks:
            time.sleep(max(0.0, began + QUIET_S - time.monotonic()))
        if case == "other":
            watch.ballast = True
        sender.send(form.rate, time.monotonic() + form.seconds)
        time.sleep(3.0)
        outcome.taken_at_end = sender.send_one()
        outcome.lost = 0 if case == "expired" else sender.lost()
        watch.over.set()
        watch.join()
        watch.look()
        outcome.used, outcome.held = watch.used(), len(held_files(running.process.pid, disk))
        outcome.du = (
            100 * sum(each.stat().st_blocks * 512 for each in disk.rglob("*") if each.is_file()) / size
        )
    return outcome


def until_leads(sender: Sender) -> None:
    """Wait until the first message is taken."""
    give_up = time.monotonic() + 60
    while not sender.send_one():
        assert time.monotonic() < give_up, "no message is taken"
        time.sleep(0.2)
    sender._outcome.refused, sender._outcome.words = 0, ""


@contextmanager
def disk_of(folder: Path, size: int = DISK) -> Iterator[Path]:
    """Mount a small disk in a folder. Raises `CannotRun`."""
    disk = folder / "disk"
    with damage.small_disk(disk, size):
        yield disk


def main() -> int:
    parser = argparse.ArgumentParser(description="Fill a small disk by a broker's traffic.")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic behind the first minute")
    options = parser.parse_args()
    outcomes = []
    for mode in options.mode or MODES:
        for case in options.case or CASES:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    with disk_of(Path(folder)) as disk:
                        form = Form(seconds=options.seconds)
                        outcomes.append(run(mode, case, disk, options.checkout.resolve(), form))
                except CannotRun as exc:
                    print(exc, file=sys.stderr)
                    return 2
            print(outcomes[-1], flush=True)
    print("\n| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
    for outcome in outcomes:
        print("| " + " | ".join(outcome.row()) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
