"""What lies in a store's directory is read off its files, also off damaged ones, and an open store is known as such."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.spark.jobs.records.index_check import geometry_of, index_paths
from ropewalk.spark.jobs.records.log_files import UnreadableStore, is_locked, open_store
from tests.spark.jobs.stores import GEOMETRY, QUEUE_FILE_SIZE, SEGMENT_SIZE, fill, segment
from tests.support.processes import ROOT


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "store", 400)
    return tmp_path / "store"


def test_sizes_are_read_off_the_files(store: Path) -> None:
    found = open_store(str(store))
    assert (found.segment_size, found.queue_file_size, found.min_offset) == (SEGMENT_SIZE, QUEUE_FILE_SIZE, 0)
    assert found.is_clean and len(found.segments) > 2
    assert all(geometry_of(found, path) == GEOMETRY for path in index_paths(found))
    with segment(store, 1).open("r+b") as file:
        file.truncate(100)
    assert open_store(str(store)).segment_size == SEGMENT_SIZE
    narrow = found.narrowed(SEGMENT_SIZE + 5)
    assert [each.base for each in narrow.segments] == [SEGMENT_SIZE] and narrow.min_offset == 0
    # Retention takes a file between the look at the names and the look at the file: as a link to nothing looks.
    for path in (segment(store), next((store / "consumequeue").glob("*/*/*"))):
        path.unlink()
        path.symlink_to("gone")
    assert open_store(str(store)).min_offset == SEGMENT_SIZE


def test_a_store_that_somebody_has_open_is_not_clean_and_asking_does_not_disturb(store: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from store.io.disk import Disk; "
        f"held = Disk().lock(Path({str(store / 'lock')!r})); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_locked(store) and not open_store(str(store)).is_clean
        holder.stdin.close()
    assert not is_locked(store) and open_store(str(store)).is_clean
    (store / "abort").touch()
    assert not open_store(str(store)).is_clean


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableStore, match="holds commitlog/ and consumequeue/"):
        open_store(str(tmp_path))
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(UnreadableStore, match="has no segments"):
        open_store(str(tmp_path))
    for base in (0, 1000, 1500):
        (tmp_path / "commitlog" / f"{base:020d}").write_bytes(bytes(1000))
    with pytest.raises(UnreadableStore, match="does not begin at a multiple"):
        open_store(str(tmp_path))
