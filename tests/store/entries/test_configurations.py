"""The configurations of a log of entries, over starts: of the note of the commit point, and of entries behind it."""

from __future__ import annotations

from pathlib import Path

from ropewalk.format.dledger.configuration import Configuration, encode_configuration
from ropewalk.format.dledger.entry import HEAD_SIZE, encode_entries
from ropewalk.format.names import TERM_TOPIC
from ropewalk.format.record import encode_record
from store.entries.files import CommitNote, LedgerFiles
from store.io.disk import Disk
from tests.store.entries.host import SEGMENT, Entry, Host, point_of
from tests.store.entries.records import encoded
from tests.store.worlds import HOST

THREE = ("n0", "n1", "n2")
FIRST = Configuration(2, "n0", THREE, addresses={"n0": "h:1"})
JOINT = Configuration(2, "n0", (*THREE, "n3"), THREE, addresses={"n0": "h:1", "n3": "h:4"})
FINAL = Configuration(2, "n0", (*THREE, "n3"), addresses={"n0": "h:1", "n3": "h:4"})
CARRIED = {0: FIRST, 3: JOINT, 5: FINAL}
COUNT = 8


def carrying(number: int, pos: int, found: Configuration) -> bytes:
    """Return the entry that carries a configuration."""
    body = encode_configuration(found)
    record = encode_record(
        TERM_TOPIC.encode(), 0, 0, number, pos + HEAD_SIZE, 0, 7, HOST, 8, HOST, 0, 0, body, b""
    )
    return encode_entries(number, found.term, pos, [record])


def write_log(root: Path, carried: dict[int, Configuration]) -> list[Entry]:
    """Write a log with configurations at these indexes; its second segment begins with entry 5."""
    folder = root / "dledger-n0" / "data"
    folder.mkdir(parents=True)
    entries: list[Entry] = []
    for base, numbers in ((0, range(5)), (SEGMENT, range(5, COUNT))):
        data = b""
        for number in numbers:
            pos = base + len(data)
            entry = carrying(number, pos, carried[number]) if number in carried else encoded(number, pos)
            entries.append((number, 2, pos, entry))
            data += entry
        if base == 0:
            data += (-1).to_bytes(4, signed=True) + (SEGMENT - len(data)).to_bytes(4)
        (folder / f"{base:020d}").write_bytes(data.ljust(SEGMENT, b"\0"))
    files(root).save_ballot(2, "n0")
    return entries


def files(root: Path) -> LedgerFiles:
    return LedgerFiles(root / "dledger-n0", root / "ropewalk" / "dledger", Disk())


def test_a_start_without_a_note_reads_the_configurations_out_of_the_log(tmp_path: Path) -> None:
    write_log(tmp_path, CARRIED)
    host = Host(tmp_path)
    assert host.entries.configurations == tuple(CARRIED.items())
    host.close()


def test_behind_the_commit_point_they_are_read_and_through_it_they_were_noted(tmp_path: Path) -> None:
    entries = write_log(tmp_path, CARRIED)
    # A snapshot's log begins somewhere: what is noted need not stand in an entry that is here.
    noted = Configuration(1, "n1", ("n1",))
    files(tmp_path).save_commit(CommitNote(point_of(entries[3]), [(2, 0, 0)], [(2, noted)]), 7)
    host = Host(tmp_path)
    assert host.entries.configurations == ((2, noted), (5, FINAL))
    host.close()


def test_what_the_log_carries_through_its_commit_point_is_noted_where_it_differs(tmp_path: Path) -> None:
    entries = write_log(tmp_path, CARRIED)
    again = Configuration(7, "n1", FINAL.voters, (), (), FINAL.addresses)  # as the next term opens
    host = Host(tmp_path)
    host.entries.configured([*CARRIED.items(), (6, again), (7, Configuration(7, "n1", ("n1",)))])
    host.entries.committed(*point_of(entries[6]))
    host.close()
    note = files(tmp_path).load_commit()
    assert note is not None and note.configurations == list(CARRIED.items())


def test_a_log_from_before_members_could_change_tells_who_opened_its_terms(tmp_path: Path) -> None:
    entries = write_log(tmp_path, {0: FIRST, 5: Configuration(3, "n1", THREE)})
    rows = [
        (2, 0, 0),
        (3, 5, point_of(entries[4])[2]),
    ]  # the second at the head of a segment, behind a filler
    files(tmp_path).save_commit(CommitNote(point_of(entries[7]), rows), 7)
    host = Host(tmp_path)
    assert [(index, found.voters) for index, found in host.entries.configurations] == [(0, THREE), (5, THREE)]
    host.close()
