"""The figures of the store that need no other broker beside it, each beside what it should be.

    python -m tests.bench.store_figures [--scale 1.0] [--only recovery,topics,backlog,cold]

    recovery   a broker is killed with a gigabyte behind it: until its ready line, as the kill left it, and with bound,
               checkpoint and queue files gone, so that all of that gigabyte is read again
    topics     the same load over one topic of four queues and over ten thousand, each first in one of two rounds
    backlog    sends alone, and while four consumers drain a backlog that is in nobody's cache, first and last alone
    cold       the same drain without sends, beside a plain read of the same files before and after it, and beside the
               drain of a backlog that is in the page cache

Every broker is a process of its own with its defaults, on free ports; the load is the bench's raw sender. One table,
less than six minutes; `--scale 0.05` is for a first impression. What is written goes to a temporary directory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ropewalk.client.core.addresses import Address, parse_address
from tests.bench.flush_probe import flush_ms
from tests.support.processes import RunningBroker, checkout_command, checkout_environment, running_broker
from tools.bench import prepare, server
from tools.bench.frames import SendPattern, _frame
from tools.bench.link import LoadFailed
from tools.bench.load import SendLoad
from tools.bench.runner import run_load
from tools.bench.spec import Outcome, ProduceSpec, PullSpec

TAIL: Final = 1 << 30
TOPICS: Final = 10_000
QUEUES: Final = 4
_SETTLE_S: Final = 5.0
"""Until a virtual machine has given memory back that was freed just now: who comes next would have it for nothing."""
BACKLOG: Final = 4 << 30
COLD: Final = 3 << 29
COLD_WINDOW_S: Final = 2.0
"""So long a drain of `COLD` bytes is measured: less than it takes."""
FIXED_RATE: Final = 10_000.0
OVERHEAD: Final = 91 + 80
"""Bytes of a record besides its body, about."""


@dataclass(slots=True)
class Figure:
    """One line of the table. `target` is a bound from below, or from above where `most` is set."""

    name: str
    unit: str
    value: float
    target: float | None = None
    most: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.value <= self.target if self.most else self.value >= self.target
        return "met" if met else "MISSED"

    def __str__(self) -> str:
        bound = "" if self.target is None else f"{'<=' if self.most else '>='} {self.target:g}"
        return f"{self.name:66} {self.value:12,.2f} {self.unit:7} {bound:9} {self.verdict:7} {self.note}"


@dataclass(slots=True)
class Bench:
    """What all parts share."""

    root: Path
    scale: float
    figures: list[Figure] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """A directory of the bench's, gone when it is left: several gigabytes stand in some."""
        path = self.root / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)


@contextmanager
def broker_in(folder: Path, *settings: str) -> Iterator[tuple[RunningBroker, Address, float]]:
    """A broker on the store in `folder`; also where it takes messages, and how long it took to be ready."""
    pairs = (f"storePathRootDir={folder / 'store'}", f"mappedFileSizeCommitLog={1 << 30}", *settings)
    words = [word for pair in pairs for word in ("--set", pair)]
    began = time.monotonic()
    with running_broker(checkout_command(), *words, cwd=folder, environment=checkout_environment()) as broker:
        took = time.monotonic() - began
        yield broker, parse_address(str(broker.ready["broker"])), took


def _settle() -> None:
    """Until nothing is left to write of what came before, and the memory that it freed is nobody's gain."""
    os.sync()
    time.sleep(_SETTLE_S)


def kill(broker: RunningBroker) -> None:
    broker.process.kill()
    broker.process.wait()


def checked(outcome: Outcome) -> Outcome:
    """A load of which something was refused or lost has no rate."""
    if (why := outcome.why_void()) is not None:
        raise LoadFailed(why)
    return outcome


# -- recovery ----------------------------------------------------------------------------------------


