import contextlib
import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from store.io.disk import Disk, DiskFull, StoreLocked

MIB = 1 << 20

_TRY_TO_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        print("free")
    except OSError:
        print("taken")
"""

_OPEN_STORE = """
import sys
from pathlib import Path
from store.io.disk import Disk, StoreLocked
try:
    Disk().lock(Path(sys.argv[1]))
    print("opened")
except StoreLocked as exc:
    print(exc)
"""


def in_another_process(program: str, path: Path) -> str:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size`: the quota every Linux has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- the process lock --------------------------------------------------------------------------------


def test_a_second_process_gets_store_locked_with_a_text_that_says_what_to_do(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.lock(tmp_path / "lock")
    text = in_another_process(_OPEN_STORE, tmp_path / "lock")
    disk.unlock(fd)
    assert str(tmp_path) in text
    assert "in use by another process" in text
    assert "storePathRootDir" in text


def test_the_lock_is_the_record_lock_on_the_first_byte_that_rocketmq_takes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    disk = Disk()
    fd = disk.lock(path)
    assert in_another_process(_TRY_TO_LOCK, path) == "taken"
    disk.unlock(fd)
    assert in_another_process(_TRY_TO_LOCK, path) == "free"
    assert path.read_bytes() == b"lock"


def test_a_full_disk_keeps_nobody_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Disk()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        fd = disk.lock(tmp_path / "lock")
    assert in_another_process(_TRY_TO_LOCK, tmp_path / "lock") == "taken"
    disk.unlock(fd)


def test_the_same_process_cannot_open_a_store_twice_and_the_try_costs_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    disk = Disk()
    fd = disk.lock(path)
    with pytest.raises(StoreLocked, match="this very process"):
        Disk().lock(path)
    assert in_another_process(_TRY_TO_LOCK, path) == "taken"
    disk.unlock(fd)
    disk.unlock(disk.lock(path))


def test_without_its_lock_file_a_store_in_use_is_refused_to_a_second_process_all_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    disk = Disk()
    fd = disk.lock(path)
    path.unlink()
    text = in_another_process(_OPEN_STORE, path)
    assert str(tmp_path) in text
    assert "was removed or replaced" in text
    with pytest.raises(StoreLocked, match="in use"):
        Disk().lock(path)
    disk.unlock(fd)
    assert in_another_process(_OPEN_STORE, path) == "opened"
    disk.unlock(disk.lock(path))


def test_a_file_system_that_cannot_lock_directories_leaves_the_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)
    disk = Disk()
    fd = disk.lock(tmp_path / "lock")
    assert in_another_process(_TRY_TO_LOCK, tmp_path / "lock") == "taken"
    disk.unlock(fd)


def test_making_the_whole_tree_durable_keeps_the_lock(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.lock(tmp_path / "lock")
    (tmp_path / "file").write_bytes(b"x")
    disk.sync_tree(tmp_path)
    assert in_another_process(_TRY_TO_LOCK, tmp_path / "lock") == "taken"
    disk.unlock(fd)


def test_a_file_system_without_locks_is_not_mistaken_for_a_second_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        Disk().lock(tmp_path / "lock")


# -- segments ----------------------------------------------------------------------------------------


def test_an_allocated_file_has_all_its_blocks(tmp_path: Path) -> None:
    file = Disk().allocate(tmp_path / "new" / "segment", MIB)
    status = file.path.stat()
    assert status.st_size == MIB
    assert status.st_blocks * 512 >= MIB
    assert file.map[:] == bytes(MIB)
    file.close()


def test_a_disk_without_room_is_told_at_allocation_and_leaves_no_file(tmp_path: Path) -> None:
    with files_limited_to(MIB // 2), pytest.raises(DiskFull, match="cannot allocate"):
        Disk().allocate(tmp_path / "segment", MIB)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_that_cannot_be_mapped_is_no_room_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, size: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(DiskFull, match="Cannot allocate memory"):
        Disk().allocate(tmp_path / "segment", MIB)
    assert list(tmp_path.iterdir()) == []


def test_a_sparse_file_gets_its_missing_blocks_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.touch()
    os.truncate(path, MIB)
    os.utime(path, (1_000, 1_000))
    assert path.stat().st_blocks == 0
    file = Disk().open_mapped(path)
    assert path.stat().st_blocks * 512 >= MIB
    assert path.stat().st_mtime == 1_000  # retention goes by it, and nothing was written
    file.close()


def test_data_ranges_leave_out_the_holes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(MIB)
        file.seek(MIB // 2)
        file.write(b"x")
    paged = Disk().open_paged(path)
    ranges = paged.data_ranges(0)
    assert any(start <= MIB // 2 < end for start, end in ranges)
    assert sum(end - start for start, end in ranges) < MIB
    assert paged.data_ranges(MIB) == []


def test_what_is_written_stands_in_the_map_and_in_the_file(tmp_path: Path) -> None:
    file = Disk().allocate(tmp_path / "segment", MIB)
    file.write_at(10, b"abc")
    file.write_through(5, MIB - 5)
    file.read_ahead(0, MIB)
    assert file.map[:] == bytes(10) + b"abc" + bytes(MIB - 13) == (tmp_path / "segment").read_bytes()
    file.close()


def test_pages_that_are_written_through_are_on_the_disk_as_they_are(tmp_path: Path) -> None:
    file = Disk().allocate(tmp_path / "segment", 4 * MIB)
    paged = Disk().open_paged(tmp_path / "segment")
    if file.data_ranges(0):
        pytest.skip("this file system does not tell allocated blocks from written ones")
    for part, start, end in ((file, MIB + 5, 2 * MIB), (paged, 3 * MIB, 3 * MIB + 1)):
        part.write_through(start, end - start)
    os.fsync(file._fd)
    os.posix_fadvise(file._fd, 0, 0, os.POSIX_FADV_DONTNEED)  # or what is in the cache alone counts too
    assert file.data_ranges(0) == [(MIB, 2 * MIB), (3 * MIB, 3 * MIB + 4096)]
    assert file.map[:] == bytes(4 * MIB)
    file.close()


def test_what_could_not_be_written_is_left_for_sync_to_hear_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells each open file once: whoever writes through and does not ask must not be the one it tells."""
    file = Disk().allocate(tmp_path / "segment", MIB)
    used: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        "store.io.disk._write_through",
        lambda fd, _at, _size: used.append((fd, os.path.samestat(os.fstat(fd), file.path.stat()))),
    )
    file.write_through(0, MIB)
    ((fd, is_the_file),) = used
    assert is_the_file and fd != file._fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    file.close()


