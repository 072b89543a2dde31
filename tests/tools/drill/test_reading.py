"""What the files of stopped members say, and what is done to them."""

import random
import shutil
from pathlib import Path

import pytest

from ropewalk.format.record import encode_blank, encode_host, encode_record, record_size
from ropewalk.format.sidecar import Sidecar
from tools.drill.messages import Identity, body_of
from tools.drill.reading import compare_logs, read_replica
from tools.drill.testbed import damage
from tools.drill.testbed.group import CannotRun

SEGMENT = 4096
HOST = encode_host("127.0.0.1", 1)
RUN, TOPIC = "run1", "load"


def write_log(store: Path, count: int, *, first: int = 0, ahead: int = 0) -> Path:
    """Messages 1 to `count` of one lane, in segments allocated ahead; segments before `first` are not there."""
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    segments: list[bytearray] = [bytearray(SEGMENT)]
    position = 0
    for number in range(1, count + 1):
        body = body_of(RUN, Identity(0, number, 0), 200)
        size = record_size(len(TOPIC), len(body), 0, 8, 8)
        if position + size + 8 > SEGMENT:
            segments[-1][position : position + 8] = encode_blank(SEGMENT - position)
            segments.append(bytearray(SEGMENT))
            position = 0
        offset = (len(segments) - 1) * SEGMENT + position
        record = encode_record(TOPIC.encode(), 0, 0, number - 1, offset, 0, 1, HOST, 2, HOST, 0, 0, body, b"")
        segments[-1][position : position + len(record)] = record
        position += len(record)
    segments += [bytearray(SEGMENT) for _ in range(ahead)]
    for index, content in enumerate(segments):
        if index >= first:
            (folder / f"{index * SEGMENT:020}").write_bytes(content)
    return store


def test_the_same_log_is_equal_however_far_it_is_allocated_ahead(tmp_path: Path) -> None:
    one, other = write_log(tmp_path / "a", 30), write_log(tmp_path / "b", 30, ahead=2)
    assert compare_logs(one, other).equal
    assert compare_logs(other, one).equal


def test_what_retention_removed_from_one_is_left_out(tmp_path: Path) -> None:
    one, other = write_log(tmp_path / "a", 40), write_log(tmp_path / "b", 40, first=1)
    compared = compare_logs(one, other)
    assert compared.equal
    assert f"from offset {SEGMENT}" in compared.text


@pytest.mark.parametrize("position", [0, 777, SEGMENT - 1])
def test_one_byte_makes_the_difference(position: int, tmp_path: Path) -> None:
    one = write_log(tmp_path / "a", 40)
    other = Path(shutil.copytree(one, tmp_path / "b"))
    path = other / "commitlog" / f"{SEGMENT:020}"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    compared = compare_logs(one, other)
    assert not compared.equal
    assert compared.text == f"they differ at log offset {SEGMENT + position}"


def test_a_message_more_makes_the_difference(tmp_path: Path) -> None:
    assert not compare_logs(write_log(tmp_path / "a", 30), write_log(tmp_path / "b", 31)).equal


def test_two_empty_logs_are_equal_and_an_empty_one_is_no_copy(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
    assert compare_logs(tmp_path / "a", tmp_path / "b").equal
    assert not compare_logs(tmp_path / "a", write_log(tmp_path / "c", 1)).equal


def test_a_replicas_messages_are_told_apart_from_everything_else(tmp_path: Path) -> None:
    store = write_log(tmp_path / "a", 30)
    replica = read_replica(store, TOPIC, RUN)
    assert [found.identity for found in replica.found] == [Identity(0, number, 0) for number in range(1, 31)]
    assert [found.queue_offset for found in replica.found] == list(range(30))
    assert not replica.damages
    assert read_replica(store, "other", RUN).found == []
    assert {found.identity for found in read_replica(store, TOPIC, "run2").found} == {None}


def test_a_byte_is_changed_in_a_sealed_message_and_found(tmp_path: Path) -> None:
    store = write_log(tmp_path / "a", 40, ahead=1)
    chosen = damage.choose_byte(store, random.Random(1))
    assert chosen is not None and chosen.is_whole()
    chosen.flip()
    assert not chosen.is_whole()
    assert len(read_replica(store, TOPIC, RUN).damages) == 1
    assert damage.choose_byte(write_log(tmp_path / "b", 3), random.Random(1)) is None


def test_a_change_can_be_noticed_once_the_byte_is_under_a_checksum(tmp_path: Path) -> None:
    byte = damage.Byte(tmp_path / "commitlog" / f"{0:020d}", 700, 7)
    path = tmp_path / "ropewalk" / "checksums" / byte.path.name
    assert not damage.is_summed(tmp_path, byte)
    path.parent.mkdir(parents=True)
    for covered, summed in ((512, False), (1024, True)):
        path.write_bytes(Sidecar(0, 4096, 512, covered, [1] * (covered // 512)).encode())
        assert damage.is_summed(tmp_path, byte) is summed
    path.write_bytes(path.read_bytes()[:-1])
    assert not damage.is_summed(tmp_path, byte), "a torn file holds none"


def test_a_small_disk_fills_up_and_has_room_again(tmp_path: Path) -> None:
    try:
        with damage.small_disk(tmp_path / "disk", 4 << 20):
            assert not damage.is_full(tmp_path / "disk")
            ballast = damage.fill(tmp_path / "disk")
            assert ballast.size > 3 << 20
            assert damage.is_full(tmp_path / "disk")
            with pytest.raises(OSError, match="No space left"):
                (tmp_path / "disk" / "more").write_bytes(bytes(100_000))
            ballast.remove()
            assert not damage.is_full(tmp_path / "disk")
    except CannotRun as exc:
        pytest.skip(str(exc))
    assert not (tmp_path / "disk" / "ballast").exists()
