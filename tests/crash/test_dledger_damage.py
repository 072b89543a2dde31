"""Flipped bytes in the logs of real members of a DLedger group: mended from a peer before the member votes again."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path

import pytest

from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head, filler_size
from tests.crash.campaign import chosen_seed
from tests.crash.ledger_group import LedgerGroup, Member
from tests.crash.ledger_load import Sender, read
from tests.support.long_run import long_only
from tests.support.waiting import until
from tools.drill.reading import compare_logs

pytestmark = [pytest.mark.crash, pytest.mark.slow]

WHOLE_AGAIN = "the log is whole again"


def segments(member: Member) -> list[Path]:
    """Return the files of a member's log, the oldest first."""
    return sorted((member.store / f"dledger-{member.id}" / "data").glob("[0-9]*"))


def entries(path: Path) -> list[tuple[int, int]]:
    """Return position and size of each entry of a segment."""
    data, at, found = path.read_bytes(), 0, []
    while len(data) - at > HEAD_SIZE and filler_size(data, at) is None and any(data[at : at + 4]):
        size = decode_head(data[at : at + HEAD_SIZE]).size
        found.append((at, size))
        at += size
    return found


def flip(path: Path, position: int) -> None:
    """Change a byte in place."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes([os.pread(fd, 1, position)[0] ^ 0x20]), position)
    finally:
        os.close(fd)


def fill(group: LedgerGroup) -> Sender:
    """Have a group store more than three segments, and agree on them."""
    sender = Sender(group, bytes(20_000))
    sender.send_to_leader_while(lambda: len(sender.acknowledged) < 170)
    agree(group)
    return sender


def agree(group: LedgerGroup) -> None:
    """Wait until all members are there and have the same log on their disks, which is committed."""

    def same() -> bool:
        found = group.status()
        ends = {end for each in found for end in (each.end, each.durable, each.committed)}
        return len(found) == len(group.members) and len(ends) == 1

    until(same, lambda: f"the members do not agree: {group.status()}", pause_s=0.2)
    time.sleep(0.3)  # the commit point is written down every tenth of a second


def end_and_compare(group: LedgerGroup, sender: Sender) -> None:
    """The members are there again: nothing is lost, and they are equal byte for byte."""
    sender.send(group.leader(), time.monotonic() + 0.3)
    agree(group)
    assert set(sender.acknowledged) <= set(read(group.leader()))
    group.kill()
    for member in group.members[1:]:
        compared = compare_logs(group.members[0].store, member.store)
        assert compared.equal, f"{group.members[0].id} and {member.id}: {compared.text}"


def places(member: Member, draw: random.Random, where: str) -> tuple[Path, int]:
    """Choose a byte of a sealed segment, or of an entry of the last one; of a head, or of a body."""
    files = segments(member)
    used = [path for path in files if entries(path)]
    path = used[-1] if where == "the last segment" else draw.choice(used[-3:-1])
    at, size = draw.choice(entries(path)[:-1])
    return path, at + (draw.randrange(8, 32) if draw.random() < 0.5 else draw.randrange(HEAD_SIZE, size))


def test_a_member_with_flipped_bytes_starts_impaired_and_is_mended_by_another(tmp_path: Path) -> None:
    draw = random.Random(chosen_seed())
    with LedgerGroup(tmp_path) as group:
        sender = fill(group)
        victim = draw.choice(group.members)
        victim.kill()
        for where in ("a sealed segment", "a sealed segment", "the last segment"):
            flip(*places(victim, draw, where))
        victim.start()
        errors = victim.errors.read_text()
        assert "impaired" in errors and WHOLE_AGAIN in errors
        end_and_compare(group, sender)


def test_members_that_are_all_damaged_mend_each_other_where_one_copy_of_each_byte_is_good(
    tmp_path: Path,
) -> None:
    draw = random.Random(chosen_seed())
    with LedgerGroup(tmp_path) as group:
        sender = fill(group)
        group.kill()
        first, second, third = group.members
        same = places(first, draw, "a sealed segment")
        for member in (first, second):  # the same byte of two members, and another one of the third
            flip(member.store / f"dledger-{member.id}" / "data" / same[0].name, same[1])
        other = [path for path in segments(third) if entries(path) and path.name != same[0].name][-2]
        flip(other, entries(other)[0][0] + HEAD_SIZE + 5)
        for member in group.members:
            member.launch()
        for member in group.members:
            member.wait()
        assert all(WHOLE_AGAIN in member.errors.read_text() for member in group.members)
        end_and_compare(group, sender)


def test_a_byte_of_which_no_member_has_a_good_copy_stops_all_starts_in_words(tmp_path: Path) -> None:
    draw = random.Random(chosen_seed())
    with LedgerGroup(tmp_path) as group:
        fill(group)
        group.kill()
        name, position = places(group.members[0], draw, "a sealed segment")
        for member in group.members:
            flip(member.store / f"dledger-{member.id}" / "data" / name.name, position)
            member.launch()
        said: dict[str, str] = {}

        def all_said() -> bool:
            for member in group.members:
                if member.process.poll() is not None:
                    said[member.id] = member.errors.read_text()
                    member.kill()
                    member.launch()  # as a supervisor does: another one may still have to hear of it
            return len(said) == len(group.members)

        until(all_said, lambda: f"not every start is refused: {sorted(said)}", pause_s=0.2)
    for errors in said.values():
        last = errors.splitlines()[-1]
        assert last.startswith('{"error":') and "no other member has good ones" in last, errors[-2000:]
        assert "Traceback" not in errors


@long_only
def test_a_byte_that_flips_while_a_member_runs_is_found_by_the_scrubber_and_mended(tmp_path: Path) -> None:
    draw = random.Random(chosen_seed())
    settings: dict[str, str | int] = {"scrubBytesPerSecond": 64 << 20}
    with LedgerGroup(tmp_path, settings=settings) as group:
        sender = fill(group)
        leader = group.leader()
        follower = next(member for member in group.members if member is not leader)
        for member in (leader, follower):
            flip_summed(*places(member, draw, "a sealed segment"))
        for member in (leader, follower):
            until(partial(is_mended, member), f"{member.id} is not mended")
        end_and_compare(group, sender)


@long_only
def test_a_leader_whose_log_is_damaged_where_a_lagging_member_needs_it_mends_it_and_goes_on(
    tmp_path: Path,
) -> None:
    draw = random.Random(chosen_seed())
    settings: dict[str, str | int] = {"scrubBytesPerSecond": 0}
    with LedgerGroup(tmp_path, settings=settings) as group:
        first = group.leader()
        lagging, leader = (member for member in group.members if member is not first)
        lagging.kill()
        sender = Sender(group, bytes(20_000))
        sender.send_while(first, lambda: len(sender.acknowledged) < 170)
        flip_summed(*places(leader, draw, "a sealed segment"))
        first.kill()
        lagging.start()  # the other one is elected, and has the byte that is needed
        until(
            lambda: "ropewalk store verify" in leader.errors.read_text(),
            lambda: f"{leader.id} does not meet the damage:\n{leader.errors.read_text()[-3000:]}",
        )
        first.start()
        agree(group)
        assert leader.process.poll() is None and is_mended(leader)
        end_and_compare(group, sender)


def flip_summed(segment: Path, position: int) -> None:
    """Change a byte of a segment that has its checksums: those that are made afterwards would be of the changed one."""
    checksums = segment.parents[2] / "ropewalk" / "checksums" / segment.name
    until(checksums.exists, f"{segment.name} gets no checksums")
    flip(segment, position)


def is_mended(member: Member) -> bool:
    """Whether a running member says that it has good bytes again."""
    return "was repaired from" in member.errors.read_text()
