"""Make the stores that Apache RocketMQ wrote: tests/compat/stores/*.tar.gz, each with what is in it.

    clean     closed in an orderly way
    killed    the broker was killed with -9 after its last answer: the abort file is there
    restarted filled three times: between the first and the second the broker was stopped in an orderly way, between
              the second and the third it was killed with -9; closed in an orderly way

Segments are 64 KiB, so that a small store has several, blank records at their ends included. Beside each
archive stand the messages as the official pull consumer saw them, one JSON object a line in log order; the
consumer inflates bodies and clears that flag. `python -m tests.compat.make_stores` makes them anew; it
needs java and mvn.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.peers.rocketmq.original import Original
from tests.compat.driver import Driver

STORES = Path(__file__).with_name("stores")
PREFIX = "stored"
BROKER_CONFIG = {
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 300),
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "timerWheelEnable": "false",
    "waitTimeMillsInSendQueue": "10000",
}
# What a consumer adds to the properties as it pulls; never stored.
ADDED_BY_CONSUMER = ("MIN_OFFSET", "MAX_OFFSET")
# Fields that say something the others do not.
TOLD = (
    *("commitLogOffset", "storeSize", "topic", "queueId", "queueOffset", "flag", "sysFlag", "bornTimestamp"),
    *("bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "preparedTransactionOffset", "properties"),
    *("bodyCrc", "bodySha256", "offsetMsgId"),
)
# Other engines' files, made at every start and empty here.
LEFT_OUT = ("rocksdbstore", "compaction")


def pack(store: Path, archive: Path) -> None:
    """The store as a gzipped tar, the same bytes for the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(store.rglob("*")):
            name = path.relative_to(store)
            if path.is_file() and name.parts[0] not in LEFT_OUT:
                entry = tarfile.TarInfo(str(name))
                entry.size = path.stat().st_size
                entry.mtime = 1
                with path.open("rb") as content:
                    tar.addfile(entry, content)
    archive.write_bytes(gzip.compress(raw.getvalue(), compresslevel=9, mtime=0))


def make(driver: Driver, name: str, *, kill: bool) -> int:
    """Write one store and its contents. Returns how many messages there are."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with Original(folder / "original", heap="256m", broker_config=BROKER_CONFIG) as peer:
            run = driver.run(peer.namesrv, folder / "java", "fill_store", prefix=PREFIX)
            messages: list[dict[str, Any]] = run.received("fill_store")
            if kill:
                peer.kill9()
            else:
                peer.stop(orderly=True)
            for message in messages:
                for added in ADDED_BY_CONSUMER:
                    message["properties"].pop(added, None)
            messages.sort(key=lambda message: int(message["commitLogOffset"]))
            pack(peer.store_dir, STORES / f"{name}.tar.gz")
    lines = [json.dumps({key: message[key] for key in TOLD}, ensure_ascii=False) for message in messages]
    (STORES / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return len(messages)


DELAY_OFFSETS_SAVED_S = 12
"""A broker saves how far each delay level has come every ten seconds; killed before that, it delivers again."""


def make_restarted(driver: Driver, name: str) -> int:
    """Write a store over two restarts, and its contents. Returns how many messages there are."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found: dict[int, dict[str, Any]] = {}
        with Original(folder / "original", heap="256m", broker_config=BROKER_CONFIG) as peer:
            for life in range(3):
                run = driver.run(peer.namesrv, folder / "java", "fill_store", prefix=f"{PREFIX}-{life}")
                found |= {int(message["commitLogOffset"]): message for message in run.received("fill_store")}
                if life == 0:
                    peer.stop_broker(orderly=True)
                    peer.start_broker()
                elif life == 1:
                    time.sleep(DELAY_OFFSETS_SAVED_S)
                    peer.kill9()
                    peer.start_broker()
            peer.stop(orderly=True)
            for message in found.values():
                for added in ADDED_BY_CONSUMER:
                    message["properties"].pop(added, None)
            pack(peer.store_dir, STORES / f"{name}.tar.gz")
    messages = [found[offset] for offset in sorted(found)]
    lines = [json.dumps({key: message[key] for key in TOLD}, ensure_ascii=False) for message in messages]
    (STORES / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return len(messages)


def main() -> None:
    STORES.mkdir(exist_ok=True)
    driver = Driver("5.5.0", "JSON")
    for name, kill in (("clean", False), ("killed", True)):
        print(f"{name}: {make(driver, name, kill=kill)} messages", file=sys.stderr)
    print(f"restarted: {make_restarted(driver, 'restarted')} messages", file=sys.stderr)


if __name__ == "__main__":
    main()
