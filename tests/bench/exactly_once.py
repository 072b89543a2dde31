"""The cost of `delivery=exactly-once`: rows a second beside those of at-least-once, on local[2].

    python -m tests.bench.exactly_once [--rows 400000] [--rounds 4] [--body 256]

One broker in a process of its own, one session. Each round writes the same rows both ways, one after the other, by
turns which goes first, to a topic of eight queues; the rows are made by Spark and come through a shuffle. The first
round warms up and is not counted; of the rest the best counts, and the median of the rounds' ratios. Two shapes:

    batch     one batch write
    stream    a topic through a streaming query, ten micro-batches
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ropewalk.client.core.messages import Message
from ropewalk.spark.spark_session import local_session
from ropewalk.testing import BrokerProcess, RopewalkBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET: Final = 0.70
WAYS: Final = ("at-least-once", "exactly-once")
BATCHES: Final = 10
QUEUES: Final = 8


class Bench:
    """The session, the broker, and a number for each topic and sink."""

    def __init__(
        self, spark: SparkSession, broker: RopewalkBroker, rows: int, body: int, folder: Path
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.rows = rows
        self.body = body
        self.folder = folder
        self._turn = 0

    def sink_options(self, way: str) -> dict[str, str]:
        self._turn += 1
        options = {
            "nameServer": self.broker.namesrv,
            "topic": self.broker.topic(f"out-{self._turn}", queues=QUEUES),
        }
        return options if way == WAYS[0] else options | {"delivery": way, "sinkId": f"bench-{self._turn}"}

    def batch(self, way: str) -> float:
        """Return the rows a second of one batch write."""
        frame = self.spark.range(0, self.rows, 1, 2).selectExpr(
            f"rpad(concat(id, '-', hash(id)), {self.body}, 'x') as body", "concat('k', id % 1000) as keys"
        )
        options = self.sink_options(way)
        began = time.perf_counter()
        frame.repartition(2, "keys").write.format("ropewalk").options(**options).mode("append").save()
        return self.rows / (time.perf_counter() - began)

    def stream(self, way: str) -> float:
        """Return the rows a second of a streaming query, its start left out."""
        frame: DataFrame = (
            self.spark.readStream.format("ropewalk")
            .option("nameServer", self.broker.namesrv)
            .option("topic", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self.rows // BATCHES))
            .load()
        )
        options = self.sink_options(way)
        query = (
            frame.selectExpr("body", "keys")
            .repartition(2, "keys")
            .writeStream.format("ropewalk")
            .options(**options)
            .option("checkpointLocation", str(self.folder / f"checkpoint-{self._turn}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if (failure := query.exception()) is not None:
            raise failure
        done = [one for one in query.recentProgress if one["numInputRows"]][1:]  # the first begins everything
        rows = sum(one["numInputRows"] for one in done)
        return float(rows * 1000 / sum(one["durationMs"]["triggerExecution"] for one in done))

    def fill(self) -> None:
        """Send the rows of the streaming query to its source."""
        self.source = self.broker.topic("in", queues=QUEUES)
        client = self.broker.client
        queues = client.read_queues(self.source)
        for start in range(0, self.rows, 500):
            batch = [
                Message(f"{n}-".ljust(self.body, "x").encode(), keys=f"k{n % 1000}")
                for n in range(start, min(start + 500, self.rows))
            ]
            client.send_batch(self.source, batch, queues[start // 500 % len(queues)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--body", type=int, default=256)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess() as process,
        local_session(2) as spark,
    ):
        broker = RopewalkBroker(process, "bench-")
        bench = Bench(spark, broker, given.rows, given.body, Path(folder))
        bench.fill()
        print(f"{given.rows} rows of {given.body} bytes, best of {given.rounds} rounds, rows/s\n")
        print(f"{'shape':8}{WAYS[0]:>16}{WAYS[1]:>16}{'ratio':>8}{'wanted':>8}")
        for shape, measure in (("batch", bench.batch), ("stream", bench.stream)):
            found: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(given.rounds + 1):
                for way in WAYS[:: 1 if number % 2 else -1]:
                    rate = measure(way)
                    if number:
                        found[way].append(rate)
            ratio = statistics.median(b / a for a, b in zip(*found.values(), strict=True))
            verdict = "met" if ratio >= TARGET else "MISSED"
            best = (max(found[way]) for way in WAYS)
            print(
                f"{shape:8}"
                + "".join(f"{rate:16,.0f}" for rate in best)
                + f"{ratio:8.2f}{TARGET:8.2f}  {verdict}"
            )
        broker.close()


if __name__ == "__main__":
    main()
