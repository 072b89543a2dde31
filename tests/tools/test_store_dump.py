import base64
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from ropewalk.format.properties import encode_properties
from ropewalk.format.record import MAGIC_V1, Record, encode_blank, encode_host, encode_record
from store.offline import reader as offline
from store.offline.reader import Damage, LogFile, UnreadableStore, find_log_files, read_log
from tests.tools.conftest import RunCommand
from tools.common.interrupts import Interrupts
from tools.storage.cli import dump_log

FILE_SIZE = 4096
KEYS = [
    "offset",
    "size",
    "topic",
    "queueId",
    "queueOffset",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "properties",
    "bodyCrc",
    "body",
    "msgId",
]
# The first worked example of the on-disk specification, as the original writes it.
EXAMPLE = bytes.fromhex(
    """
    00000073daa320a73610a68600000003000000000000000000000000000000000000000000000000
    0000018bcfe568000a0000010000c3510000018bcfe5687b0a00000200002a9f0000000000000000
    000000000000000568656c6c6f09546f70696354657374000a54414753015461674102
    """
)


class Log:
    """Writes a commit log as a broker would: records, blanks, files allocated ahead."""

    def __init__(self, directory: Path, file_size: int = FILE_SIZE, base: int = 0) -> None:
        self.folder = directory / "commitlog"
        self.folder.mkdir(parents=True)
        self.file_size = file_size
        self.end = base
        self.offsets: list[int] = []

    def path(self, offset: int) -> Path:
        return self.folder / f"{offset - offset % self.file_size:020d}"

    def write(self, offset: int, data: bytes) -> None:
        path = self.path(offset)
        if not path.exists():
            path.write_bytes(bytes(self.file_size))
        with path.open("r+b") as file:
            file.seek(offset % self.file_size)
            file.write(data)

    def put(self, body: bytes, topic: str = "T", properties: bytes = b"") -> int:
        record = self.encode(body, topic, properties)
        left = self.file_size - self.end % self.file_size
        if len(record) + 8 > left:
            self.write(self.end, encode_blank(left))
            self.end += left
            record = self.encode(body, topic, properties)
        self.write(self.end, record)
        self.offsets.append(self.end)
        self.end += len(record)
        return self.offsets[-1]

    def encode(self, body: bytes, topic: str, properties: bytes) -> bytes:
        host = encode_host("10.0.0.2", 10911)
        born = encode_host("10.0.0.1", 50001)
        return encode_record(
            topic.encode(), 1, 7, len(self.offsets), self.end, 0, 11, born, 22, host, 3, 0, body, properties
        )

    def poke(self, offset: int, data: bytes) -> None:
        with self.path(offset).open("r+b") as file:
            file.seek(offset % self.file_size)
            file.write(data)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


def fill(log: Log, count: int = 60) -> Log:
    for number in range(count):
        log.put(f"message {number}".encode() + b"." * (number % 50), f"T{number % 3}")
    return log


def test_a_record_of_the_original_is_dumped_with_exactly_the_agreed_keys(
    ropewalk: RunCommand, tmp_path: Path
) -> None:
    Log(tmp_path / "store").write(0, EXAMPLE)
    ended = ropewalk("store", "dump", tmp_path / "store", "--json")
    assert (ended.status, ended.errors) == (0, "")
    document: dict[str, Any] = ended.document
    assert list(document) == KEYS
    assert document == {
        "offset": 0,
        "size": 115,
        "topic": "TopicTest",
        "queueId": 3,
        "queueOffset": 0,
        "flag": 0,
        "sysFlag": 0,
        "bornTimestamp": 1700000000000,
        "bornHost": "10.0.0.1:50001",
        "storeTimestamp": 1700000000123,
        "storeHost": "10.0.0.2:10911",
        "reconsumeTimes": 0,
        "preparedTransactionOffset": 0,
        "properties": {"TAGS": "TagA"},
        "bodyCrc": 907060870,
        "body": base64.b64encode(b"hello").decode(),
        "msgId": "0A00000200002A9F0000000000000000",
    }


def test_every_record_of_every_file_comes_once_in_log_order(ropewalk: RunCommand, log: Log) -> None:
    fill(log)
    assert len(list(log.folder.iterdir())) > 1
    ended = ropewalk("store", "dump", log.folder.parent, "--json")
    assert ended.status == 0
    assert [document["offset"] for document in ended.documents] == log.offsets
    assert [document["queueOffset"] for document in ended.documents] == list(range(60))


def test_the_text_form_tells_where_what_and_when_in_a_line(ropewalk: RunCommand, log: Log) -> None:
    log.put(b"hello\nworld", "orders", encode_properties({"TAGS": "new", "KEYS": "k1"}))
    ended = ropewalk("store", "dump", log.folder.parent)
    (line,) = ended.lines
    assert line.split()[:2] == ["0", str(log.end)]
    assert line.endswith("orders queue 1 offset 0 tags=new keys=k1  hello\\nworld")


