"""Lives of exactly-once pipelines: random plans, cuts and kills, then another cut; the rows must be the input's.

    python -m tests.spark.sink.lives --way ropewalk|rocketmq [--lives 40] [--seed 1] [--rows 400] [--without-spark]

One broker (of Ropewalk, or Apache RocketMQ 5.5.0) for all lives of a call. A life is a source topic, a target topic and
a sink. Its pipeline is a stream, a stream with `foreachBatch`, or a batch write, of a topic or of files; some rows are
equal. Four lives share their drivers, and run beside each other in them.

Processes are killed with SIGKILL when a drawn number of rows of one of them is stored: the driver with all that it
started, an executor or a Python worker, or the broker. After the driver was killed, the next one runs the same rows
with other cuts: cores, local or in two executors, partitions, kind of repartition, adaptive execution. What is drawn
follows from the seed of the four, which is printed.

With `--without-spark`, drivers and tasks are processes of Python (`plain_driver`), which start in no time.

A run that ends in words (exit code, not a kill) is counted and started again, with other cuts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message
from ropewalk.errors import RopewalkError
from tests.spark.sink.pipeline import CONF, has_route, kill_one, worker_pids
from tests.support.processes import checkout_environment
from tests.support.sessions import PATIENCE_S, SessionProcess

SHAPES = ("stream", "foreachBatch", "batch")
CUTS = ("as read", "round robin", "by key", "adaptive", "by range", "coalesce")
KILLS = ("driver", "driver", "executor", "broker")
TOGETHER = 4
RUNS_MAX = 12

DRIVER = """
import json, sys, threading, traceback
from ropewalk.spark import session

run = json.loads(sys.argv[1])
spark = session(run["master"], **run["conf"])
starting, failures = threading.Lock(), []

def pipeline(given):
    stream = given["shape"] != "batch"
    rows = spark.readStream if stream else spark.read
    if given["folder"] is not None:
        rows = rows.schema("body STRING, keys STRING").format("json")
        rows = (rows.option("maxFilesPerTrigger", "4") if stream else rows).load(given["folder"])
    else:
        rows = (
            rows.format("ropewalk").option("nameServer", run["namesrv"]).option("topic", given["source"])
            .option("startingOffsets", "earliest").option("pullTimeoutMs", "90s")
            .option("minPartitions", given["minPartitions"]).option("maxRecordsPerPartition", given["perPartition"])
        )
        rows = (rows.option("maxOffsetsPerTrigger", given["batch"]) if stream else rows).load()
    # The number in a body says how many rows it becomes.
    out = rows.selectExpr(
        "body", "keys", "explode(sequence(1, 1 + cast(cast(body as string) as int) % 3)) as copy"
    ).selectExpr("concat('out ', cast(body as string)) as body", "keys")
    count = given["partitions"]
    out = {
        "as read": lambda: out,
        "round robin": lambda: out.repartition(count),
        "by key": lambda: out.repartition(count, "keys"),
        "adaptive": lambda: out.repartition("keys"),
        "by range": lambda: out.repartitionByRange(count, "body"),
        "coalesce": lambda: out.coalesce(1),
    }[given["cut"]]()
    sink = {
        "nameServer": run["namesrv"], "topic": given["target"], "delivery": "exactly-once",
        "sinkId": given["target"], "sendTimeoutMs": "90s", "batchMessages": "2", "sendInFlight": "1",
    }

    def write(frame):
        frame.write.format("ropewalk").options(**sink).mode("append").save()

    if not stream:
        write(out)
        return
    writer = out.writeStream.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True)
    if given["shape"] == "stream":
        writer = writer.format("ropewalk").options(**sink)
    else:
        writer = writer.foreachBatch(lambda frame, number: write(frame))
    with starting:
        query = writer.start()
    query.awaitTermination()

def guarded(given):
    try:
        # A thread of the JVM that Python's thread gets has no session, and so no data source of this one.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        pipeline(given)
    except Exception:
        failures.append(given["target"])
        traceback.print_exc()

