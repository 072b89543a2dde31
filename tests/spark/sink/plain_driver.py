"""A driver with Spark's habits and without Spark: it cuts batches into tasks, and each attempt is a process.

It is as `lives` wants a driver, and starts in half a second: batches have numbers, a committed one is noted in the
checkpoint afterwards, a task whose process died is run again in another order, and some tasks run twice at a time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from ropewalk.client.core.messages import Message
from ropewalk.spark.options import Options
from ropewalk.spark.sink.rows import Outgoing
from ropewalk.spark.sink.run import Run, TaskIdentity, TaskResult
from ropewalk.spark.sink.writer import sender_of
from tests.spark.sink.exact_tasks import begin, commit, options_of

ATTEMPTS_MAX = 8
Row = tuple[str, str]
processes = multiprocessing.get_context("fork")


def write(connection: Any, options: Options, run: Run, identity: TaskIdentity, rows: list[Row]) -> None:
    """Be one attempt of a task."""
    sender = sender_of(options, run, identity)
    (topic,) = options.topics
    for key, body in rows:
        sender.add(Outgoing(topic, Message(body.encode(), keys=key), 40))
    sender.finish()
    connection.send(sender.result())
    sender.close()


def task(
    options: Options, run: Run, query: str, batch: int, partition: int, rows: list[Row], rng: random.Random
) -> Any:
    """Run a task in attempts until one of them ends."""
    for retries in range(ATTEMPTS_MAX):
        receiving, sending = processes.Pipe(duplex=False)
        identity = TaskIdentity(query, batch, partition, retries * 1000 + partition, retries)
        arguments = (sending, options, run, identity, rng.sample(rows, len(rows)))
        attempt = processes.Process(target=write, args=arguments)
        attempt.start()
        sending.close()
        try:
            return receiving.recv()
        except EOFError:
            attempt.join()
    raise RuntimeError(f"a task failed {ATTEMPTS_MAX} times")


def pipeline(namesrv: str, given: dict[str, Any], rng: random.Random) -> None:
    rows: list[Row] = []
    for path in sorted(Path(given["folder"]).glob("*.json")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows += [(row["keys"], f"out {row['body']}")] * (1 + int(row["body"]) % 3)
    options = options_of(
        namesrv,
        given["target"],
        sinkId=given["target"],
        sendTimeoutMs="90s",
        batchMessages="2",
        sendInFlight="1",
    )
    is_batch = given["shape"] == "batch"
    middle = len(rows) if is_batch else len(rows) // 2
    for batch, part in enumerate((rows[:middle], rows[middle:])):
        done = Path(f"{given['checkpoint']}-{batch}")
        if done.exists() or not part:
            continue
        run = begin(options)
        cut: list[list[Row]] = [[] for _ in range(given["partitions"])]
        for row in part:
            rng.choice(cut).append(row)
        results: list[TaskResult | Exception] = []

        def one(partition: int, rows: list[Row]) -> None:
            chance = random.Random(partition)
            try:
                results.append(task(options, run, "-" if is_batch else "q", batch, partition, rows, chance))  # noqa: B023
            except Exception as exc:
                results.append(exc)  # noqa: B023

        threads = [threading.Thread(target=one, args=pair) for pair in enumerate(cut)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, Exception):
                raise result
        commit(options, [result for result in results if isinstance(result, TaskResult)])
        if not is_batch:
            done.touch()


def main() -> None:
    run = json.loads(sys.argv[1])
    failures: list[str] = []

    def guarded(given: dict[str, Any], rng: random.Random) -> None:
        try:
            pipeline(run["namesrv"], given, rng)
        except Exception:
            failures.append(given["target"])
            traceback.print_exc()

    rng = random.Random(run["seed"])
    threads = [
        threading.Thread(target=guarded, args=(given, random.Random(rng.random())))
        for given in run["pipelines"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stderr.flush()
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    main()