def test_the_commitlog_folder_itself_will_do(ropewalk: RunCommand, log: Log) -> None:
    log.put(b"x")
    assert len(ropewalk("store", "dump", log.folder).lines) == 1


@pytest.mark.parametrize("limit", [0, 1, 7, 1000])
def test_the_limit_counts_what_is_printed(ropewalk: RunCommand, log: Log, limit: int) -> None:
    fill(log)
    ended = ropewalk("store", "dump", log.folder.parent, "--topic", "T1", "--limit", limit, "--json")
    assert [document["topic"] for document in ended.documents] == ["T1"] * min(limit, 20)


def test_an_offset_in_the_middle_of_a_record_starts_at_the_next(ropewalk: RunCommand, log: Log) -> None:
    fill(log)
    for start in (0, 1, log.offsets[30], log.offsets[30] + 1, log.offsets[-1] + 1, 10**12):
        ended = ropewalk("store", "dump", log.folder.parent, "--json", "--from-offset", start)
        assert ended.status == 0
        expected = [offset for offset in log.offsets if offset >= start]
        assert [document["offset"] for document in ended.documents] == expected


def test_a_log_whose_first_files_were_deleted_is_clean(ropewalk: RunCommand, log: Log) -> None:
    fill(log)
    log.path(0).unlink()
    ended = ropewalk("store", "dump", log.folder.parent, "--json")
    assert ended.status == 0
    assert [document["offset"] for document in ended.documents] == [
        offset for offset in log.offsets if offset >= FILE_SIZE
    ]


def test_a_file_allocated_ahead_is_no_damage(ropewalk: RunCommand, log: Log) -> None:
    log.put(b"x")
    log.write(FILE_SIZE, b"")
    assert ropewalk("store", "dump", log.folder.parent).status == 0


def test_bytes_behind_a_blank_do_not_matter(ropewalk: RunCommand, log: Log) -> None:
    fill(log)
    last_in_first_file = max(offset for offset in log.offsets if offset < FILE_SIZE)
    size = struct.unpack(">i", log.path(0).read_bytes()[last_in_first_file:][:4])[0]
    behind_blank = last_in_first_file + size + 8
    log.poke(behind_blank, b"\xab" * (FILE_SIZE - behind_blank))
    ended = ropewalk("store", "dump", log.folder.parent)
    assert (ended.status, len(ended.lines)) == (0, 60)


def test_files_of_different_sizes_follow_each_other(ropewalk: RunCommand, tmp_path: Path) -> None:
    small = Log(tmp_path / "store", 1024)
    small.put(b"x" * 800)
    small.put(b"y" * 500)
    grown = small.path(1024)
    grown.write_bytes(grown.read_bytes() + bytes(5000))
    assert len(ropewalk("store", "dump", tmp_path / "store").lines) == 2


def test_an_empty_log_is_clean(ropewalk: RunCommand, log: Log) -> None:
    ended = ropewalk("store", "dump", log.folder.parent, "--json")
    assert (ended.status, ended.out) == (0, b"")


# Damage


def test_a_damaged_body_is_printed_named_and_exits_with_1(ropewalk: RunCommand, log: Log) -> None:
    fill(log)
    victim = log.offsets[20]
    log.poke(victim + 90, b"\xff")
    ended = ropewalk("store", "dump", log.folder.parent, "--json")
    assert ended.status == 1
    assert len(ended.documents) == 60
    assert f"(offset {victim})" in ended.errors
    assert str(log.path(victim)) in ended.errors
    assert "checksum" in ended.errors


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (4, b"\x00\x00\x00\x00", "no record begins here"),
        (4, b"\xde\xad\xbe\xef", "magic deadbeef"),
        (0, b"\x7f\xff\xff\xff", "claims 2147483647 bytes"),
        (0, b"\x00\x00\x00\x10", "damaged record"),
        (0, b"\xff\xff\xff\xff", "damaged record"),
        (84, b"\x7f\xff\xff\xff", "damaged record"),
        (28, struct.pack(">q", 99), "says it belongs at offset 99"),
    ],
)
def test_a_damaged_record_ends_the_dump_with_file_and_position(
    ropewalk: RunCommand, log: Log, at: int, data: bytes, words: str
) -> None:
    fill(log)
    victim = log.offsets[40]
    log.poke(victim + at, data)
    ended = ropewalk("store", "dump", log.folder.parent, "--json")
    assert ended.status == 1
    assert [document["offset"] for document in ended.documents] == log.offsets[:40]
    assert f"{log.path(victim)} at position {victim % FILE_SIZE} (offset {victim})" in ended.errors
    assert words in ended.errors


def test_a_torn_tail_is_told_from_the_end_of_the_log(ropewalk: RunCommand, log: Log) -> None:
    fill(log, 10)
    log.poke(log.end + 100, b"\x01")
    ended = ropewalk("store", "dump", log.folder.parent)
    assert ended.status == 1
    assert f"(offset {log.end})" in ended.errors
    assert f"from position {log.end + 100}" in ended.errors


