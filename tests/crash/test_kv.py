"""The key-value store of three real brokers under kills and pauses: the history of all calls is linearizable."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropewalk import Kv
from ropewalk.format.dledger.entry import HEAD_SIZE
from tests.crash.campaign import chosen_seed
from tests.crash.kv_load import Load, are_equal, leaders_of, members_of
from tests.crash.ledger_group import LedgerGroup, Member
from tests.linear.kv_calls import CUTS, Book
from tests.support.long_run import LONG, long_only
from tests.support.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def test_the_store_is_linearizable_through_kills_and_pauses_of_its_members(
    tmp_path: Path, long_run: bool
) -> None:
    with one_region_under_load(tmp_path) as (group, draw):
        for number in range(30 if long_run else 3):
            time.sleep(draw.uniform(0.5, 1.0))
            leads = leaders_of(group, group.members)[0]
            victim = leads if draw.random() < 0.7 else draw.choice(group.members)
            disturb(group, victim, draw, kill=number % 2 == 0)
        time.sleep(0.5)


def test_no_write_is_lost_or_done_twice_where_regions_are_cut_under_load_and_members_die(
    tmp_path: Path, long_run: bool
) -> None:
    seed = chosen_seed()
    print(f"seed {seed}")
    draw = random.Random(seed)
    with LedgerGroup(tmp_path, settings={"ropewalkKvRegions": "".join(f"{key};" for key in CUTS)}) as group:
        until(
            lambda: len({each.id for each in leaders_of(group, group.members, 4).values()}) == 3,
            "each member leads a region", patience_s=60.0, pause_s=0.1,
        )  # fmt: skip
        load = Load(group, seed)
        load.start()
        cuts = {"", *CUTS}
        for _ in range(8 if long_run else 2):
            time.sleep(draw.uniform(0.5, 1.0))
            cut_while_its_leader_dies(group, load.book, cuts, draw)
        time.sleep(0.5)
        stop_and_read(group, load)
        assert {each.values["firstKey"] for each in members_of(group.name_server)} == {
            name.encode().hex() for name in cuts
        }
    load.judge()


def test_a_member_with_a_flipped_byte_in_a_regions_log_is_filled_again_under_load(tmp_path: Path) -> None:
    with one_region_under_load(tmp_path) as (group, draw):
        victim = draw.choice(group.members)
        region = victim.store / "kv" / "0"
        until(lambda: committed_pos(region) > 2_000, "some entries are noted as committed")
        victim.kill()
        log = region / "data" / f"{0:020d}"
        data = bytearray(log.read_bytes())
        data[draw.randrange(HEAD_SIZE, 200)] ^= 0x20  # of the body of the first entry
        log.write_bytes(data)
        victim.start()
        until(
            lambda: "votes again" in victim.errors.read_text(),
            lambda: victim.errors.read_text()[-3000:], patience_s=60.0,
        )  # fmt: skip
        assert "the log of a region is damaged" in victim.errors.read_text()
        until(lambda: not (region / "damaged").exists(), "what was put aside is removed")


@contextmanager
def one_region_under_load(folder: Path) -> Iterator[tuple[LedgerGroup, random.Random]]:
    """Start a group with one region and a load on it; read all at the end, and judge the history."""
    seed = chosen_seed()
    print(f"seed {seed}")
    with LedgerGroup(folder, settings={"ropewalkKvRegions": 1}) as group:
        leaders_of(group, group.members)
        load = Load(group, seed)
        load.start()
        yield group, random.Random(seed)
        stop_and_read(group, load)
    load.judge()


def committed_pos(region: Path) -> int:
    """Return the offset through which a region's log is noted to be committed."""
    note = region / "notes" / "commit"
    return int(json.loads(note.read_bytes())["commit"][2]) if note.exists() else 0


def stop_and_read(group: LedgerGroup, load: Load) -> None:
    """End the load, wait until members are equal, and read all that there is."""
    load.stop()
    until(lambda: are_equal(group), lambda: str(members_of(group.name_server)), patience_s=60.0, pause_s=0.1)
    load.read_all()


