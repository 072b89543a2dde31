"""A config file on disk: what each kind of damage, and each instant of a crash, leaves to the next start."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import crc32c
import pytest

from broker.state import json_file
from broker.state.json_file import StoreConfigDamaged, load, save


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.json"


def generation(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


def ours(path: Path) -> Path:
    return path.parent.parent / "ropewalk"


def test_a_first_start_finds_nothing_and_says_nothing(path: Path) -> None:
    assert load(path) == (None, [])


def test_what_was_saved_is_loaded_without_a_word(path: Path) -> None:
    save(path, generation(1))
    assert load(path) == ({"n": 1}, [])


def test_three_generations_are_kept_and_the_fourth_pushes_out_the_first(path: Path) -> None:
    for number in range(1, 5):
        save(path, generation(number))
    assert path.read_bytes() == generation(4)
    assert path.with_name("topics.json.bak").read_bytes() == generation(3)
    assert (ours(path) / "previous" / "topics.json").read_bytes() == generation(2)


def test_the_folder_that_rocketmq_reads_holds_the_two_files_it_knows_and_no_other(path: Path) -> None:
    for number in range(1, 4):
        save(path, generation(number))
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_the_checksum_of_each_file_is_recorded_by_name(path: Path) -> None:
    save(path, generation(1))
    save(path.with_name("consumerOffset.json"), generation(2))
    recorded = json.loads((ours(path) / "config.crc").read_bytes())
    assert recorded["topics.json"] == crc32c.crc32c(generation(1))
    assert recorded["consumerOffset.json"] == crc32c.crc32c(generation(2))


def test_a_foreign_writer_is_accepted_and_reported(path: Path) -> None:
    save(path, generation(1))
    path.write_bytes(generation(7))
    value, findings = load(path)
    assert value == {"n": 7}
    assert len(findings) == 1 and "changed by another program" in findings[0]


def test_a_file_that_rocketmq_left_beside_ours_is_accepted_and_reported(path: Path) -> None:
    save(path.with_name("other.json"), generation(1))
    path.write_bytes(b'{"offsetTable":{"T@g":{0:5,1:6}}}')
    value, findings = load(path)
    assert value == {"offsetTable": {"T@g": {"0": 5, "1": 6}}}
    assert len(findings) == 1 and "not written by this broker" in findings[0]


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 300, b"  \n", b'{"n": 2', b'{"n":2}}', b"[1,2]", b"null", b"\xff\xfe{}", b"17"]
)
def test_a_damaged_file_gives_way_to_its_bak_loudly(path: Path, damage: bytes) -> None:
    save(path, generation(1))
    save(path, generation(2))
    path.write_bytes(damage)
    value, findings = load(path)
    assert value == {"n": 1}
    assert any("cannot be read" in finding and str(path) in finding for finding in findings)
    assert any("older generation" in finding for finding in findings)


def test_every_cut_of_a_file_loads_whole_or_gives_way(path: Path) -> None:
    text = b'{\n\t"offsetTable":{\n\t\t"T@g":{0:37960,1:37961\n\t\t}\n\t}\n}'
    save(path, generation(1))
    save(path, text)
    for length in range(len(text)):
        path.write_bytes(text[:length])
        value, findings = load(path)
        assert value == {"n": 1} and findings, length


def test_a_damaged_file_and_bak_give_way_to_the_generation_before(path: Path) -> None:
    for number in range(1, 4):
        save(path, generation(number))
    path.write_bytes(b"{")
    path.with_name("topics.json.bak").write_bytes(b"{")
    value, findings = load(path)
    assert value == {"n": 1}
    assert len([finding for finding in findings if "cannot be read" in finding]) == 2


def test_a_missing_file_with_a_bak_is_what_a_crash_leaves_and_the_bak_is_taken(path: Path) -> None:
    save(path, generation(1))
    save(path, generation(2))
    path.unlink()
    value, findings = load(path)
    assert value == {"n": 1}
    assert any("missing" in finding for finding in findings)


def test_all_generations_damaged_stops_the_start_with_the_file_and_the_remedy(path: Path) -> None:
    for number in range(1, 4):
        save(path, generation(number))
    for damaged in (path, path.with_name("topics.json.bak"), ours(path) / "previous" / "topics.json"):
        damaged.write_bytes(b"{")
    with pytest.raises(StoreConfigDamaged, match=r"topics\.json.*Put back a copy"):
        load(path)


def test_files_that_were_all_removed_are_reported_though_nothing_is_left_to_read(path: Path) -> None:
    save(path, generation(1))
    path.unlink()
    value, findings = load(path)
    assert value is None
    assert len(findings) == 1 and "is gone" in findings[0]


def test_losing_the_checksums_loses_a_check_and_nothing_else(path: Path) -> None:
    save(path, generation(1))
    (ours(path) / "config.crc").write_bytes(b"\0\0")
    value, findings = load(path)
    assert value == {"n": 1}
    assert len(findings) == 1 and "without their checksums" in findings[0]
    (ours(path) / "config.crc").unlink()
    assert load(path) == ({"n": 1}, [])


def test_a_damaged_file_never_pushes_out_a_good_bak(path: Path) -> None:
    save(path, generation(1))
    save(path, generation(2))
    path.write_bytes(b"{")
    save(path, generation(3))
    assert path.read_bytes() == generation(3)
    assert path.with_name("topics.json.bak").read_bytes() == generation(1)
    assert (ours(path) / "damaged" / "topics.json").read_bytes() == b"{"


def test_a_foreign_generation_becomes_the_bak_like_any_other(path: Path) -> None:
    save(path, generation(1))
    path.write_bytes(generation(7))
    save(path, generation(8))
    assert path.with_name("topics.json.bak").read_bytes() == generation(7)
    assert load(path) == ({"n": 8}, [])


class Crash(BaseException):
    """The machine stops here: no handler of ours runs after it."""


@pytest.mark.parametrize("history", [1, 2, 3])
def test_a_crash_at_any_step_of_a_save_leaves_the_new_or_the_generation_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: int
) -> None:
    steps = 0
    for step in range(40):
        path = tmp_path / str(step) / "config" / "topics.json"
        for number in range(1, history + 1):
            save(path, generation(number))

        left = step

        def count(real: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Crash
                left -= 1
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", count(os.replace))
            patched.setattr(os, "fsync", count(os.fsync))
            try:
                save(path, generation(9))
                finished = True
            except Crash:
                finished = False
        value, findings = load(path)
        if finished:
            assert (value, findings) == ({"n": 9}, [])
            break
        steps += 1
        assert value in ({"n": 9}, {"n": history}), (step, findings)
        assert not any("another program" in finding for finding in findings), (step, findings)
        save(path, generation(10))
        assert load(path) == ({"n": 10}, []), step
    assert steps >= 6


def test_a_full_disk_leaves_the_newest_generation_and_no_rubbish(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, generation(1))

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(path, generation(2))
    monkeypatch.undo()
    assert load(path) == ({"n": 1}, [])
    assert not list(ours(path).glob("*.tmp"))


def test_the_name_is_taken_only_after_the_bytes_are_durable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, generation(1))
    events: list[str] = []
    real_replace, real_fsync = os.replace, os.fsync

    def replace(source: Path, target: Path) -> None:
        events.append(f"rename to {Path(target).name}")
        real_replace(source, target)

    def fsync(fd: int) -> None:
        events.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        real_fsync(fd)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    save(path, generation(2))
    assert events.index("fsync topics.json.tmp") < events.index("rename to topics.json")
    assert events[-1] == "fsync config"


def test_a_file_that_may_not_be_read_is_no_reason_to_take_older_values(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, generation(1))
    save(path, generation(2))
    real = Path.read_bytes

    def read_bytes(self: Path) -> bytes:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(PermissionError):
        load(path)


def test_an_unreadable_sector_is_damage_and_gives_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(path, generation(1))
    save(path, generation(2))
    real = Path.read_bytes

    def read_bytes(self: Path) -> bytes:
        if self == path:
            raise OSError(errno.EIO, "Input/output error")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    value, findings = load(path)
    assert value == {"n": 1}
    assert any("Input/output error" in finding for finding in findings)


def test_the_checksums_may_lie_elsewhere(tmp_path: Path) -> None:
    path, crc_file = tmp_path / "a" / "x.json", tmp_path / "b" / "config.crc"
    save(path, generation(1), crc_file)
    save(path, generation(2), crc_file)
    assert load(path, crc_file) == ({"n": 2}, [])
    assert sorted(json.loads(crc_file.read_bytes())) == ["x.json", "x.json.bak"]


def test_the_default_place_of_the_checksums_is_the_roots_own_folder() -> None:
    assert json_file.crc_file_of(Path("/r/config/t.json")) == Path("/r/ropewalk/config.crc")
