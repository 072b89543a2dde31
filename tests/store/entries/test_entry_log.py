"""`EntryLog` beside a list of entries: places, cuts and flushes in any order, threads at any speed, and crashes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from ropewalk.errors import CorruptRecord
from store.log.commitlog import StoreDamaged
from tests.store.entries.host import NOTHING, SEGMENT, Entry, Host, bodies, place, point_of, run_behind


class Life:
    """A log that is used at random, with what it should hold."""

    def __init__(self, seed: int, root: Path) -> None:
        self.draw = random.Random(seed)
        self.root = root
        self.host = Host(root)
        self.model: list[Entry] = []
        """The log once all that was asked for is done."""
        self.term = 0
        self.commit = -1
        self.cuts = self.cuts_done = 0
        self.durable: list[tuple[tuple[int, int, int], int]] = []
        self.floors: dict[int, int] = {}

    def act(self) -> None:
        draw, host = self.draw, self.host
        what = draw.random()
        if what < 0.3:
            entries = run_behind(self.model[-1] if self.model else None, self.term, bodies(draw))
            skip = 0
            if self.model and draw.random() < 0.3 and self.model[-1][1] == self.term:
                last = self.model[-1]
                if point_of(last)[2] == entries[0][2]:
                    entries, skip = [last, *entries], 1
            place(host, entries, skip)
            self.model += entries[skip:]
        elif what < 0.4:
            keep = draw.randrange(self.commit, len(self.model)) if self.model else -1
            if keep < len(self.model) - 1:
                point = point_of(self.model[keep]) if keep >= 0 else NOTHING
                del self.model[keep + 1 :]
                self.cuts += 1
                self.floors[self.cuts] = keep
                host.entries.cut(*point, self.cut_done)
                self.term += 1
        elif what < 0.55:
            host.entries.flush(self.flushed)
        elif what < 0.6:
            host.has_segments = draw.random() < 0.6
        elif what < 0.65:
            self.agree()
        else:
            host.step(draw.randrange(5))

    def cut_done(self) -> None:
        self.cuts_done += 1

    def flushed(self, point: tuple[int, int, int], cuts: int) -> None:
        assert cuts <= self.cuts_done
        floor = min([point[0], *(floor for number, floor in self.floors.items() if number > cuts)])
        self.durable.append((point, cuts))
        if floor == point[0] and floor < len(self.model):
            assert point == (point_of(self.model[floor]) if floor >= 0 else NOTHING)
        if floor > self.commit and self.draw.random() < 0.3 and floor < len(self.model):
            self.commit = floor
            self.host.entries.committed(*point_of(self.model[floor]))

    def agree(self) -> None:
        """Let all be done, and compare."""
        self.host.has_segments = True
        self.host.settle()
        assert self.host.entries.end == (point_of(self.model[-1]) if self.model else NOTHING)
        assert self.host.read_all() == self.model
        self.arrived_as_placed()
        assert self.cuts_done == self.cuts == self.host.entries.cuts
        rows: list[tuple[int, int, int]] = []
        for index, term, _pos, _data in self.model:
            if not rows or rows[-1][0] != term:
                rows.append((term, index, point_of(self.model[index - 1])[2] if index else 0))
        assert list(self.host.entries.rows) == rows
        assert not self.host.stuck or self.host.stuck[-1] is False

    def arrived_as_placed(self) -> None:
        """Compare what is kept of the bytes that came with what stands in the log."""
        for _index, _term, pos, data in self.model[-8:]:
            arrived = self.host.entries.arrived.find(pos, pos + len(data))
            assert arrived is None or (arrived.base_offset, arrived.map) == (pos, data)

    def killed(self, root: Path) -> None:
        """Start again from what the file system has at this moment."""
        written = self.host.entries.end
        shutil.copytree(self.root, root)
        host = Host(root)
        found = host.read_all()
        assert len(found) >= self.commit + 1 or not found
        assert host.found.doubt is None, "whole entries behind a hole, after a kill"
        pending = [floor for number, floor in self.floors.items() if number > self.cuts_done]
        kept = min([written[0], len(self.model) - 1, *pending]) + 1
        assert found[:kept] == self.model[:kept] and len(found) >= kept
        if found:
            assert host.entries.end == point_of(found[-1])
        host.close()


@pytest.mark.parametrize("seed", range(30))
def test_it_holds_what_a_list_of_entries_would_hold(seed: int, tmp_path: Path) -> None:
    life = Life(seed, tmp_path / "log")
    life.host.entries.save(1, "n0", lambda: None)
    life.host.settle()
    for number in range(150):
        life.act()
        if number % 50 == 49:
            life.killed(tmp_path / f"killed-{number}")
    life.agree()
    life.host.close()
    again = Host(tmp_path / "log")
    assert again.read_all() == life.model
    assert again.found.commit[0] == life.commit
    assert again.entries.ballot == (1, "n0")
    again.close()


def filled(root: Path, count: int = 30, commit: int = 9) -> list[Entry]:
    """Write `count` entries of 200 bytes, through `commit` of which is written down, and stop in good order."""
    host = Host(root)
    host.entries.save(3, "n1", lambda: None)
    entries: list[Entry] = []
    for _ in range(count):
        new = run_behind(entries[-1] if entries else None, 3, [bytes(range(200))])
        place(host, new)
        host.settle()
        entries += new
    host.entries.flush(lambda point, cuts: None)
    host.settle()
    host.entries.committed(*point_of(entries[commit]))
    host.close()
    return entries


def flip(root: Path, offset: int) -> None:
    path = root / "dledger-n0" / "data" / f"{offset // SEGMENT * SEGMENT:020d}"
    data = bytearray(path.read_bytes())
    data[offset % SEGMENT] ^= 0xFF
    path.write_bytes(data)


def test_a_torn_end_is_cut_and_kept_aside(tmp_path: Path) -> None:
    entries = filled(tmp_path)
    flip(tmp_path, entries[-1][2] + 100)
    host = Host(tmp_path)
    assert host.read_all() == entries[:-1]
    assert host.found.doubt is None
    assert any("dead bytes" in finding for finding in host.found.findings)
    host.close()


def test_a_lost_currterm_stops_the_start_in_words(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "dledger-n0" / "currterm").unlink()
    with pytest.raises(StoreDamaged, match="could vote twice in one term"):
        Host(tmp_path)


def test_entries_that_reach_the_disk_before_the_first_ballot_leave_a_log_that_starts(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.entries.save(3, "n1", lambda: None)  # no step of the storage thread: the power goes before it
    entries = run_behind(None, 3, [b"x" * 100])
    place(host, entries)
    again = Host(tmp_path)
    assert again.read_all() == entries and again.entries.ballot == (0, "")
    again.close()


def test_a_currterm_that_says_nothing_stops_the_start_in_words(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "dledger-n0" / "currterm").write_text("garbage")
    with pytest.raises(StoreDamaged, match="names no term"):
        Host(tmp_path)


def test_a_log_that_ends_before_its_commit_point_stops_the_start_in_words(tmp_path: Path) -> None:
    filled(tmp_path, commit=29)
    data = tmp_path / "dledger-n0" / "data"
    sorted(data.iterdir())[-1].unlink()
    with pytest.raises(StoreDamaged, match="ends before log offset"):
        Host(tmp_path)


def test_without_a_commit_note_all_heads_are_read(tmp_path: Path) -> None:
    entries = filled(tmp_path)
    (tmp_path / "ropewalk" / "dledger" / "commit").unlink()
    host = Host(tmp_path)
    assert host.read_all() == entries
    assert host.entries.rows == ((3, 0, 0),)
    host.close()


def test_the_files_of_dledger_are_written_beside_the_log(tmp_path: Path) -> None:
    filled(tmp_path)
    ledger = tmp_path / "dledger-n0"
    assert (ledger / "currterm").read_text() == "currTerm=3\nvoteLeader=n1\n"
    assert (ledger / "checkpoint").read_text() == "endIndex=29\ncommittedIndex=9\n"


def test_an_incarnation_stays_and_a_wiped_member_gets_another(tmp_path: Path) -> None:
    filled(tmp_path)
    first = Host(tmp_path)
    drawn = first.entries.incarnation
    first.close()
    second = Host(tmp_path)
    assert second.entries.incarnation == drawn and len(drawn) == 16
    second.close()
    shutil.rmtree(tmp_path)
    third = Host(tmp_path)
    assert third.entries.incarnation != drawn
    third.close()


def test_a_run_that_is_another_one_is_refused_before_anything_changes(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (entry,) = run_behind(None, 3, [b"x" * 100])
    with pytest.raises(CorruptRecord):
        host.entries.place(0, 1, 4, 0, entry[3], 0)
    assert host.entries.end == NOTHING
    host.close()
