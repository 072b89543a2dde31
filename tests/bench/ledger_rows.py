"""Rows of a DLedger group that are ratios of one run: `python -m tests.bench.ledger_rows`.

    sends   4 x 256 messages of 128 B: a group of three, the pair of class A3 (SYNC_MASTER, SYNC_FLUSH), and the group
            without batching and without pipelining (`tests.bench.ledger_switches`)
    pulls   4 pulls of 32 over one backlog: a broker with a plain log, the leader of a group and one of its followers

Each round measures all of a row in turn, so that a machine that gets slower gets slower for all. The figure is the
median; beside it stand the microseconds of processor time a message: the broker that answers, the others of its group
together, and the load. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ropewalk.client.core.addresses import Address, parse_address
from tests.bench.ledger_switches import NO_BATCHING, NO_PIPELINING, command
from tests.bench.peers.rocketmq.servers import ORIGINAL_SIZES
from tests.crash.ledger_group import LedgerGroup
from tests.ha.pairs import until_acknowledged
from tests.ha.process_group import Group
from tests.support.waiting import until
from tools.bench import prepare
from tools.bench.runner import run_load
from tools.bench.spec import Outcome, ProduceSpec, PullSpec

QUEUES = 4
SEGMENT = {"mappedFileSizeCommitLog": int(ORIGINAL_SIZES["mappedFileSizeCommitLog"])}
WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Running:
    """A broker under load, and the processes of its group."""

    broker: Address
    pid: int
    others: tuple[int, ...] = ()


Starter = Callable[[Path], AbstractContextManager[Running]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One load: messages a second, and microseconds of processor time a message."""

    rate: float
    broker_us: float
    others_us: float
    load_us: float


@contextmanager
def start_pair(folder: Path) -> Iterator[Running]:
    """Start a master and a slave that both flush before a message is acknowledged."""
    group = Group(folder)
    try:
        own = {"flushDiskType": "SYNC_FLUSH", **SEGMENT}
        master = group.start("a", brokerRole="SYNC_MASTER", **own)
        slave = group.start("b", brokerRole="SLAVE", brokerId=1, ackAfterFlush="true", **own)
        until_acknowledged(master.address)
        assert master.process is not None and slave.process is not None
        yield Running(parse_address(master.address), master.process.pid, (slave.process.pid,))
    finally:
        group.close()


@contextmanager
def start_plain(folder: Path) -> Iterator[Running]:
    """Start a broker alone, with a plain log."""
    group = Group(folder)
    try:
        master = group.start("a", **SEGMENT)
        until_acknowledged(master.address)
        assert master.process is not None
        yield Running(parse_address(master.address), master.process.pid)
    finally:
        group.close()


def start_ledger(habit: str = "", *, at_follower: bool = False) -> Starter:
    """Return the starter of a group of three, without a habit if one is named."""

    @contextmanager
    def start(folder: Path) -> Iterator[Running]:
        words = command(habit) if habit else None
        with LedgerGroup(folder, settings=dict(SEGMENT), command=words) as group:
            leader = group.leader()
            until_acknowledged(leader.address)
            others = tuple(each.process.pid for each in group.members if each is not leader)
            yield Running(parse_address(leader.address), leader.process.pid, others)

    return start


