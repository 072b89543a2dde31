"""A member far behind catches up while producers go on: `python -m tests.bench.ledger_catch_up --gb 10`.

    fill      one member is stopped; the two others store so many GB, and retention removes what the stopped one has
    before    4 connections with 64 messages each in flight at the leader: what two members store
    during    the member is started: it gets a snapshot of the tables, and the log from its first retained entry on

Printed are the MB that the member takes in a second, from its start until it lacks less than a hundredth; the MB that
the producers' log grows by in a second, before and during, and the share kept; and the processor time of each member.
Sizes in units of 10^6 bytes. The stores take three times `--gb`. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.addresses import parse_address
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from tests.bench.ledger_rows import spent_s
from tests.crash.ledger_group import LedgerGroup, Member
from tests.support.processes import checkout_command, checkout_environment
from tests.support.waiting import until
from tools.bench import prepare

TOPIC, QUEUES = "fill", 4
SEGMENT_SIZE = 256 << 20
PATIENCE_S = 600.0


def extent_of(member: Member) -> tuple[int, int]:
    """Return the first and the last log offset of a member; zeros while it does not answer."""
    try:
        with Connection(member.address, 5.0) as connection:
            answer = connection.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO), 5.0)
        table = fastjson.loads(answer.body)["table"]
        return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (RopewalkError, OSError):
        return 0, 0


def end_of(member: Member) -> tuple[float, int]:
    """Return the time and the last log offset of a member, once it answers."""
    found: list[tuple[float, int]] = []

    def answers() -> bool:
        found[:] = [(time.monotonic(), extent_of(member)[1])]
        return found[0][1] > 0

    until(answers, lambda: f"{member.id} does not answer", patience_s=PATIENCE_S, pause_s=0.05)
    return found[0]


def growth(early: tuple[float, int], late: tuple[float, int]) -> float:
    """Return the MB a second between two ends of a log."""
    return (late[1] - early[1]) / (late[0] - early[0]) / 1e6


def expire_first(member: Member) -> None:
    """Have retention remove what it may: all files but the newest, where they are no longer in use."""

    def is_removed() -> bool:
        with Connection(member.address, 5.0) as connection:
            connection.call(Command(RequestCode.DELETE_EXPIRED_COMMITLOG, {}))
        return extent_of(member)[0] > 0

    until(is_removed, lambda: f"{member.id} keeps its first file", patience_s=60.0, pause_s=0.2)


@contextmanager
def producing(leader: Member, body_size: int, rate: float | None) -> Iterator[None]:
    """Keep producers at work in a process of their own."""
    words = ["bench", "produce", f"--broker={leader.address}", "-c4", "-f64", f"--body-size={body_size}"]
    if rate is not None:
        words.append(f"--rate={rate}")
    process = subprocess.Popen(
        [*checkout_command(), *words, f"--duration={2 * PATIENCE_S}"],
        env=checkout_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"the producers ended early, with status {process.returncode}")
    finally:
        process.terminate()
        process.wait()


def leave_behind(group: LedgerGroup, leader: Member, late: Member, options: argparse.Namespace) -> int:
    """Stop a member, and store what it will lack; return how many bytes that are."""
    broker = parse_address(leader.address)
    prepare.create_topic(broker, TOPIC, QUEUES)
    until(lambda: len({each.end for each in group.status()}) == 1, "the members do not agree")
    late.kill()
    began, count = time.monotonic(), int(options.gb * 1e9 / (options.body_size + 270))
    if not options.keep_first:
        # What retention removes goes first, while it is little.
        prepare.fill(broker, TOPIC, QUEUES, SEGMENT_SIZE * 5 // 4 >> 16, 1 << 16)
        with_first = [each for each in group.members if each is not late]
        for member in with_first:
            expire_first(member)
    prepare.fill(broker, TOPIC, QUEUES, count, options.body_size)
    first, end = extent_of(leader)
    behind = end - (0 if options.keep_first else first)
    print(f"filled in {time.monotonic() - began:.0f} s; {late.id} lacks {behind / 1e6:,.0f} MB", flush=True)
    return behind


def catch_up(group: LedgerGroup, options: argparse.Namespace) -> None:
    """Leave a member behind, bring it back, and print what was seen."""
    leader = group.leader()
    late = next(each for each in group.members if each is not leader)
    behind = leave_behind(group, leader, late, options)
    with producing(leader, options.produced_size, options.rate):
        time.sleep(2.0)
        early = end_of(leader)
        time.sleep(options.seconds)
        start = end_of(leader)
        late.launch()
        late.wait()
        spent = {each.id: spent_s(each.process.pid) for each in group.members}
        while (gap := (now := end_of(leader))[1] - end_of(late)[1]) > behind / 100:
            if now[0] > start[0] + PATIENCE_S:
                raise SystemExit(f"{late.id} has not caught up: it lacks {gap} bytes")
            if options.verbose:
                print(f"{now[0] - start[0]:8.1f} s: {late.id} lacks {gap / 1e6:,.0f} MB", flush=True)
            time.sleep(0.5)
        spent = {each.id: spent_s(each.process.pid) - spent[each.id] for each in group.members}
    seconds, megabytes = now[0] - start[0], (behind + now[1] - start[1] - gap) / 1e6
    before, during = growth(early, start), growth(start, now)
    print(f"{late.id} took in {megabytes:,.0f} MB in {seconds:.1f} s: {megabytes / seconds:,.0f} MB/s")
    print(f"producers: {before:.1f} MB/s before, {during:.1f} during: {100 * during / before:.0f} % kept")
    for each in group.members:
        role = "led" if each is leader else "caught up" if each is late else "followed"
        print(
            f"{each.id} {role}: {spent[each.id]:.1f} s of processor, {1e3 * spent[each.id] / megabytes:.2f} ms a MB"
        )
    if not options.keep_first and not extent_of(late)[0]:
        print(f"{late.id} was NOT behind retention: its log still begins at 0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0, help="what the member lacks (default: 2)")
    parser.add_argument(
        "--body-size", type=int, default=4096, help="bytes of a body it lacks (default: 4096)"
    )
    parser.add_argument("--produced-size", type=int, default=1024, help="of the producers' (default: 1024)")
    parser.add_argument("--rate", type=float, help="of the producers; as many as they can (default)")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long before is measured (default: 8)")
    parser.add_argument(
        "--keep-first", action="store_true", help="without retention, and so without a snapshot"
    )
    parser.add_argument("--verbose", action="store_true", help="print how far it is, twice a second")
    parser.add_argument(
        "--data-dir", type=Path, help="where the stores go: on the disk that is to be measured"
    )
    options = parser.parse_args()
    settings: dict[str, str | int] = {"mappedFileSizeCommitLog": SEGMENT_SIZE}
    if not options.keep_first:
        settings |= {"fileReservedTime": 0, "deleteWhen": "00", "diskMaxUsedSpaceRatio": 95}
    with (
        tempfile.TemporaryDirectory(prefix="ropewalk-catch-up-", dir=options.data_dir) as folder,
        LedgerGroup(Path(folder), settings=settings) as group,
    ):
        catch_up(group, options)


if __name__ == "__main__":
    main()