def recovery(bench: Bench) -> None:
    for body_size, target in ((1024, 3.0), (128, 8.0)):
        with bench.folder(f"recovery-{body_size}") as folder:
            size = int(TAIL * bench.scale)
            with broker_in(folder) as (broker, address, _):
                count = size // (body_size + OVERHEAD)
                _, ends = prepare.ensure_backlog(address, "tail", QUEUES, count, body_size)
                kill(broker)
            size = sum(map(_written, _segments(folder)))
            left = _ready_again(folder, ends)
            store = folder / "store"
            (store / "ropewalk" / "bound").unlink()
            (store / "checkpoint").unlink(missing_ok=True)
            shutil.rmtree(store / "consumequeue")
            anew = _ready_again(folder, ends)
        what = f"ready after kill -9, {size / TAIL:.2f} GiB, {body_size} B bodies"
        bench.add(Figure(f"{what}: as the kill left it", "s", left, target, most=True))
        bench.add(Figure(f"{what}: all of it read again", "s", anew, target, most=True))


def _ready_again(folder: Path, ends: Sequence[int]) -> float:
    with broker_in(folder) as (broker, address, took):
        found = prepare.backlog(address, "tail", QUEUES)[1]
        assert found == tuple(ends), f"{found} messages in the queues, {ends} were acknowledged"
        kill(broker)
    return took


def _segments(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "commitlog").iterdir())


