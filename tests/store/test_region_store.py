"""The log of a region: what is appended is applied in order, and again by the next start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ropewalk.format.dledger.entry import HEAD_SIZE
from store.log.commitlog import StoreDamaged
from tests.store.region_world import SEGMENT, Region, filled, term_body


def test_a_start_applies_everything_again_over_many_files(tmp_path: Path) -> None:
    applied = filled(tmp_path)
    again = Region(tmp_path)
    assert again.applied == applied and again.findings == ()
    assert len(again.store.log.segments) > 3
    again.lead(2)
    assert again.append(b"next") == 62
    again.commit()
    assert again.applied[-2:] == [(61, 2, term_body(2)), (62, 2, b"next")]
    again.store.close()


def test_what_was_not_committed_is_not_applied_by_a_start(tmp_path: Path) -> None:
    applied = filled(tmp_path)
    region = Region(tmp_path)
    region.lead(2)
    region.append(b"of nobody")
    region.store.close()
    again = Region(tmp_path)
    assert again.applied == applied
    assert again.store.entries.end[0] == 62, "a leader may commit it yet"
    again.store.close()


def test_a_damaged_command_stops_the_start_and_is_not_passed_over(tmp_path: Path) -> None:
    filled(tmp_path)
    path = sorted((tmp_path / "data").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[HEAD_SIZE + 140] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match="there is no whole entry"):
        Region(tmp_path)


def test_after_it_was_told_to_follow_nothing_of_the_old_term_is_handed_out(tmp_path: Path) -> None:
    region = Region(tmp_path)
    region.lead(1)
    region.store.take_appended(1 << 20)
    region.store.append(b"x")
    region.store.follow()
    assert region.store.take_appended(1 << 20) == ()
    region.store.close()


def test_commands_of_a_turn_are_numbered_at_once_and_written_in_order_over_many_files(tmp_path: Path) -> None:
    region = Region(tmp_path)
    region.lead(1)
    draw, commands = random.Random(7), []
    while len(region.store.log.segments) < 4:
        for _ in range(30):
            command = draw.randbytes(draw.choice((1, 300, 9_000)))
            if (index := region.store.append(command)) is None:
                break
            commands.append(command)
            assert index == len(commands)
        runs = region.store.take_appended(SEGMENT)
        assert all(len(data) == size for *_run, size, data in runs)
        region.commit()
    assert region.applied[1:] == [(number, 1, each) for number, each in enumerate(commands, 1)]
    region.store.close()
    assert Region(tmp_path).applied == region.applied


def test_commands_that_were_not_taken_before_the_lead_was_lost_leave_no_trace(tmp_path: Path) -> None:
    region = Region(tmp_path)
    region.lead(1)
    region.store.take_appended(SEGMENT)
    region.commit()
    assert region.store.append(b"of nobody") == 1
    region.store.follow()
    region.lead(2)
    region.append(b"next")
    region.commit()
    assert region.applied[1:] == [(1, 2, term_body(2)), (2, 2, b"next")]
    region.store.close()
