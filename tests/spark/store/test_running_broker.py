"""The store of a broker that is running, read behind its back: what was acknowledged, and nothing half written."""

from __future__ import annotations

import threading
from pathlib import Path

from ropewalk import Message, Producer
from ropewalk.spark.store.files import open_stores
from tests.spark.store.reading import offsets, plan, read_splits
from tests.support.processes import checkout_command, checkout_environment, running_broker


def test_a_store_that_is_being_written_reads_as_far_as_it_is_safe(tmp_path: Path) -> None:
    settings = ("--set", f"storePathRootDir={tmp_path / 'data'}", "--set", "flushIntervalConsumeQueue=50")
    with running_broker(
        checkout_command(), *settings, cwd=tmp_path, environment=checkout_environment()
    ) as broker:
        store = Path(str(broker.ready["dataDir"]))
        sent: list[str] = []
        enough = threading.Event()

        def produce() -> None:
            with Producer(broker.namesrv, group="spark-live-store") as producer:
                while not enough.is_set():
                    number = len(sent)
                    producer.send("live-store", Message(b"x" * (1 + number * 13 % 900), keys=f"key-{number}"))
                    sent.append(f"key-{number}")

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            seen = 0
            # Entries reach the queue files some time behind their records: what is safe lags by that.
            while seen < 100 and thread.is_alive():
                rows = read_splits(plan(store, topic="live-store"))
                keys = [row["keys"] for row in rows]
                assert keys == [f"key-{number}" for number in range(len(keys))]
                assert len(keys) >= seen
                assert offsets(rows) == sorted(offsets(rows))
                seen = len(keys)
        finally:
            enough.set()
            thread.join()
        (found,) = open_stores(str(store))
        assert found.is_locked()
        assert plan(store)[0].io == "pread"
    rows = read_splits(plan(store, topic="live-store", checkCrc="true"))
    assert [row["keys"] for row in rows] == sent
    # As live rows are called, so that both join.
    assert {row["brokerName"] for row in rows} == {"broker-a"}