threads = [threading.Thread(target=guarded, args=(given,)) for given in run["pipelines"]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
spark.stop()
sys.exit(1 if failures else 0)
"""


@dataclass(frozen=True)
class Broker:
    """The broker of all lives."""

    namesrv: str
    kill: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def broker_of(way: str, folder: Path) -> Iterator[Broker]:
    if way == "ropewalk":
        from tests.ha.process_group import Group

        group = Group(folder)
        try:
            group.start("a")
            with Admin(group.namesrv, timeout=10.0) as admin:
                group.until(lambda: bool(admin.members()), "a broker at the name server")
            yield Broker(group.namesrv, lambda: group.kill("a"), lambda: void(group.start("a")))
        finally:
            group.close()
    else:
        from tests.bench.peers.rocketmq.original import Original

        # Its consumer offsets are written every five seconds, and a kill shall not only meet older ones.
        config = {"flushConsumerOffsetInterval": "1000", "waitTimeMillsInSendQueue": "10000"}
        with Original(folder / "original", "256m", config, short_lived=True) as original:
            yield Broker(original.namesrv, original.kill9, original.start_broker)


def void(_value: object) -> None:
    """Drop a value."""


class Life:
    """One pipeline: its topics, its rows, and what has to be stored in the end."""

    def __init__(self, name: str, rng: random.Random, count: int, *, of_files: bool) -> None:
        self.rng = rng
        self.shape = rng.choice(SHAPES)
        self.of_files = rng.random() < 0.6 or of_files
        self.source, self.target = f"in-{name}", f"out-{name}"
        self.count = count
        numbers = [rng.randrange(count // 2) for _ in range(count)]
        self.rows = [(f"key-{number % 7}", b"%d" % number) for number in numbers]
        self.wanted = Counter(
            (key, b"out " + body) for key, body in self.rows for _ in range(1 + int(body) % 3)
        )
        self.cuts: list[str] = []

    def cut(self, folder: Path) -> dict[str, Any]:
        """Draw how Spark cuts the rows in the next run."""
        rng = self.rng
        self.cuts.append(rng.choice(CUTS))
        return {
            "shape": self.shape,
            "cut": self.cuts[-1],
            "partitions": rng.randrange(1, 6),
            "minPartitions": str(rng.randrange(1, 5)),
            "perPartition": rng.choice(("100", "1000", "1000000")),
            "folder": str(folder / self.source) if self.of_files else None,
            "source": self.source,
            "target": self.target,
            "batch": str(self.count // 2 + 1),
            "checkpoint": str(folder / f"checkpoint-{self.target}"),
        }

    def fill(self, client: Client, folder: Path) -> None:
        """Write the rows to the source: eight files, or a topic."""
        if self.of_files:
            (folder / self.source).mkdir()
            for number in range(8):
                lines = [
                    json.dumps({"body": body.decode(), "keys": key}) for key, body in self.rows[number::8]
                ]
                (folder / self.source / f"{number}.json").write_text("\n".join(lines))
            return
        queues = client.read_queues(self.source)
        for start in range(0, self.count, 100):
            batch = [Message(body, keys=key) for key, body in self.rows[start : start + 100]]
            client.send_batch(self.source, batch, queues[start // 100 % len(queues)])

    def check(self, client: Client) -> None:
        """Compare the rows of the target topic with the input. Raises AssertionError."""
        found: Counter[tuple[str, bytes]] = Counter()
        unique: set[str] = set()
        for queue in client.read_queues(self.target):
            at, end = 0, client.max_offset(self.target, queue)
            while at < end:
                result = client.pull(self.target, queue, at)
                found.update((" ".join(record.keys), record.body) for record in result.records)
                unique.update(record.properties["UNIQ_KEY"] for record in result.records)
                at = result.next_offset
        lost, more = self.wanted - found, found - self.wanted
        assert not lost, f"{lost.total()} rows are lost: {list(lost)[:5]}"
        assert not more, f"{more.total()} rows are there too often: {list(more)[:5]}"
        assert len(unique) == self.wanted.total(), "unique keys come twice"


class Lives:
    """Lives that share their drivers, from the first driver to the last."""

    def __init__(
        self, seed: int, count: int, broker: Broker, folder: Path, rows: int, *, with_spark: bool
    ) -> None:
        self.seed = seed
        self.broker = broker
        self.folder = folder
        self.rng = random.Random(seed)
        self.with_spark = with_spark
        self.lives = [
            Life(f"{seed}-{number}", self.rng, rows, of_files=not with_spark) for number in range(count)
        ]
        self.said: list[str] = []
        self.kills: list[str] = []
        self.log = folder / f"lives-{seed}.log"

    def live(self) -> None:
        """Run and kill until all lives came to their end."""
        self._create()
        kinds = ["driver", *(self.rng.choice(KILLS) for _ in range(self.rng.randrange(3)))]
        self.rng.shuffle(kinds)
        waiting = sorted((self.rng.uniform(0.05, 0.9), kind) for kind in kinds)
        for _ in range(RUNS_MAX):
            run = self._start()
            try:
                if self._kill_on_the_way(run, waiting):
                    continue
                if run.process.wait(PATIENCE_S) == 0:
                    return
                self.said.append(self.log.read_text(errors="replace")[-1500:])
            finally:
                run.kill_all()
        raise AssertionError(f"{RUNS_MAX} runs have not come to the end: {self.said}")

    def check(self, life: Life) -> None:
        deadline = time.monotonic() + 20
        while self._stored(life) < life.wanted.total() and time.monotonic() < deadline:
            time.sleep(0.1)
        with Client(self.broker.namesrv, timeout=20.0) as client:
            life.check(client)

    def _create(self) -> None:
        with Admin(self.broker.namesrv, timeout=10.0) as admin:
            for life in self.lives:
                for topic in (life.source, life.target):
                    admin.create_topic(topic, self.rng.randrange(1, 4))
        deadline = time.monotonic() + PATIENCE_S
        for life in self.lives:
            while not all(has_route(self.broker.namesrv, topic) for topic in (life.source, life.target)):
                assert time.monotonic() < deadline, f"no route of {life.source}"
                time.sleep(0.05)
        with Client(self.broker.namesrv, timeout=20.0) as client:
            for life in self.lives:
                life.fill(client, self.folder)

    def _start(self) -> SessionProcess:
        """Start a driver, with cuts of its own."""
        rng = self.rng
        master = "local-cluster[2,1,700]" if rng.random() < 0.3 else f"local[{rng.randrange(1, 5)},8]"
        given = {
            "master": master,
            "conf": CONF
            | {
                "spark.sql.shuffle.partitions": str(rng.randrange(1, 6)),
                "spark.sql.files.maxPartitionBytes": rng.choice(("1k", "4k", "128m")),
                "spark.sql.adaptive.enabled": str(rng.random() < 0.5).lower(),
                "spark.sql.adaptive.advisoryPartitionSizeInBytes": rng.choice(("1k", "8k", "64m")),
                "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1k",
            },
            "seed": rng.random(),
            "namesrv": self.broker.namesrv,
            "pipelines": [life.cut(self.folder) for life in self.lives],
        }
        env = checkout_environment() | {"SPARK_LOCAL_IP": "127.0.0.1"}
        program = ["-c", DRIVER] if self.with_spark else ["-m", "tests.spark.sink.plain_driver"]
        return SessionProcess([sys.executable, *program, json.dumps(given)], self.log, env)

    def _kill_on_the_way(self, run: SessionProcess, waiting: list[tuple[float, str]]) -> bool:
        """Carry out kills until the driver is killed; False when none is left, or the run ended before."""
        while waiting:
            part, kind = waiting[0]
            life = self.rng.choice(self.lives)
            place = int(part * life.wanted.total())
            if not run.wait_for(lambda: self._stored(life) >= place, f"{place} rows"):  # noqa: B023
                return False
            waiting.pop(0)
            self.kills.append(kind)
            if kind == "driver":
                run.kill_all()
                return True
            if kind == "broker":
                self.broker.kill()
                time.sleep(self.rng.random() / 2)
                self.broker.start()
            elif pids := self._executors(run):
                kill_one(pids, self.rng)
        return False

    def _executors(self, run: SessionProcess) -> list[int]:
        if self.with_spark:
            return run.members("CoarseGrainedExecutorBackend", "java") or worker_pids(run)
        return [pid for pid in run.members("plain_driver") if pid != run.process.pid]

    def _stored(self, life: Life) -> int:
        try:
            with Client(self.broker.namesrv, timeout=2.0) as client:
                return sum(client.max_offset(life.target, queue) for queue in client.read_queues(life.target))
        except (RopewalkError, OSError):
            return -1


def run_lives(
    way: str, count: int, first_seed: int, rows: int, tell: Callable[[str], None], *, with_spark: bool = True
) -> int:
    """Run so many lives, and return how many were not exact."""
    failures = 0
    with (
        tempfile.TemporaryDirectory(prefix="ropewalk-lives-") as name,
        broker_of(way, Path(name)) as broker,
    ):
        for number in range(0, count, TOGETHER):
            seed, together = first_seed + number // TOGETHER, min(TOGETHER, count - number)
            some = Lives(seed, together, broker, Path(name), rows, with_spark=with_spark)
            began = time.monotonic()
            stuck = ""
            try:
                some.live()
            except AssertionError as exc:
                stuck = str(exc)
            tell(
                f"{way} seed {some.seed}: kills {', '.join(some.kills)}; {len(some.said)} runs ended in words; "
                f"{time.monotonic() - began:.0f} s {stuck}"
            )
            for life in some.lives:
                result = "exact"
                try:
                    some.check(life)
                except AssertionError as exc:
                    result = f"FAILED: {exc}"
                failures += result != "exact"
                source = "files" if life.of_files else "a topic"
                cuts = " -> ".join(life.cuts)
                tell(f"    {life.shape} of {source}, {life.wanted.total()} rows, {cuts}: {result}")
            for text in some.said:
                tell("    > " + text.replace("\n", "\n    > "))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--way", choices=("ropewalk", "rocketmq"), required=True)
    parser.add_argument("--lives", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--without-spark", action="store_true")
    given = parser.parse_args()
    failures = run_lives(
        given.way,
        given.lives,
        given.seed,
        given.rows,
        lambda text: print(text, flush=True),
        with_spark=not given.without_spark,
    )
    print(f"{given.lives - failures} of {given.lives} lives exact")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
