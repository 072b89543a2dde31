"""Figures of a region's snapshots, with as much state as it may have: `python -m tests.bench.kv_snapshot`.

    turn       the longest turn of the loop in which a snapshot is walked, beside those without one: 64 writes each,
               appended, flushed, applied
    restart    a start from the newest snapshot and the longest log that may stand behind it, 100,000 entries
    memory     bytes that `kvMemoryMax` counts, beside those that the process has more than before

Goals: 20 ms of the loop's processor time in a turn, 5 s of the process's for a start. The exit status says whether both
were met. Times by the clock are told, too: they hold the waits for the interpreter, and whatever else the machine does.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path

from broker.kv.snapshots import Limits, Snapshots
from ha.kv.machine import ITEM_BYTES, KvMachine
from ha.kv.region import Region
from ropewalk.format.dledger.configuration import Configuration, encode_configuration
from ropewalk.format.kv.commands import Command, OpenSession, Write, decode_command, encode_command
from ropewalk.format.kv.items import Operation, Put
from store.io.disk import Disk
from store.io.workers import Completions, Worker
from store.region_snapshots import RegionSnapshots
from store.region_store import RegionStore

TURN_MS_MAX = 20
RESTART_S_MAX = 5.0
IN_FLIGHT = 64
KEY_SIZE, VALUE_SIZE = 20, 100


class RegionLoop:
    """A region that leads by itself: its loop, turn by turn."""

    def __init__(self, root: Path, memory_max: int) -> None:
        disk = Disk()
        self.machine = KvMachine(Region(0), memory_max)
        self.completions = Completions(lambda: None)
        self.store = RegionStore(root, disk, self.completions, self._apply, lambda body: body)
        worker = Worker("snapshots", self.completions)
        self.snapshots = Snapshots(self.store, RegionSnapshots(root, disk), worker, Limits())
        self.machine, self.point = self.snapshots.load(self.machine)
        self.findings = self.store.open(self.point)
        self._seq = self._session = 0
        self._flushed = False

    def _apply(self, index: int, term: int, data: bytes) -> None:
        self.machine.apply(index, decode_command(data))

    def lead(self) -> None:
        """Open a term, and a session."""
        entries = self.store.entries
        entries.save(1, "n0", lambda: None)
        self.store.lead(1, entries.end[0] + 1)
        while not self.store.append_term_record(encode_configuration(Configuration(1, "n0", ("n0",)))):
            self._settle()
        self._session = self.append(OpenSession(0))
        self.commit()

    def append(self, command: Command) -> int:
        data = encode_command(command)
        while (index := self.store.append(data)) is None:
            self._settle()
        return index

    def write(self, *operations: Operation) -> None:
        self._seq += 1
        self.append(Write(0, self._session, self._seq, self._seq, 1, operations))

    def _settle(self) -> None:
        time.sleep(0.001)
        self.completions.run()
        self.store.tick(time.monotonic_ns() // 1_000_000)

    def commit(self) -> None:
        """Flush and apply the appended entries."""
        self._flushed = False
        self.store.take_appended(1 << 20)
        self.store.entries.flush(self._have_flushed)
        while not self._flushed:
            time.sleep(0.0001)
            self.completions.run()
        end = self.store.entries.end
        self.store.entries.committed(*end)
        while self.store.show_through(*end)[0] < end[0]:
            pass

    def _have_flushed(self, point: tuple[int, int, int], cuts: int) -> None:
        self._flushed = True

    def turn(self, number: int) -> tuple[float, float, bool]:
        """Make a turn of writes; return ms of processor and clock of its end, and whether a snapshot was under way."""
        is_walking = self.snapshots.is_under_way
        for each in range(IN_FLIGHT):
            self.write(Put(_key(number * IN_FLIGHT + each), b"y" * VALUE_SIZE))
        self.commit()
        began, began_clock = time.thread_time(), time.perf_counter()
        self.completions.run()
        self.snapshots.turn(self.machine, time.monotonic_ns() // 1_000_000)
        self.snapshots.retire()
        self.store.tick(time.monotonic_ns() // 1_000_000)
        spent = (time.thread_time() - began) * 1000, (time.perf_counter() - began_clock) * 1000
        return (*spent, is_walking or self.snapshots.is_under_way)

    def close(self) -> None:
        self.snapshots.stop()
        self.store.close()


def _key(number: int) -> bytes:
    # Spread over the whole range: changes in front of the walk are those that cost it something.
    return b"%0*d" % (KEY_SIZE, number * 2_654_435_761 % (1 << 40))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure(root: Path, state_bytes: int, entries: int) -> bool:
    """Measure all, print it, and return whether the goals were met."""
    keys = state_bytes // (ITEM_BYTES + KEY_SIZE + VALUE_SIZE)
    gc.collect()
    before = _resident()
    loop = RegionLoop(root, 2 * state_bytes)
    loop.lead()
    for first in range(0, keys, 500):
        loop.write(*(Put(_key(each), b"x" * VALUE_SIZE) for each in range(first, min(first + 500, keys))))
        loop.commit()
    gc.collect()
    used, resident = loop.machine.used_bytes, _resident() - before
    mapped = sum(segment.size for segment in loop.store.log.segments)
    print(
        f"memory   {keys} keys, counted {used >> 20} MiB, resident {resident >> 20} MiB more than before, "
        f"of which {mapped >> 20} MiB are files of the log"
    )
    turns: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(entries // IN_FLIGHT):
        spent, clock, walked = loop.turn(number)
        turns[walked].append((spent, clock))
    while loop.snapshots.is_under_way or not loop.snapshots.points:
        loop.turn(0)
    longest = 0.0
    for walked, found in turns.items():
        if found:
            most = max(spent for spent, _clock in found)
            longest = max(longest, most) if walked else longest
            print(
                f"turn     {len(found)} {'with' if walked else 'without'} a snapshot: longest {most:.2f} ms of the "
                f"processor, {max(clock for _spent, clock in found):.2f} ms by the clock"
            )
    sizes = [loop.snapshots.size(point[0]) >> 20 for point in loop.snapshots.points]
    print(
        f"files    snapshots of {sizes} MiB; log {(loop.store.log.end_offset - loop.store.log.min_offset) >> 20} MiB"
    )
    while loop.store.applied[0] - loop.snapshots.points[-1][0] < Limits().entries - 1:
        loop.write(Put(_key(0), b"z" * VALUE_SIZE))
        if not loop.store.entries.end[0] % IN_FLIGHT:
            loop.commit()
    loop.commit()
    digest = loop.machine.digest()
    loop.close()
    del loop
    gc.collect()
    began, began_clock = time.process_time(), time.perf_counter()
    loop = RegionLoop(root, 2 * state_bytes)
    restart = time.process_time() - began
    clock = time.perf_counter() - began_clock
    applied = loop.store.applied[0] - loop.point[0]
    print(
        f"restart  {restart:.2f} s of the processor, {clock:.2f} s by the clock; {applied} entries behind the snapshot"
    )
    assert loop.machine.digest() == digest, "the start has another state"
    loop.close()
    return longest <= TURN_MS_MAX and restart <= RESTART_S_MAX


def main() -> int:
    """Measure in a folder that is removed behind it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-mib", type=int, default=256)
    parser.add_argument("--entries", type=int, default=120_000, help="how many are written beside snapshots")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        return 0 if measure(Path(root), options.state_mib << 20, options.entries) else 1


if __name__ == "__main__":
    sys.exit(main())