def spent_s(pid: int) -> float:
    """Return the processor time of a process, its threads included, its helpers (which give way) not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(running: Running, load: Callable[[], Outcome]) -> Measured:
    """Carry out a load; processor time is counted over its warm-up as well."""

    def all_spent() -> tuple[float, float]:
        return spent_s(running.pid), sum(spent_s(each) for each in running.others)

    before = all_spent()
    done = load()
    after = all_spent()
    if (why := done.why_void()) is not None:
        raise SystemExit(f"void: {why}")
    messages = done.messages + done.messages_in_warm_up
    broker_s, others_s = (late - early for early, late in zip(before, after, strict=True))
    load_us = done.load_cpu_s_per_million or 0.0
    return Measured(done.rate, broker_s / messages * 1e6, others_s / messages * 1e6, load_us)


def measure_sends(start: Starter, folder: Path, seconds: float, body_size: int) -> Measured:
    """Measure the sends of one server, from an empty store."""
    with start(folder) as running:
        prepare.create_topic(running.broker, "rows", QUEUES)
        spec = ProduceSpec(
            host=running.broker.host,
            port=running.broker.port,
            topic="rows",
            queues=QUEUES,
            in_flight=256,
            body_size=body_size,
            warm_up_s=WARM_UP_S,
            duration_s=seconds,
        )
        return measure(running, lambda: run_load(spec))


def measure_sends_of_all(folder: Path, rounds: int, seconds: float, body_size: int) -> None:
    """Print the rows of sends."""
    starters: Mapping[str, Starter] = {
        "A3 pair": start_pair,
        "group of three": start_ledger(),
        "without batching": start_ledger(NO_BATCHING),
        "without pipelining": start_ledger(NO_PIPELINING),
    }
    found: dict[str, list[Measured]] = {name: [] for name in starters}
    for number in range(rounds):
        for name, start in starters.items():
            own = folder / f"{number}-{name.replace(' ', '-')}"
            own.mkdir()
            found[name].append(measure_sends(start, own, seconds, body_size))
            show(f"round {number + 1}: {name}", found[name][-1:])
    show_all(f"4 x 256, {body_size} B", found, "A3 pair")


def measure_pulls_of_all(folder: Path, rounds: int, seconds: float, body_size: int, backlog: int) -> None:
    """Print the rows of pulls: all servers stay, and are pulled from in turn."""
    plain, ledger = folder / "plain", folder / "ledger"
    plain.mkdir()
    ledger.mkdir()
    with start_plain(plain) as lone, LedgerGroup(ledger, settings=dict(SEGMENT)) as group:
        leader = group.leader()
        until_acknowledged(leader.address)
        follower = next(each for each in group.members if each is not leader)
        for broker in (lone.broker, parse_address(leader.address)):
            prepare.lay_backlog(broker, "rows", QUEUES, backlog, body_size)
        until(lambda: len({each.shown for each in group.status()}) == 1, "the members do not agree")
        servers = {
            "plain log": lone,
            "leader of three": Running(parse_address(leader.address), leader.process.pid),
            "follower": Running(parse_address(follower.address), follower.process.pid),
        }
        found: dict[str, list[Measured]] = {name: [] for name in servers}
        for _ in range(rounds):
            for name, running in servers.items():
                begin, end = prepare.backlog(running.broker, "rows", QUEUES)
                spec = PullSpec(
                    host=running.broker.host,
                    port=running.broker.port,
                    topic="rows",
                    begin=begin,
                    end=end,
                    warm_up_s=WARM_UP_S,
                    duration_s=seconds,
                )
                found[name].append(measure(running, lambda spec=spec: run_load(spec)))  # type: ignore[misc]
    show_all(f"4 pulls of 32, {body_size} B", found, "plain log")


def show(name: str, found: Sequence[Measured], share: float | None = None) -> None:
    """Print the median of one server."""
    rate, broker, others, load = (
        statistics.median(getattr(each, field) for each in found)
        for field in ("rate", "broker_us", "others_us", "load_us")
    )
    ratio = "" if share is None else f"  {100 * share:5.1f} %"
    print(
        f"{name:32} {rate:10,.0f}/s  us a message: broker {broker:6.2f}  others {others:6.2f}  load {load:5.2f}{ratio}",
        flush=True,
    )


def show_all(title: str, found: Mapping[str, Sequence[Measured]], base: str) -> None:
    """Print all servers of a row, with their shares of the first one's rate."""
    print(f"\n{title}, median of {len(found[base])} rounds, share of {base}:")
    whole = statistics.median(each.rate for each in found[base])
    for name, each in found.items():
        show(name, each, statistics.median(one.rate for one in each) / whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", choices=("sends", "pulls"))
    parser.add_argument("--rounds", type=int, default=3, help="how often each server (default: 3)")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long a load (default: 8)")
    parser.add_argument("--body-size", type=int, default=128, help="bytes of a body (default: 128)")
    parser.add_argument("--backlog", type=int, default=200_000, help="messages to pull (default: 200,000)")
    parser.add_argument(
        "--data-dir", type=Path, help="where the stores go: on the disk that is to be measured"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ropewalk-rows-", dir=options.data_dir) as name:
        own = Path(name), options.rounds, options.seconds, options.body_size
        if options.rows == "sends":
            measure_sends_of_all(*own)
        else:
            measure_pulls_of_all(*own, options.backlog)


if __name__ == "__main__":
    main()
