"""The log of a DLedger member, read from its files without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.format.dledger.entry import HEAD_SIZE, encode_entries, encode_filler
from ropewalk.format.record import Record, encode_record
from store.offline.reader import Damage, UnreadableStore, find_log_files, read_log
from tests.store.worlds import HOST

SIZE = 1024


def write_log(root: Path, count: int) -> list[bytes]:
    """Write so many entries as DLedger would, in files of one KiB; their bodies."""
    folder = root / "dledger-n0" / "data"
    folder.mkdir(parents=True)
    data, bodies = b"", [f"message {number}".encode() * (number % 5) for number in range(count)]
    for number, body in enumerate(bodies):
        offset = len(data) + HEAD_SIZE
        record = record_of(body, number, offset)
        if offset % SIZE + len(record) + 8 > SIZE or offset % SIZE < HEAD_SIZE:
            data += encode_filler(SIZE - len(data) % SIZE)
            record = record_of(body, number, len(data) + HEAD_SIZE)
        data += encode_entries(number, 1 + number // 7, len(data), [record])
    for base in range(0, len(data), SIZE):
        (folder / f"{base:020d}").write_bytes(data[base : base + SIZE].ljust(SIZE, b"\0"))
    return bodies


def record_of(body: bytes, number: int, offset: int) -> bytes:
    return encode_record(b"T", 0, 0, number, offset, 0, 7, HOST, 8, HOST, 0, 0, body, b"K\x01v\x02")


def test_every_record_is_read_from_each_name_of_the_place(tmp_path: Path) -> None:
    bodies = write_log(tmp_path, 40)
    for place in (tmp_path, tmp_path / "dledger-n0", tmp_path / "dledger-n0" / "data"):
        found = list(read_log(find_log_files(place)))
        assert [each.body for each in found if isinstance(each, Record)] == bodies
        assert len(found) == 40 and len(find_log_files(place)) > 5
    middle = found[20]
    assert isinstance(middle, Record)
    assert next(read_log(find_log_files(tmp_path), middle.offset)) == middle


def test_the_logs_of_several_members_are_not_taken_for_one(tmp_path: Path) -> None:
    write_log(tmp_path, 3)
    (tmp_path / "dledger-n1" / "data").mkdir(parents=True)
    with pytest.raises(UnreadableStore, match=r"logs of 2 members: name one of .*dledger-n0.*dledger-n1"):
        find_log_files(tmp_path)
    assert len(list(read_log(find_log_files(tmp_path / "dledger-n0")))) == 3


def test_every_flipped_byte_of_an_entry_is_told_and_costs_no_record_in_front_of_it(tmp_path: Path) -> None:
    write_log(tmp_path, 5)
    files = find_log_files(tmp_path)
    intact = [each for each in read_log(files) if isinstance(each, Record)]
    end = intact[-1].offset + intact[-1].size
    unsaid: set[int] = set()
    for file in files:
        data = file.path.read_bytes()
        for position in range(min(SIZE, end - file.base_offset)):
            file.path.write_bytes(data[:position] + bytes((data[position] ^ 0xFF,)) + data[position + 1 :])
            found = list(read_log(files))
            offset = file.base_offset + position
            whole = [each for each in intact if each.offset + each.size <= offset]
            assert [each for each in found if isinstance(each, Record)][: len(whole)] == whole
            if not any(isinstance(each, Damage) for each in found):
                unsaid.add(offset)
        file.path.write_bytes(data)
    heads = [record.offset - HEAD_SIZE for record in intact]
    # A term, and two fields that DLedger leaves at zero, are nowhere else to be compared with.
    spared = {head + at for head in heads for at in (*range(16, 24), *range(32, 40))}
    fillers = set(range(end)) - {at for r in intact for at in range(r.offset - HEAD_SIZE, r.offset + r.size)}
    assert unsaid <= spared | fillers
