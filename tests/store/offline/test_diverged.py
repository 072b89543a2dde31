"""A diverged tail is kept aside, and the store goes on as if it had never been."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from ropewalk.errors import Corrupt
from store.io.disk import Disk, StoreLocked
from store.message_store import MessageStore
from store.offline.diverged import empty_store, kept_in
from tests.store.worlds import put, records, settle
from tests.support.stores import about, cut, damages, end_of, fill, reopened, whole_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


def served(store: MessageStore) -> list[int]:
    """The log offsets of everything that consumers are shown."""
    return sorted(
        record.offset
        for topic, queues in store.queues.items()
        for queue_id in queues
        for record in records(store, topic, queue_id)
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_store_that_was_cut_anywhere_holds_what_is_before_and_keeps_what_is_behind(
    root: Path, seed: int
) -> None:
    log = whole_log(root)
    at = random.Random(seed).randrange(1, len(log))
    kept = cut(root, log[at].offset, end_of(log))
    assert [each.offset for each in whole_log(root)] == [each.offset for each in log[:at]]
    assert whole_log(kept) == log[at:], "a dump of the kept tail shows every message of it"
    store = reopened(root)
    assert store.log.end_offset == log[at].offset == store.recovered.end
    assert served(store) == [each.offset for each in log[:at]]
    (done,) = put(store, [b"the new master's"], "T", 1)
    assert done[0] >= log[at].offset
    settle(store)
    store.close()
    assert not damages(root), "bound, checksums and queue files speak of nothing that is gone"
    store = reopened(root)
    assert served(store) == [*(each.offset for each in log[:at]), done[0]]
    store.close()


def test_what_is_kept_is_listed_with_why_and_how_much(root: Path) -> None:
    log = whole_log(root)
    assert kept_in(root, Disk()) == []
    path = cut(root, log[-3].offset, end_of(log))
    (kept,) = kept_in(root, Disk())
    assert kept.path == path and kept.about == about(log[-3].offset, end_of(log))
    assert kept.size == end_of(log) - log[-3].offset


def test_a_store_in_use_is_not_touched(root: Path) -> None:
    log = whole_log(root)
    store = reopened(root)
    with pytest.raises(StoreLocked):
        cut(root, log[5].offset, end_of(log))
    store.close()
    assert whole_log(root) == log


@pytest.mark.parametrize(("begin", "end"), [(0, 1 << 40), (1 << 40, (1 << 40) + 5), (500, 500)])
def test_bytes_that_are_not_there_are_not_cut(root: Path, begin: int, end: int) -> None:
    log = whole_log(root)
    with pytest.raises(Corrupt, match="has no bytes"):
        cut(root, begin, end)
    assert whole_log(root) == log


class DyingDisk(Disk):
    """Dies at the n-th durable step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise KeyboardInterrupt

    def append_file(self, path: Path, data: bytes) -> None:
        self._step()
        super().append_file(path, data)

    def replace_file(self, path: Path, data: bytes) -> None:
        self._step()
        super().replace_file(path, data)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def move(self, source: Path, target: Path) -> None:
        self._step()
        super().move(source, target)


def test_a_crash_at_any_step_leaves_a_store_that_starts_and_can_be_cut_again(
    root: Path, tmp_path: Path
) -> None:
    log = whole_log(root)
    at = len(log) // 3
    step = 0
    while True:
        broken = tmp_path / f"broken-{step}"
        shutil.copytree(root, broken)
        try:
            cut(broken, log[at].offset, end_of(log), DyingDisk(step))
            finished = True
        except KeyboardInterrupt:
            finished = False
        store = reopened(broken)
        end = store.log.end_offset
        assert served(store) == [each.offset for each in log if each.offset < end]
        assert end >= log[at].offset
        store.close()
        if end > log[at].offset:
            cut(broken, log[at].offset, end)
        assert not damages(broken)
        assert [each.offset for each in whole_log(broken)] == [each.offset for each in log[:at]]
        if finished:
            break
        step += 1
    assert step > 5


def test_an_emptied_store_begins_wherever_its_master_begins(root: Path) -> None:
    log = whole_log(root)
    kept = empty_store(root, root / "commitlog", about(0, end_of(log)), Disk())
    assert whole_log(kept) == log
    store = reopened(root)
    assert store.log.segments == [] and served(store) == []
    follower = store.follow()
    assert follower.end == 0
    store.close()
    (listed,) = kept_in(root, Disk())
    assert listed.about.why == "test"