def test_all_that_is_asked_for_is_read_ahead_however_little_the_kernel_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Disk().allocate(tmp_path / "segment", 20 * MIB)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, at, size, _advice: asked.append((at, at + size)))
    file.read_ahead(5, 20 * MIB - 7)
    assert [start for start, _ in asked] == [5, *(end for _, end in asked[:-1])]
    assert asked[-1][1] == 20 * MIB - 2
    setting = Path("/sys/class/bdi", "{}:{}".format(*_device(tmp_path)), "read_ahead_kb")
    most = max(256, int(setting.read_text()) if setting.exists() else 0) << 10
    assert max(end - start for start, end in asked) == min(most, 20 * MIB - 7)
    file.close()


def _device(path: Path) -> tuple[int, int]:
    device = path.stat().st_dev
    return os.major(device), os.minor(device)


def test_pieces_are_written_one_behind_the_other_however_many_they_are(tmp_path: Path) -> None:
    file = Disk().allocate(tmp_path / "segment", MIB)
    few: list[bytes | memoryview] = [b"abc", memoryview(b"de"), b""]
    many = [b"%04d" % n for n in range(3000)]
    file.write_pieces_at(10, few, 5)
    few_s = file.pieces_s
    file.write_pieces_at(100, many, 12_000)
    assert 0 < few_s < file.pieces_s, "what they take is told"
    assert file.map[:15] == bytes(10) + b"abcde"
    assert file.map[100:12_101] == b"".join(many) + b"\0"
    with files_limited_to(MIB), pytest.raises(OSError, match="Input/output error"):
        file.write_pieces_at(MIB - 10, [b"x" * 8, b"y" * 8], 16)
    file.close()


# -- paged files -------------------------------------------------------------------------------------


