"""The figures of replication and of handovers, each beside what it should be.

    python -m tests.bench.ha_figures [--quick] [--only share,catch-up,switch,failover,watch] [--data-dir DIR]

Real processes: a name server, a master and one slave for each figure; every command is the one an operator types, in a
process of its own. About five minutes, `--quick` one.

    share      two groups, the slave attached in both: a SYNC_MASTER's rate, which waits for its slave, as a share of an
               ASYNC_MASTER's, in alternating turns of the same load; and what the waiting adds to the p99
    catch-up   a slave that was away comes back, and is sent what it lacks
    switch     `admin ha switch`, there and back under load: how long no message was taken, as the command prints it,
               and the longest time that a producer waited for an acknowledgement
    failover   kill -9 of the master, then `admin ha failover`: from the start of the command to the first message that
               the new master stores
    watch      kill -9 of the master beside `admin ha watch`: from the kill to the first message that is stored
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.addresses import parse_address
from ropewalk.codes import ResponseCode
from ropewalk.errors import RopewalkError
from tests.ha.pairs import send, until_acknowledged
from tests.ha.process_group import BROKER, Group
from tests.support.processes import checkout_command, checkout_environment
from tools.admin.handover import Members
from tools.bench import prepare
from tools.bench.runner import run_load
from tools.bench.spec import Outcome, ProduceSpec

TOPIC: Final = "bench"
QUEUES: Final = 4
SEGMENT_SIZE: Final = 1 << 30
STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
"""What a new master without a slave answers to a message that it took."""
PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    turns: int
    turn_s: float
    backlog_mb: int
    switches: int
    failovers: int
    watches: int


THOROUGH: Final = Size(turns=6, turn_s=4.0, backlog_mb=2000, switches=20, failovers=10, watches=5)
QUICK: Final = Size(turns=1, turn_s=2.0, backlog_mb=300, switches=4, failovers=2, watches=1)


_verdicts: list[bool] = []
"""Of each figure that has a target: whether it is met."""


def show(
    name: str, value: float, unit: str, target: float | None = None, *, most: bool = False, note: str = ""
) -> None:
    """One line of the table. `target` is a bound from below, or from above where `most` is set."""
    bound = verdict = ""
    if target is not None:
        bound = f"{'<=' if most else '>='} {target:g}"
        verdict = "met" if (value <= target if most else value >= target) else "MISSED"
        _verdicts.append(verdict == "met")
    figure = f"{value:10,.2f}" if value < 10 else f"{value:10,.1f}"
    load = f"load {os.getloadavg()[0]:3.1f}"
    print(f"{name:52} {figure} {unit:6} {bound:8} {verdict:7} {load}  {note}", flush=True)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def group_of(folder: Path, role: str) -> Iterator[Group]:
    """A master `a` and its slave `b`, with the sizes that a broker has by default."""
    folder.mkdir()
    group = Group(folder)
    try:
        group.start("a", brokerRole=role, mappedFileSizeCommitLog=SEGMENT_SIZE)
        group.start("b", brokerRole="SLAVE", brokerId=1, mappedFileSizeCommitLog=SEGMENT_SIZE)
        group.until_followed("a") if role == "SYNC_MASTER" else until_equal(group, "a", "b")
        yield group
    finally:
        group.close()


def ends(group: Group, *names: str) -> list[int]:
    """How far the logs reach."""
    with Members(timeout=2.0) as members:
        return [members.status_of(group.replicas[name].address).end for name in names]


def until_equal(group: Group, *names: str) -> None:
    """Wait until the logs reach equally far."""
    group.until(lambda: len(set(ends(group, *names))) == 1, f"{' and '.join(names)} have the same")


# -- a master that waits for its slave, beside one that does not ----------------------------------------------


def share(root: Path, size: Size) -> None:
    rates: dict[str, list[Outcome]] = {"SYNC_MASTER": [], "ASYNC_MASTER": []}
    with (
        group_of(root / "sync", "SYNC_MASTER") as sync,
        group_of(root / "async", "ASYNC_MASTER") as alone,
    ):
        groups = {"SYNC_MASTER": sync, "ASYNC_MASTER": alone}
        for group in groups.values():
            prepare.create_topic(parse_address(group.replicas["a"].address), TOPIC, QUEUES)
        for turn in range(size.turns + 1):  # the first one warms up and is not counted
            for role, group in groups.items():
                outcome = run_load(_shape(group.replicas["a"].address, size.turn_s if turn else 1.0))
                if (void := outcome.why_void()) is not None:
                    raise SystemExit(f"the load on the {role} is void: {void}")
                until_equal(group, "a", "b")  # what this slave still lacks must not cost the other group
                if turn:
                    rates[role].append(outcome)
                    tell(f"  {role}: {outcome.rate:,.0f} messages/s")
    by_role = {role: statistics.median(each.rate for each in found) for role, found in rates.items()}
    p99 = {role: statistics.median(_p99_ms(each) for each in found) for role, found in rates.items()}
    both = f"{by_role['SYNC_MASTER']:,.0f} and {by_role['ASYNC_MASTER']:,.0f} messages/s, medians of {size.turns}"
    share_of = 100 * by_role["SYNC_MASTER"] / by_role["ASYNC_MASTER"]
    show("A1 of A0 with the slave, 4 x 256, 128 B", share_of, "%", 80, note=both)
    show(
        "p99 that the waiting adds",
        p99["SYNC_MASTER"] - p99["ASYNC_MASTER"],
        "ms",
        note=f"{p99['SYNC_MASTER']:.1f} and {p99['ASYNC_MASTER']:.1f} ms",
    )


def _shape(address: str, seconds: float) -> ProduceSpec:
    host, _, port = address.rpartition(":")
    return ProduceSpec(
        host=host,
        port=int(port),
        topic=TOPIC,
        queues=QUEUES,
        connections=4,
        in_flight=256,
        body_size=128,
        warm_up_s=0.5,
        duration_s=seconds,
    )


def _p99_ms(outcome: Outcome) -> float:
    assert outcome.latency is not None
    return outcome.latency.p99 / 1000


# -- catching up ----------------------------------------------------------------------------------------------


def catch_up(root: Path, size: Size) -> None:
    with group_of(root / "lag", "ASYNC_MASTER") as group:
        master = parse_address(group.replicas["a"].address)
        group.kill("b")
        prepare.create_topic(master, TOPIC, QUEUES)
        prepare.fill(master, TOPIC, QUEUES, size.backlog_mb * 1_000_000 // 1024, 1024)
        (end,) = ends(group, "a")
        tell(f"  a slave lacks {end / 1e6:,.0f} MB")
        slave = group.start("b")
        times: list[tuple[float, int]] = []
        give_up = time.monotonic() + PATIENCE_S + size.backlog_mb / 50
        with Members(timeout=5.0) as members:
            while not times or times[-1][1] < end:
                assert time.monotonic() < give_up, f"the slave does not catch up\n{group.told()}"
                times.append((time.monotonic(), members.status_of(slave.address).end))
                time.sleep(0.02)
        moving = [each for each in times if each[1] > times[0][1]]
        before = times[len(times) - len(moving) - 1]
        seconds = moving[-1][0] - before[0]
        rate = (end - before[1]) / 1e6 / seconds
        show("catch-up of a lagging slave, 1 KiB", rate, "MB/s", 300, note=f"{seconds:.1f} s")


# -- handovers ------------------------------------------------------------------------------------------------


class Producer(threading.Thread):
    """Sends one message after the other to whoever takes it, and knows when it was last told 0."""

    def __init__(self, group: Group) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.acknowledged = 0
        self._addresses = [replica.address for replica in group.replicas.values()]
        self._ended = threading.Event()
        self._last = time.monotonic()

    def begin(self) -> None:
        self.longest_s = 0.0

    def run(self) -> None:
        number = 0
        while not self._ended.is_set():
            for address in self._addresses:
                with contextlib.suppress(RopewalkError, OSError), Connection(address, 1.0) as connection:
                    while not self._ended.is_set():
                        number += 1
                        if send(connection, number, TOPIC, 100) != ResponseCode.SUCCESS:
                            break
                        now = time.monotonic()
                        self.longest_s = max(self.longest_s, now - self._last)
                        self._last = now
                        self.acknowledged += 1
            time.sleep(_POLL_S)

    def end(self) -> None:
        self._ended.set()
        self.join()


def switch(root: Path, size: Size) -> None:
    gaps: list[float] = []
    waits: list[float] = []
    with group_of(root / "switch", "SYNC_MASTER") as group:
        producer = Producer(group)
        producer.start()
        try:
            for number in range(size.switches):
                group.until_followed("ab"[number % 2])
                before = producer.acknowledged
                producer.begin()
                report = group.admin("switch", BROKER)
                gaps.append(report["gapMs"])
                group.until(lambda: producer.acknowledged > before + 10, "messages are acknowledged again")  # noqa: B023
                waits.append(producer.longest_s * 1000)
        finally:
            producer.end()
    worst = f"p99 {sorted(gaps)[len(gaps) * 99 // 100]:,.0f} ms, of {len(gaps)}"
    show("planned switch, gap p50", statistics.median(gaps), "ms", 100, most=True, note=worst)
    show(
        "  longest wait of a producer, p50", statistics.median(waits), "ms", note=f"most {max(waits):,.0f} ms"
    )


def _stored_by(address: str, began: float) -> float:
    """Seconds until the broker at this address stores a message."""
    give_up = time.monotonic() + PATIENCE_S
    number = 0
    while time.monotonic() < give_up:
        with contextlib.suppress(RopewalkError, OSError), Connection(address, 1.0) as connection:
            while time.monotonic() < give_up:
                number += 1
                if send(connection, number, TOPIC, 100) in STORED:
                    return time.monotonic() - began
                time.sleep(_POLL_S)
    raise AssertionError(f"{address} stores nothing within {PATIENCE_S:g} s")


def _lose_masters(group: Group, count: int, lose: Callable[[Group, str, str], float]) -> list[float]:
    """Again and again: lose the master, have the slave replace it, and start the old one as its slave."""
    found = []
    for number in range(count):
        master, slave = "ab"[number % 2], "ab"[1 - number % 2]
        group.until_followed(master)
        until_acknowledged(group.replicas[master].address)
        found.append(lose(group, master, slave))
        tell(f"  {found[-1]:.2f} s")
        group.start(master)
    return found


def failover(root: Path, size: Size) -> None:
    asked: list[float] = []

    def lose(group: Group, master: str, slave: str) -> float:
        group.kill(master)
        began = time.monotonic()
        command = subprocess.Popen(
            [*checkout_command(), "admin", "ha", "failover", BROKER, "-n", group.namesrv, "--json"],
            env=checkout_environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            took = _stored_by(group.replicas[slave].address, began)
        finally:
            told, _ = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 0, told
        asked.append(float(told.partition('"tookMs":')[2].partition(",")[0]))
        return took

    with group_of(root / "failover", "SYNC_MASTER") as group:
        found = _lose_masters(group, size.failovers, lose)
    note = f"most {max(found):.2f} s, of {len(found)}; {statistics.median(asked):,.0f} ms of it from the first question"
    show(
        "failover after kill -9, from the command, p50",
        statistics.median(found),
        "s",
        0.5,
        most=True,
        note=note,
    )


def watch(root: Path, size: Size) -> None:
    def lose(group: Group, master: str, slave: str) -> float:
        began = time.monotonic()
        group.kill(master)
        return _stored_by(group.replicas[slave].address, began)

    with group_of(root / "watch", "SYNC_MASTER") as group:
        watching = subprocess.Popen(
            [*checkout_command(), "admin", "ha", "watch", "-n", group.namesrv],
            env=checkout_environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert watching.stdout is not None and "the master is" in watching.stdout.readline()
            found = _lose_masters(group, size.watches, lose)
        finally:
            watching.kill()
            watching.communicate()
    note = f"most {max(found):.2f} s, of {len(found)}"
    show("under `ha watch`, from the kill, p50", statistics.median(found), "s", 2.0, most=True, note=note)


FIGURES: Final[dict[str, Callable[[Path, Size], None]]] = {
    "share": share,
    "catch-up": catch_up,
    "switch": switch,
    "failover": failover,
    "watch": watch,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.ha_figures", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a first impression, with a few of everything")
    parser.add_argument("--only", help=f"some of these, with commas between: {', '.join(FIGURES)}")
    parser.add_argument("--data-dir", type=Path, help="where the stores go, which are removed again")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(FIGURES)
    if unknown := [name for name in names if name not in FIGURES]:
        parser.error(f"there is no figure {unknown[0]}; there are {', '.join(FIGURES)}")
    size = QUICK if options.quick else THOROUGH
    with tempfile.TemporaryDirectory(prefix="ropewalk-ha-", dir=options.data_dir) as root:
        for name in names:
            FIGURES[name](Path(root), size)
    return 0 if all(_verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