def _written(path: Path) -> int:
    """Up to where a segment holds anything."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for at in range(size - (1 << 20), -1, -(1 << 20)):
            if os.pread(file.fileno(), 1 << 20, at).rstrip(b"\0"):
                return at + (1 << 20)
    return 0


# -- ten thousand topics -----------------------------------------------------------------------------


class ManyTopics(SendPattern):
    """The frames of a load over many topics, all queues of them in an order that has no order."""

    def __init__(self, spec: ProduceSpec, topics: int) -> None:
        super().__init__(spec, spec.in_flight)
        places = [(topic, queue) for topic in range(topics) for queue in range(QUEUES)]
        random.Random(4).shuffle(places)
        spelled = {topic: msgspec.structs.replace(spec, topic=topic_name(topic)) for topic in range(topics)}
        self._frames = [_frame(spelled[topic], queue) for topic, queue in places]
        self.queues = len(self._frames)
        self.stamp(time.time_ns() // 1_000_000)


def topic_name(number: int) -> str:
    return f"bench-topic-{number:05d}"


def load_of_topics(text: str) -> None:
    """The load process: one spec and the number of topics in, one outcome out."""
    spec_text, topics = json.loads(text)
    spec = msgspec.json.decode(spec_text, type=ProduceSpec)
    load = SendLoad(spec)
    load._pattern = ManyTopics(spec, topics)
    load._stamp_due = 1 << 62  # a stamp goes through all frames, and there are twenty megabytes of them
    load._spec = msgspec.structs.replace(spec, queues=load._pattern.queues)
    share = load._pattern.queues // spec.connections
    load._queue = [index * share for index in range(spec.connections)]
    sys.stdout.buffer.write(msgspec.json.encode(load.run()))


def send_to(address: Address, pid: int, topics: int, warm_up_s: float, duration_s: float) -> Outcome:
    spec = ProduceSpec(
        host=address.host, port=address.port, topic="", connections=4, in_flight=32, body_size=128,
        warm_up_s=warm_up_s, duration_s=duration_s, server_pid=pid,
    )  # fmt: skip
    text = json.dumps([msgspec.json.encode(spec).decode(), topics])
    command = [sys.executable, "-m", "tests.bench.store_figures", "--load", text]
    done = subprocess.run(command, env=checkout_environment(), stdout=subprocess.PIPE, check=True)
    return checked(msgspec.json.decode(done.stdout, type=Outcome))


def topics(bench: Bench) -> None:
    count = max(10, int(TOPICS * bench.scale))
    rates: dict[int, list[float]] = {1: [], count: []}
    starts: list[float] = []
    memory: list[float] = []
    files: list[int] = []
    with bench.folder("topics") as folder:
        for number in rates:
            _declare(folder / str(number) / "store", number)
        for numbers in (list(rates), list(reversed(rates))):
            for number in numbers:
                found = rates[number]
                _settle()
                with broker_in(folder / str(number), "autoCreateTopicEnable=false") as (
                    broker,
                    address,
                    took,
                ):
                    pid = broker.process.pid
                    time.sleep(1.0)
                    outcome = send_to(address, pid, number, 4.0, 6.0)
                    found.append(outcome.rate)
                    bench.say(f"{number} topics: ready after {took:.2f} s, {outcome.rate:,.0f} msg/s")
                    if number == count:
                        starts.append(took)
                        memory.append(sum(server.memory(pid) or ()) / 1e6)
                        files.append(len(os.listdir(f"/proc/{pid}/fd")))
    one, many = (statistics.mean(found) for found in rates.values())
    note = f"{max(os.getloadavg()):.1f} load"
    bench.add(Figure("4 x 32, 128 B, one topic of 4 queues", "msg/s", one, note=note))
    bench.add(Figure(f"4 x 32, 128 B, {count} topics of 4 queues", "msg/s", many))
    bench.add(Figure(f"{count} topics next to one", "x", many / one, 0.8))
    bench.add(Figure(f"ready with {count} topics of 4 queues, no message yet", "s", starts[0]))
    bench.add(Figure(f"ready with {count} topics of 4 queues, all with messages", "s", starts[-1]))
    bench.add(Figure("memory of that broker (RssAnon + RssFile)", "MB", memory[-1]))
    bench.add(Figure("its open files", "", files[-1], 2000, most=True))


def _declare(store: Path, topics: int) -> None:
    """Let the broker find these topics in its configuration: to make them one by one takes longer than the bench."""
    table = {
        topic_name(number): {
            "topicName": topic_name(number), "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": {},
        }
        for number in range(topics)
    }  # fmt: skip
    version = {"counter": 1, "stateVersion": 0, "timestamp": time.time_ns() // 1_000_000}
    (store / "config").mkdir(parents=True)
    (store / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": version, "topicConfigTable": table})
    )


# -- a cold backlog ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sending:
    """One way to send while others read."""

    name: str
    topic: str
    """The backlog that is drained meanwhile."""
    rate: float | None


SENDINGS: Final = (
    Sending("10,000 msg/s of 1 KiB", "cold-a", FIXED_RATE),
    Sending("4 x 32 of 1 KiB, as fast as it goes", "cold-b", None),
)


def backlog(bench: Bench) -> None:
    each = int(BACKLOG * bench.scale) // len(SENDINGS)
    with bench.folder("backlog") as folder:
        with broker_in(folder) as (_, address, _):
            for sending in SENDINGS:
                prepare.ensure_backlog(address, sending.topic, QUEUES, each // (1024 + OVERHEAD), 1024)
        for path in _segments(folder):
            _forget_cached(path)
        with broker_in(folder) as (broker, address, _):
            prepare.create_topic(address, "live", QUEUES)
            for sending in SENDINGS:
                _drain_beside(bench, address, broker.process.pid, sending, each)


def _forget_cached(path: Path) -> None:
    """Have the file's pages leave the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _drain_beside(bench: Bench, address: Address, pid: int, sending: Sending, size: int) -> None:
    """Alone, beside, beside, alone: who comes first after gigabytes left the page cache has that memory for nothing."""
    window_s = 6.0 if bench.scale >= 1 else 2.0
    begin, end = prepare.backlog(address, sending.topic, QUEUES)
    middle = tuple((first + last) // 2 for first, last in zip(begin, end, strict=True))
    sends = _sends(address, pid, sending, window_s)
    alone: list[Outcome] = []
    beside: list[Outcome] = []
    drained: list[Outcome] = []
    with ThreadPoolExecutor(1) as pool:
        for part in (None, (begin, middle), (middle, end), None):
            _settle()
            if part is None:
                alone.append(_say_rate(bench, "alone", checked(run_load(sends))))
                continue
            pull = PullSpec(
                host=address.host, port=address.port, topic=sending.topic, begin=part[0], end=part[1],
                connections=QUEUES, warm_up_s=0.0, duration_s=window_s + 2.5, server_pid=pid,
            )  # fmt: skip
            drain = pool.submit(run_load, pull)
            time.sleep(0.5)
            beside.append(_say_rate(bench, "beside the drain", checked(run_load(sends))))
            drained.append(checked(drain.result()))
    note = f"drained at {statistics.mean(outcome.megabytes_per_s for outcome in drained):.0f} MB/s"
    if max(outcome.body_bytes for outcome in drained) > size // 2:
        note += "; the backlog was read to its end before the sends ended"
    rates = [statistics.mean(outcome.rate for outcome in outcomes) for outcomes in (alone, beside)]
    slower = max(map(_p99_ms, beside)) / min(map(_p99_ms, alone))
    name, unit = sending.name, "msg/s"
    bench.add(Figure(f"{name}: alone", unit, rates[0], note=_p99s(alone)))
    bench.add(Figure(f"{name}: beside the drain", unit, rates[1], note=f"{_p99s(beside)}; {note}"))
    bench.add(Figure(f"{name}: rate kept", "x", rates[1] / rates[0], 0.8))
    bench.add(Figure(f"{name}: worst p99 beside / best alone", "x", slower, 3.0, most=True))


def _say_rate(bench: Bench, name: str, outcome: Outcome) -> Outcome:
    bench.say(f"{name}: {outcome.rate:,.0f} msg/s, {_p99s([outcome])}")
    return outcome


def _p99_ms(outcome: Outcome) -> float:
    assert outcome.latency is not None
    return outcome.latency.p99 / 1000


def _p99s(outcomes: Sequence[Outcome]) -> str:
    return f"p99 {' and '.join(f'{_p99_ms(outcome):.2f}' for outcome in outcomes)} ms"


def _sends(address: Address, pid: int, sending: Sending, window_s: float) -> ProduceSpec:
    return ProduceSpec(
        host=address.host, port=address.port, topic="live", queues=QUEUES, connections=4, in_flight=32,
        body_size=1024, warm_up_s=1.0, duration_s=window_s, rate=sending.rate, server_pid=pid,
    )  # fmt: skip


# -- the disk's own speed ------------------------------------------------------------------------------


def cold(bench: Bench) -> None:
    size = int(COLD * bench.scale)
    for body_size in (1024, 128):
        with bench.folder(f"cold-{body_size}") as folder:
            with broker_in(folder) as (_, address, _):
                count = size // (body_size + OVERHEAD)
                prepare.ensure_backlog(address, "cold", QUEUES, count, body_size)
            segments = _segments(folder)
            disk = [_read_plainly(segments, size)]
            drains: dict[str, list[Outcome]] = {"cold": [], "cached": []}
            for _ in range(2):
                # A broker each: pages that one has mapped stay in the cache until it ends.
                with broker_in(folder) as (broker, address, _):
                    for state, done in drains.items():
                        if state == "cold":
                            _forget_all(segments, size)
                        else:
                            _read_whole(segments, size)
                        done.append(_drain(bench, address, broker.process.pid, state, size))
            disk.append(_read_plainly(segments, size))
        rates = {
            state: statistics.mean(one.megabytes_per_s for one in done) for state, done in drains.items()
        }
        what = f"{body_size} B in {QUEUES} queues"
        note = f"{disk[0]:,.0f} before the drains, {disk[1]:,.0f} after them"
        bench.add(
            Figure(
                f"{what}: the files read one after the other, cold", "MB/s", statistics.mean(disk), note=note
            )
        )
        bench.add(
            Figure(f"{what}: drained by 4 x 32, cold", "MB/s", rates["cold"], note=_costs(drains["cold"]))
        )
        bench.add(
            Figure(
                f"{what}: drained by 4 x 32, cached", "MB/s", rates["cached"], note=_costs(drains["cached"])
            )
        )
        bench.add(Figure(f"{what}: cold next to the disk", "x", rates["cold"] / statistics.mean(disk), 0.8))
        bench.add(Figure(f"{what}: cold next to cached", "x", rates["cold"] / rates["cached"]))


def _read_whole(segments: Sequence[Path], size: int) -> float:
    """Read so many bytes of the log with large reads; return how long it took, in seconds."""
    buffer, left = bytearray(1 << 20), size
    began = time.monotonic()
    for path in segments:
        with path.open("rb", buffering=0) as file:
            while left > 0 and (got := file.readinto(buffer)):
                left -= got
    return time.monotonic() - began


def _read_plainly(segments: Sequence[Path], size: int) -> float:
    """Return the MB/s at which cold files are read one after the other."""
    _forget_all(segments, size)
    return size / _read_whole(segments, size) / 1e6


def _forget_all(segments: Sequence[Path], size: int) -> None:
    """Have the log leave the page cache. Raises `LoadFailed` if much of it stays: then nothing would be cold."""
    for path in segments:
        _forget_cached(path)
    kept = looked = 0
    for path in segments:
        with path.open("rb", buffering=0) as file:
            for at in range(0, min(path.stat().st_size, size), 16 << 20):
                looked += 1
                try:
                    kept += os.preadv(file.fileno(), [bytearray(1)], at, os.RWF_NOWAIT) > 0
                except BlockingIOError:
                    continue
        size -= path.stat().st_size
    if kept > 0.1 * looked:
        raise LoadFailed(f"{kept} of {looked} places of the log are still in the page cache")


def _drain(bench: Bench, address: Address, pid: int, state: str, size: int) -> Outcome:
    """Drain less than all of the backlog once, from its begin."""
    begin, end = prepare.backlog(address, "cold", QUEUES)
    pull = PullSpec(
        host=address.host, port=address.port, topic="cold", begin=begin, end=end, connections=QUEUES,
        warm_up_s=0.0, duration_s=max(0.2, COLD_WINDOW_S * bench.scale), server_pid=pid,
    )  # fmt: skip
    outcome = checked(run_load(pull))
    bench.say(f"{state}: {outcome.megabytes_per_s:,.0f} MB/s of {size / 1e6:,.0f} MB")
    if outcome.body_bytes > size:
        raise LoadFailed("the backlog was read to its end, and then again: it is too small for this machine")
    return outcome


def _costs(outcomes: Sequence[Outcome]) -> str:
    """Where the time went: the processors' shares that broker and load had."""
    seconds = sum(one.seconds for one in outcomes)
    broker = sum(one.server_cpu_s or 0.0 for one in outcomes) / seconds
    return f"processors: broker {broker:.2f}, load {sum(one.load_cpu_s for one in outcomes) / seconds:.2f}"


# -- the table ---------------------------------------------------------------------------------------


PARTS: Final[dict[str, Callable[[Bench], None]]] = {
    "recovery": recovery,
    "topics": topics,
    "backlog": backlog,
    "cold": cold,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the size that the targets are for")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--folder", type=Path, help="where the stores are to be made, and removed")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load is not None:
        load_of_topics(given.load)
        return
    wanted = given.only.split(",")
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        bench = Bench(Path(temporary), given.scale)
        before = flush_ms(bench.root)
        for name in wanted:
            PARTS[name](bench)
        after = flush_ms(bench.root)
    print(*bench.figures, sep="\n")
    met = sum(figure.verdict == "met" for figure in bench.figures)
    of = sum(figure.target is not None for figure in bench.figures)
    print(
        f"{met} of {of} targets met, {time.monotonic() - began:.0f} s in all, {os.cpu_count()} cores; "
        f"fdatasync of 4 KiB before/after: {before:.2f}/{after:.2f} ms"
    )


if __name__ == "__main__":
    main()
