"""The figures of the data pipeline on two cores, each beside what it should be.

    python -m tests.bench.spark_store [--megabytes 1024] [--rounds 4] [--only decoder,read]

One run, one session, one table. Session start is not counted; the first rounds of each figure warm up the
JVM's compiler and are not counted either, and of the rest the best is shown. Beside the clock stands what a row cost in
processor time, of the JVM and of the Python processes: on a machine that has other work, the clock says little and
that says much. Everything is written to a temporary directory and removed. About five minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ropewalk.client.core.messages import Message
from ropewalk.spark.jobs.audit.job import AuditOptions, audit
from ropewalk.spark.jobs.common.tasks import SparkTasks
from ropewalk.spark.jobs.export.job import ExportOptions, export
from ropewalk.spark.jobs.export.sources import StoreSource, selection_for
from ropewalk.spark.jobs.rebuild.job import RebuildOptions, rebuild
from ropewalk.spark.rows.columns import Plan
from ropewalk.spark.rows.decode import SegmentDecoder
from ropewalk.spark.rows.schema import Selection, chosen_columns
from ropewalk.spark.spark_session import local_session
from ropewalk.testing import BrokerProcess, RopewalkBroker
from tests.bench.spark_data import BROKER, make_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NARROW: Final = ("topic", "queueId", "queueOffset", "storeTimestamp")
SLICE_SIZE: Final = 24 << 20
LIVE_MESSAGES: Final = 400_000
LIVE_QUEUES: Final = 8
BATCHES: Final = 25
WARM_UP: Final = 3
"""Rounds before anything is counted. After one, the JVM still compiles for a third of its processor time, after four
for a sixth."""
GIGABYTE: Final = 1 << 30


@dataclass(slots=True)
class Figure:
    """One line of the table. `target` is a bound from below, or from above where `most` is set."""

    name: str
    unit: str
    target: float | None = None
    most: bool = False
    value: float = 0.0
    jvm_us: float = 0.0
    """Processor time of a row."""
    python_us: float = 0.0

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.value <= self.target if self.most else self.value >= self.target
        return "met" if met else "MISSED"


@dataclass(slots=True)
class Bench:
    """What all figures share, and the table as it grows."""

    root: Path
    rounds: int
    records: int = 0
    figures: list[Figure] = field(default_factory=list)
    made: int = 0

    @property
    def store(self) -> Path:
        return self.root / "store"

    def new_folder(self) -> str:
        self.made += 1
        return str(self.root / f"out-{self.made}")

    def add(self, figure: Figure) -> Figure:
        self.figures.append(figure)
        bound = "" if figure.target is None else f"{'<=' if figure.most else '>='} {figure.target:g}"
        cost = ""
        if figure.jvm_us or figure.python_us:
            cost = f"JVM {figure.jvm_us:5.2f}  Python {figure.python_us:5.2f}"
        print(
            f"{figure.name:46} {figure.value:9.2f} {figure.unit:14} {bound:9} {figure.verdict:7} {cost:27} "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        return figure

    def best(self, work: Callable[[], object], rounds: int | None = None) -> tuple[float, float, float]:
        """Seconds by the clock, and of the JVM's and the Python workers' processors, of the fastest round."""
        found: list[tuple[float, float, float]] = []
        for number in range(WARM_UP + (rounds or self.rounds)):
            before = processor_seconds(os.getpid())
            started = time.perf_counter()
            work()
            elapsed = time.perf_counter() - started
            after = processor_seconds(os.getpid())
            if number >= WARM_UP:
                found.append((elapsed, after[0] - before[0], after[1] - before[1]))
        return min(found)

    def rate(
        self,
        name: str,
        rows: int,
        work: Callable[[], object],
        target: float | None = None,
        rounds: int | None = None,
    ) -> Figure:
        """Rows per second of some work."""
        elapsed, jvm, python = self.best(work, rounds)
        return self.add(
            Figure(
                name, "k rows/s", target, False, rows / elapsed / 1e3, jvm / rows * 1e6, python / rows * 1e6
            )
        )


def processor_seconds(root_pid: int) -> tuple[float, float]:
    """(JVM, Python) time used so far by a process and all that it started, also by what has ended since."""
    tick = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            command, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            parents[int(name)] = int(fields[1])
            used[int(name)] = (command, sum(int(one) for one in fields[11:15]) / tick)
    jvm = python = 0.0
    for pid, (command, seconds) in used.items():
        ancestor = pid
        while ancestor != root_pid and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor == root_pid:
            if command.startswith("python"):
                python += seconds
            else:
                jvm += seconds
    return jvm, python


def decoder_rate(segment: bytes, selection: Selection, *, check_crc: bool = False) -> float:
    """Records per second of processor time: the best of many short runs, which disturbances spoil least."""
    best = 0.0
    for _ in range(20):
        started = time.thread_time()
        rows = 0
        plan = Plan(selection, broker_name=BROKER, check_crc=check_crc)
        for piece in SegmentDecoder(segment, 0, 0, None, plan).pieces():
            assert piece.batch is not None
            rows += piece.batch.num_rows
        best = max(best, rows / (time.thread_time() - started))
    return best


def decoder(bench: Bench, _spark: SparkSession) -> None:
    segment = next(iter(sorted((bench.store / "commitlog").iterdir()))).read_bytes()[:SLICE_SIZE]
    segment = segment[: segment.rfind(b"\xda\xa3\x20\xa7") - 4]
    for name, selection, check_crc, target in (
        ("all columns", chosen_columns("full"), False, 1.0),
        ("default columns", chosen_columns(), False, None),
        ("default columns and checksums", chosen_columns(), True, None),
        ("default columns, raw properties", chosen_columns(raw_properties=True), False, None),
        ("four narrow columns", chosen_columns(columns=NARROW), False, None),
    ):
        rate = decoder_rate(segment, selection, check_crc=check_crc)
        bench.add(Figure(f"decoder, one core: {name}", "M records/s", target, False, rate / 1e6))


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def read(bench: Bench, spark: SparkSession) -> None:
    def frame(**options: str) -> DataFrame:
        return spark.read.format("ropewalk").options(mode="store", **options).load(str(bench.store))

    def rows_of(options: dict[str, str]) -> None:
        to_nowhere(frame(**options))

    for name, options in (
        ("all columns", {"preset": "full"}),
        ("raw properties", {"propertiesFormat": "raw"}),
        ("four narrow columns", {"columns": ",".join(NARROW)}),
    ):
        bench.rate(f"store: {name}", bench.records, partial(rows_of, options))
    ours = bench.rate("store: default columns", bench.records, lambda: to_nowhere(frame()), 600)
    lake = bench.new_folder()
    frame().write.parquet(lake)
    parquet = bench.rate(
        "Parquet: the same rows", bench.records, lambda: to_nowhere(spark.read.parquet(lake))
    )
    shutil.rmtree(lake)
    bench.add(Figure("store next to Parquet", "times as fast", 0.6, False, ours.value / parquet.value))


def live(bench: Bench, spark: SparkSession) -> None:
    with BrokerProcess() as process:
        broker = RopewalkBroker(process, "")
        topic = broker.topic(queues=LIVE_QUEUES)
        fill_topic(broker, topic, LIVE_MESSAGES)
        reader = spark.read.format("ropewalk").options(nameServer=broker.namesrv, topic=topic)
        bench.rate("live topic: default columns", LIVE_MESSAGES, lambda: to_nowhere(reader.load()), 200)
        broker.close()


def fill_topic(broker: RopewalkBroker, topic: str, count: int) -> None:
    body = os.urandom(507).hex().encode()
    for number, queue in enumerate(broker.client.read_queues(topic)):
        share = range(number, count, LIVE_QUEUES)
        for first in range(0, len(share), 500):
            batch = [
                Message(b"%010d" % n + body, keys=f"order-{n}", tags=f"tag{n % 7}")
                for n in share[first : first + 500]
            ]
            broker.client.send_batch(topic, batch, queue)


def export_rows(bench: Bench, spark: SparkSession) -> None:
    source = StoreSource(str(bench.store), (), selection_for((), "default"), BROKER, range_bytes=128 << 20)

    def ours() -> None:
        lake = bench.new_folder()
        done = export(SparkTasks(spark), source, ExportOptions(lake))
        assert sum(file.rows for file in done.files) == bench.records
        shutil.rmtree(lake)

    def sparks() -> None:
        lake = bench.new_folder()
        spark.read.format("ropewalk").option("mode", "store").load(str(bench.store)).write.parquet(lake)
        shutil.rmtree(lake)

    direct = bench.rate("export to Parquet", bench.records, ours, 400)
    indirect = bench.rate("Spark's own Parquet writer", bench.records, sparks, rounds=2)
    bench.add(
        Figure("export next to Spark's writer", "times as fast", 2.0, False, direct.value / indirect.value)
    )


def rebuild_queues(bench: Bench, spark: SparkSession) -> None:
    def work() -> None:
        out = bench.new_folder()
        done = rebuild(SparkTasks(spark), RebuildOptions(str(bench.store), out, ("consumequeue",)))
        assert sum(queue.following for queue in done.queues) == bench.records
        shutil.rmtree(out)

    seconds(bench, "rebuild of all queues, 1 GB of log", work, 4.0)


def audit_replicas(bench: Bench, spark: SparkSession) -> None:
    replica = bench.root / "replica"
    shutil.copytree(bench.store, replica)

    def work() -> None:
        done = audit(SparkTasks(spark), AuditOptions((str(bench.store), str(replica))))
        assert not done.findings
        assert done.records == (bench.records, bench.records)

    seconds(bench, "audit of two replicas, 1 GB each", work, 3.0)
    shutil.rmtree(replica)


def seconds(bench: Bench, name: str, work: Callable[[], object], target: float) -> None:
    """How long a job takes for a gigabyte, whatever the size of the store here."""
    elapsed, jvm, python = bench.best(work)
    size = sum(path.stat().st_size for path in (bench.store / "commitlog").iterdir())
    rows = bench.records
    bench.add(
        Figure(name, "s", target, True, elapsed * GIGABYTE / size, jvm / rows * 1e6, python / rows * 1e6)
    )


def batch_floor(bench: Bench, spark: SparkSession) -> None:
    """From a message that can be read to the commit of the batch that read it, into a sink that does nothing."""
    checkpoint = Path(bench.new_folder())
    with BrokerProcess() as process:
        broker = RopewalkBroker(process, "")
        topic = broker.topic(queues=2)
        reader = spark.readStream.format("ropewalk").options(nameServer=broker.namesrv, topic=topic)
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.start()
        try:
            times = []
            for number in range(BATCHES + 5):
                wait_for(checkpoint / "commits" / str(number), query)
                broker.send(topic, b"x" * 100)
                started = time.perf_counter()
                wait_for(checkpoint / "commits" / str(number + 1), query)
                times.append(time.perf_counter() - started)
        finally:
            query.stop()
            broker.close()
    bench.add(Figure("micro-batch, noop sink, median", "s", 0.35, True, statistics.median(times[5:])))


def wait_for(path: Path, query: StreamingQuery) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert query.isActive and time.monotonic() < deadline, query.exception()
        time.sleep(0.001)


def make_everything(bench: Bench, spark: SparkSession, size: int, body_size: int) -> None:
    """A log, and its queues as a rebuild makes them."""
    bench.records = make_store(bench.store, size, body_size)
    out = Path(bench.new_folder())
    rebuild(SparkTasks(spark), RebuildOptions(str(bench.store), str(out), ("consumequeue",)))
    (out / "consumequeue").rename(bench.store / "consumequeue")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's"
    )
    given = parser.parse_args()
    wanted = given.only.split(",")
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary), given.rounds)
        settings = dict(word.split("=", 1) for word in given.conf)
        spark = local_session(2, heap=given.heap, **{"spark.log.level": "ERROR", **settings})
        try:
            make_everything(bench, spark, given.megabytes << 20, given.body)
            print(
                f"{bench.records} records of {given.body} bytes, {given.megabytes} MiB of log, local[2]; "
                f"JVM and Python: microseconds of processor time for a row"
            )
            for name in wanted:
                PARTS[name](bench, spark)
        finally:
            spark.stop()
    met = sum(figure.verdict == "met" for figure in bench.figures)
    of = sum(figure.target is not None for figure in bench.figures)
    print(f"{met} of {of} targets met, {time.monotonic() - started:.0f} s in all")


PARTS: Final[dict[str, Callable[[Bench, SparkSession], None]]] = {
    "decoder": decoder,
    "read": read,
    "live": live,
    "export": export_rows,
    "rebuild": rebuild_queues,
    "audit": audit_replicas,
    "batch": batch_floor,
}


if __name__ == "__main__":
    main()