def test_a_write_that_a_full_disk_cuts_short_is_an_error(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.create_paged(tmp_path / "file", 1000)
    with files_limited_to(1000), pytest.raises(OSError, match="No space left") as info:
        file.write_at(990, b"x" * 20)
    assert info.value.errno == errno.ENOSPC
    disk.close()


def test_creating_a_paged_file_keeps_what_it_holds(tmp_path: Path) -> None:
    disk = Disk()
    disk.create_paged(tmp_path / "file", 100).write_at(50, b"kept")
    again = disk.create_paged(tmp_path / "file", 100)
    assert again.read_at(50, 4) == b"kept"
    assert again.read_at(0, 100).count(0) == 96
    disk.close()


def test_a_piece_is_written_into_a_file_that_is_made_where_there_is_none(tmp_path: Path) -> None:
    """Without a descriptor that stays: there are tens of thousands of such files."""
    disk, path = Disk(), tmp_path / "consumequeue" / "T" / "0" / "00000000000000000000"
    before = len(os.listdir("/proc/self/fd"))
    assert disk.write_paged(str(path), 100, 0, b"ab")
    assert not disk.write_paged(str(path), 100, 2, b"cd")
    assert path.read_bytes() == b"abcd" + bytes(96)
    path.unlink()
    assert disk.write_paged(str(path), 100, 4, b"ef"), "its directory has to be synced again"
    assert path.read_bytes() == bytes(4) + b"ef" + bytes(94)
    path.write_bytes(b"x" * 7)  # of a start that was killed before it gave the file its size
    assert disk.write_paged(str(path), 100, 0, b"gh")
    assert path.read_bytes() == b"ghxxxxx" + bytes(93)
    with files_limited_to(64), pytest.raises(OSError, match="No space left"):
        disk.write_paged(str(path), 100, 60, b"i" * 8)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not disk._descriptors


def test_reading_behind_the_end_gives_what_there_is(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.create_paged(tmp_path / "file", 10)
    assert file.read_at(8, 10) == b"\0\0"
    assert file.read_at_nowait(8, 10) is None
    disk.close()


def test_a_segment_tells_which_of_its_bytes_the_page_cache_has(tmp_path: Path) -> None:
    file = Disk().allocate(tmp_path / "segment", 4 << 20)
    file.write_at(0, b"x" * (256 << 10))
    assert file.is_resident(0, 256 << 10) and file.is_resident(4095, 2)
    far = 2 << 20  # never read nor written
    assert not file.is_resident(far, 1) and not file.is_resident(far - 4097, 8192)
    assert not file.is_resident(0, 4 << 20)
    assert file.map[far : far + 2] == b"\0\0"
    assert file.is_resident(far, 1)
    assert not file.is_resident(0, 16 << 20), "more than is ever asked for"
    file.close()


def test_thousands_of_files_do_not_mean_thousands_of_descriptors(tmp_path: Path) -> None:
    disk = Disk()
    before = len(os.listdir("/proc/self/fd"))
    files = [disk.create_paged(tmp_path / str(n), 20) for n in range(700)]
    for number, file in enumerate(files):
        file.write_at(0, number.to_bytes(4, "big"))
    assert len(os.listdir("/proc/self/fd")) - before <= disk.open_max
    assert [int.from_bytes(f.read_at(0, 4), "big") for f in files] == list(range(700))
    disk.close()
    assert len(os.listdir("/proc/self/fd")) == before


@contextmanager
def at_most_open(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_low_limit_makes_a_small_pool(tmp_path: Path) -> None:
    for limit, size in ((64, 16), (200, 50), (4096, 512)):
        with at_most_open(limit):
            assert Disk().open_max == size


def test_without_descriptors_idle_ones_make_room_and_a_segment_waits(tmp_path: Path) -> None:
    disk = Disk()
    files = [disk.create_paged(tmp_path / str(n), 20) for n in range(100)]
    for file in files[:50]:
        file.write_at(0, b"x")
    with at_most_open(max(map(int, os.listdir("/proc/self/fd"))) + 1):
        for file in files:
            file.write_at(0, b"y")
        disk.replace_file(tmp_path / "small", b"z")
        assert not disk.write_paged(str(files[0].path), 20, 1, b"y")
        assert [file.read_at(0, 1) for file in files] == [b"y"] * 100
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        with ExitStack() as held:
            for path in list(disk._descriptors):
                held.enter_context(disk.descriptor(path))
            with pytest.raises(DiskFull, match="ulimit -n"):
                disk.allocate(tmp_path / "segment", 4096)
        for fd in taken:
            os.close(fd)
        disk.allocate(tmp_path / "segment", 4096).close()
    disk.close()


def test_a_descriptor_in_use_is_not_closed_however_small_the_pool_is(tmp_path: Path) -> None:
    disk = Disk()
    disk.open_max = 2
    paths = [tmp_path / str(n) for n in range(6)]
    with ExitStack() as held:
        for path in paths:
            disk.create_paged(path, 4)
            fd = held.enter_context(disk.descriptor(path))
            os.pwrite(fd, b"used", 0)
        assert len(disk._descriptors) == 6
        with disk.descriptor(paths[0]) as fd:
            assert os.pread(fd, 4, 0) == b"used"
    disk.close()


def test_a_descriptor_in_use_outlives_a_pool_that_is_closed(tmp_path: Path) -> None:
    disk = Disk()
    before = len(os.listdir("/proc/self/fd"))
    for name in ("used", "idle"):
        disk.create_paged(tmp_path / name, 4).write_at(0, name.encode())
    with disk.descriptor(tmp_path / "used") as fd:
        with disk.descriptor(tmp_path / "used"):
            disk.close()
        assert os.pread(fd, 4, 0) == b"used", "there are others beside whoever is through with it"
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_removing_a_file_lets_go_of_its_descriptor(tmp_path: Path) -> None:
    disk = Disk()
    before = len(os.listdir("/proc/self/fd"))
    disk.create_paged(tmp_path / "file", 10).write_at(0, b"x")
    disk.remove(tmp_path / "file")
    disk.remove(tmp_path / "file")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not disk.exists(tmp_path / "file")


# -- names and whole files ---------------------------------------------------------------------------


def test_a_missing_directory_counts_as_empty(tmp_path: Path) -> None:
    disk = Disk()
    assert disk.names(tmp_path / "nowhere") == []
    assert disk.directories(tmp_path / "nowhere") == []
    assert disk.read_file(tmp_path / "nowhere") is None


def test_names_are_sorted_and_apart_from_directories(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    assert Disk().names(tmp_path) == ["a", "b", "c"]
    assert Disk().directories(tmp_path) == ["folder"]


def test_replacing_a_file_leaves_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    disk = Disk()
    path = tmp_path / "table"
    disk.replace_file(path, b"old")
    with files_limited_to(4), pytest.raises(OSError, match=r"too large|No space"):
        disk.replace_file(path, b"longer than the quota")
    assert path.read_bytes() == b"old"
    disk.replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_what_is_called_durable_is_synced_and_so_is_its_name_and_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename = os.replace

    def sync(fd: int) -> None:
        steps.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        steps.append(f"named {target.name}")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "replace", renamed)
    disk = Disk()
    disk.allocate(tmp_path / "log" / "0", MIB).close()
    assert steps == ["log/0", "log"]
    steps.clear()
    disk.append_file(tmp_path / "tails" / "1", b"dead bytes")
    assert steps == ["tails/1", "tails"]
    steps.clear()
    disk.replace_file(tmp_path / "vote", b"1")
    assert steps == ["vote.tmp", "named vote", "."]
    steps.clear()
    disk.move(tmp_path / "log" / "0", tmp_path / "kept" / "0")
    assert steps == ["named 0", "kept", "log"]
    steps.clear()
    disk.sync_tree(tmp_path)
    assert {"vote", "kept/0", "kept", "log", "tails/1", "tails", "."} <= set(steps)


def test_a_tail_is_appended_whole_or_not_at_all_reported(tmp_path: Path) -> None:
    disk = Disk()
    disk.append_file(tmp_path / "tails" / "tail", b"one")
    disk.append_file(tmp_path / "tails" / "tail", b"two")
    assert (tmp_path / "tails" / "tail").read_bytes() == b"onetwo"
    with files_limited_to(8), pytest.raises(OSError, match=r"too large|No space"):
        disk.append_file(tmp_path / "tails" / "tail", b"three")


def test_blankness_is_judged_by_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    disk = Disk()
    assert disk.is_blank(path)
    path.write_bytes(bytes(9_999) + b"x")
    assert not disk.is_blank(path)
    disk.close()


def test_one_call_makes_a_whole_file_system_durable(tmp_path: Path) -> None:
    Disk().sync_file_systems(tmp_path, tmp_path / "missing", Path("/proc"))
    Disk().sync_file(tmp_path / "gone meanwhile")


def test_a_file_that_is_removed_while_others_open_it_is_let_go(tmp_path: Path) -> None:
    """Between the pool's look and the removal another thread opens the file."""

    class Busy(Disk):
        def forget(self, path: Path) -> None:
            super().forget(path)
            with contextlib.suppress(FileNotFoundError):
                self.open_paged(path).read_at(0, 1)

    disk, path = Busy(), tmp_path / "file"
    disk.create_paged(path, 10)
    disk.remove(path)
    held = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert not [each for each in held if str(path) in each]