def cut_while_its_leader_dies(group: LedgerGroup, book: Book, cuts: set[str], draw: random.Random) -> None:
    """Cut a region at a key that is used now, kill its leader meanwhile, and start that again."""
    key = book.cut_key(draw)
    if key in cuts:
        return
    with Kv(group.name_server, timeout=30.0) as kv:
        names = {
            bytes.fromhex(each.values["firstKey"]).decode(): each.values["region"] for each in kv.status()
        }
        parent = names[max(name for name in names if name <= key)]
        cut = threading.Thread(target=kv.split, args=(key,))
        victim = leaders_of(group, group.members, len(cuts))[parent]
        cut.start()
        time.sleep(draw.choice((0, 0.01, 0.05, 0.2)))
        victim.kill()
        cut.join(30)
        assert not cut.is_alive()
    cuts.add(key)
    leaders_of(group, [each for each in group.members if each is not victim], len(cuts))
    victim.start()


@long_only
def test_a_history_of_ten_thousand_calls_over_four_regions_is_linearizable(tmp_path: Path) -> None:
    """Leaders are killed and stopped in turn, and regions are cut under load, until so many calls have ended."""
    seed = chosen_seed()
    print(f"seed {seed}")
    draw = random.Random(seed)
    with LedgerGroup(tmp_path, settings={"ropewalkKvRegions": "".join(f"{key};" for key in CUTS)}) as group:
        leaders_of(group, group.members, 4)
        load = Load(group, seed, clients=8)
        load.start()
        cuts, number = {"", *CUTS}, 0
        while load.book.operations < 10_000:
            number += 1
            time.sleep(draw.uniform(0.5, 1.5))
            if number % 4 == 3 and len(cuts) < 12:
                cut_while_its_leader_dies(group, load.book, cuts, draw)
                continue
            victim = draw.choice([*leaders_of(group, group.members, len(cuts)).values()])
            disturb(group, victim, draw, kill=number % 4 == 1, count=len(cuts))
        stop_and_read(group, load)
        print(f"{number} kills, stops and cuts; {len(cuts)} regions")
    load.judge()


def disturb(group: LedgerGroup, victim: Member, draw: random.Random, *, kill: bool, count: int = 1) -> None:
    """Kill a member, or stop it for a while, until so many regions have a leader again."""
    others = [member for member in group.members if member is not victim]
    if kill:
        victim.kill()
        leaders_of(group, others, count)
        victim.start()
    else:
        victim.signal(signal.SIGSTOP)
        leaders_of(group, others, count)
        time.sleep(draw.uniform(0, 0.3))
        victim.signal(signal.SIGCONT)


@pytest.mark.skipif(not LONG, reason="hundreds of MiB for the disks of three members: in `make test-long`")
def test_a_member_that_the_log_has_left_behind_is_given_the_state(tmp_path: Path) -> None:
    """With the limits of every day: 64 MiB of log for each snapshot, and the log behind the one before it.

    The region is cut twice while the member is away; it is killed again and again while it is given all three.
    """
    seed = chosen_seed()
    print(f"seed {seed}")
    draw = random.Random(seed)
    with LedgerGroup(tmp_path, settings={"ropewalkKvRegions": 1}) as group, Kv(group.name_server) as kv:
        leads = leaders_of(group, group.members)[0]
        kv.put("first", "value")
        until(lambda: are_equal(group), lambda: str(members_of(group.name_server)), patience_s=60.0)
        away = next(member for member in group.members if member is not leads)
        away.kill()
        for key in ("large 3", "large 4"):
            kv.split(key)
        value = random.Random(33).randbytes((1 << 20) - 100)
        for number in range(400):
            kv.put(f"large {number % 5}", value)
            begins = [
                each.values["logBegin"] for each in members_of(group.name_server) if not each.values["region"]
            ]
            if number > 100 and len(begins) == 2 and min(begins) > 32 << 20:
                break
        else:
            raise AssertionError(members_of(group.name_server))
        for _ in range(6):
            away.launch()
            time.sleep(draw.uniform(0.5, 2.0))
            away.kill()
        away.start()
        until(lambda: are_equal(group), lambda: str(members_of(group.name_server)), patience_s=60.0)
        found = [each.values for each in members_of(group.name_server) if each.values["member"] == away.id]
        assert len(found) == 3 and found[0]["logBegin"] > 0 and all(each["snapshots"] for each in found)
        kv.put("last", "value")
        until(lambda: are_equal(group), lambda: str(members_of(group.name_server)), patience_s=60.0)