def test_bytes_in_a_file_behind_the_end_are_damage(ropewalk: RunCommand, log: Log) -> None:
    fill(log, 10)
    log.write(FILE_SIZE * 2, b"")
    log.poke(FILE_SIZE * 2 + 5, b"\x01")
    ended = ropewalk("store", "dump", log.folder.parent)
    assert ended.status == 1
    assert "behind the end of the log" in ended.errors
    assert str(log.path(FILE_SIZE * 2)) in ended.errors


def test_a_missing_file_is_damage_and_what_follows_is_read(ropewalk: RunCommand, log: Log) -> None:
    fill(log, 120)
    log.path(FILE_SIZE).unlink()
    ended = ropewalk("store", "dump", log.folder.parent, "--json")
    assert ended.status == 1
    assert f"{FILE_SIZE} bytes are missing" in ended.errors
    kept = [offset for offset in log.offsets if not FILE_SIZE <= offset < 2 * FILE_SIZE]
    assert [document["offset"] for document in ended.documents] == kept


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_what_is_no_store_cannot_be_read_and_exits_with_2(
    ropewalk: RunCommand, tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    ended = ropewalk("store", "dump", tmp_path / name)
    assert ended.status == 2
    assert ended.errors.startswith("error: ")


def test_a_file_that_cannot_be_read_exits_with_2(ropewalk: RunCommand, log: Log) -> None:
    log.path(0).mkdir()
    ended = ropewalk("store", "dump", log.folder.parent)
    assert ended.status == 2
    assert str(log.path(0)) in ended.errors


# The reader itself


@pytest.mark.parametrize("window_size", [64, 200, 1000, FILE_SIZE * 2])
def test_the_size_of_the_window_does_not_matter(
    log: Log, monkeypatch: pytest.MonkeyPatch, window_size: int
) -> None:
    monkeypatch.setattr(offline, "WINDOW_SIZE", window_size)
    fill(log)
    found = [found.offset for found in read_log(find_log_files(log.folder.parent))]
    assert found == log.offsets


def test_every_single_flipped_byte_is_noticed_or_harmless(log: Log) -> None:
    """Whatever byte is damaged: the reader neither raises nor loses a record in front of it."""
    log.file_size = 1024
    for number in range(12):
        log.put(f"message {number}".encode(), properties=encode_properties({"KEYS": "k"}))
    files = find_log_files(log.folder.parent)
    intact = list(read_log(files))
    for offset in range(log.end):
        before = log.path(offset).read_bytes()[offset % 1024]
        log.poke(offset, bytes((before ^ 0xFF,)))
        found = list(read_log(files))
        before_it = sum(
            record.offset + record.size <= offset for record in intact if not isinstance(record, Damage)
        )
        assert found[:before_it] == intact[:before_it], offset
        log.poke(offset, bytes((before,)))
    assert list(read_log(files)) == intact


def test_the_log_shrinking_while_it_is_read_is_damage_and_no_crash(log: Log) -> None:
    fill(log, 5)
    path = log.path(0)
    files = (LogFile(path, 0, FILE_SIZE),)
    os.truncate(path, log.offsets[3] + 20)
    found = list(read_log(files))
    assert [each.offset for each in found if not isinstance(each, Damage)] == log.offsets[:3]
    assert isinstance(found[-1], Damage)


def test_a_file_that_vanishes_cannot_be_read(log: Log) -> None:
    fill(log, 5)
    files = find_log_files(log.folder.parent)
    log.path(0).unlink()
    with pytest.raises(UnreadableStore, match="No such file"):
        list(read_log(files))


def test_other_names_in_the_folder_are_not_part_of_the_log(log: Log) -> None:
    fill(log, 5)
    (log.folder / "notes.txt").write_text("x")
    (log.folder / "0").write_text("x")
    assert len(find_log_files(log.folder.parent)) == 1


def test_a_log_may_begin_anywhere(tmp_path: Path) -> None:
    log = Log(tmp_path / "store", 1 << 20, base=5 << 20)
    fill(log)
    files = find_log_files(tmp_path / "store")
    assert (files[0].base_offset, files[0].end_offset) == (5 << 20, 6 << 20)
    assert [found.offset for found in read_log(files)] == log.offsets


def test_a_magic_without_a_record_behind_it_is_damage(ropewalk: RunCommand, log: Log) -> None:
    log.put(b"x")
    log.poke(log.end, struct.pack(">iI", 0, MAGIC_V1))
    ended = ropewalk("store", "dump", log.folder.parent, "--json")
    assert ended.status == 1
    assert len([json.loads(line) for line in ended.lines]) == 1


def test_ctrl_c_ends_a_dump_with_a_count(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    fill(log, 4)
    interrupts = Interrupts()
    printed = 0

    def line(record: Record) -> bytes:
        nonlocal printed
        printed += 1
        interrupts.requested = printed == 2
        return b"x\n"

    dump_log(log.folder, line, interrupts)
    assert printed == 2
    assert "stopped: 2 messages printed" in capsys.readouterr().err
