"""Several regions in three members' processes: how a store is cut, and what goes along when a region is cut in two."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from broker.settings.dledger import region_cuts, region_keys
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.kv.commands import Outcome, Status, decode_found
from ropewalk.format.kv.items import (
    AcquireLock,
    Count,
    DeleteRange,
    Guard,
    Lease,
    NextSequence,
    Operation,
    Put,
    encode_values,
)
from ropewalk.format.remoting import Command
from tests.broker.kv.members import KvGroup, Session, cut_of, get, outcome_of, region, regions
from tests.support.ledger_brokers import Member


def ask_split(group: KvGroup, key: bytes, id: int = 0) -> Command:
    leader = group.region_leader(id)
    return leader.connect().call(RequestCode.ROPEWALK_KV_SPLIT, cut_of(leader, id), encode_values([key]))


def split(group: KvGroup, key: bytes, id: int = 0) -> int:
    """Cut a region, and return the id of the new one once it has a leader.

    A leader that hands over in that moment does nothing, and is followed by the one that is preferred.
    """
    while (answer := ask_split(group, key, id)).code == ResponseCode.SYSTEM_ERROR:
        pass
    (result,) = outcome_of(answer).results
    assert isinstance(result, Count)
    group.region_leader(result.number)
    return result.number


def ranges(member: Member) -> dict[int, tuple[bytes, bytes]]:
    cuts = [each.machine.region for each in regions(member)]
    return {cut.id: (cut.start, cut.end) for cut in cuts}


def test_lines_of_the_log_call_a_region_by_the_number_that_operators_know(tmp_path: Path) -> None:
    with capture_logs() as told, KvGroup(tmp_path, "2") as group:
        group.region_leader(0)
        group.region_leader(1)
        assert group.members[0].member.kv is not None
    named = {each["region"] for each in told if each["event"] == "role" and "region" in each}
    assert named == {0, 1}
    assert any(each["event"] == "role" and "region" not in each for each in told), "the group of the messages"
    assert not [each for each in told if "group" in each]


def test_a_new_store_is_cut_as_its_setting_says_and_each_member_leads_some_regions(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "4") as group:
        group.until(lambda: all(len(list(regions(each))) == 4 for each in group.members.values()), "four")
        assert ranges(group.members[0]) == {0: (b"", b"9"), 1: (b"9", b"i"), 2: (b"i", b"r"), 3: (b"r", b"")}
        group.until(
            lambda: [group.region_leader(id).id for id in (1, 2, 3)] == ["n1", "n2", "n0"],
            "members take turns",
        )
        for id, key in enumerate((b"1", b"a", b"k", b"z")):
            leader = group.region_leader(id)
            Session(leader, id).write(leader, Put(key, b"v"))
            assert [get(each, key, region=id) for each in group.members.values()] == [[b"v"]] * 3
        group.all_applied()


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("0", ()),
        ("1", ()),
        ("2", (b"i",)),
        ("16", tuple(b"2469bdfikmortvx"[at : at + 1] for at in range(15))),
        ("n;g;", (b"g", b"n")),
        ("5;", (b"5",)),
    ],
)
def test_the_setting_is_a_number_or_keys(text: str, keys: tuple[bytes, ...]) -> None:
    assert region_keys(region_cuts(text)) == keys


@pytest.mark.parametrize(
    "text", ["17", "-1", "g", "g;n", ";", "a;a;", "a;;b;", "four", "a;b;c;d;e;f;g;h;i;j;k;l;m;n;o;p;"]
)
def test_a_setting_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a number of regions from 0 to 16"):
        region_cuts(text)


def test_a_cut_takes_values_sequences_and_locks_along_and_members_stay_equal(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        session.write(leader, *(Put(b"%02d" % number, b"x") for number in range(20)), NextSequence(b"15", 7))
        held = session.write(leader, AcquireLock(b"17", b"me", 60_000)).results[0]
        assert isinstance(held, Lease)
        new = split(group, b"10")
        upper = group.region_leader(new)
        assert ranges(upper) == {0: (b"", b"10"), new: (b"10", b"")}
        assert get(upper, b"10", b"19", region=new) == [b"x"] * 2
        other = Session(upper, new)
        assert other.write(upper, NextSequence(b"15", 1)).results == (Count(7),)
        assert other.write(upper, Guard(b"17", held.token), Put(b"10", b"y")).status is Status.OK
        (found,) = other.write(upper, AcquireLock(b"17", b"other", 1)).results
        assert isinstance(found, Lease) and (found.granted, found.owner) == (0, b"me")
        group.all_applied()
        assert len(region(upper).machine.values) == len(region(upper, new).machine.values) == 10


def test_the_next_holder_of_a_lock_that_went_to_another_log_has_a_higher_token(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        for number in range(20):
            session.write(leader, Put(b"k", b"%d" % number))
        before = session.write(leader, AcquireLock(b"k", b"me", 1)).results[0]
        new = split(group, b"g")
        upper = group.region_leader(new)
        after = Session(upper, new).write(upper, AcquireLock(b"k", b"other", 1)).results[0]
        assert isinstance(before, Lease) and isinstance(after, Lease) and after.granted
        assert region(upper, new).machine.applied < 5 and after.token > before.token


def test_a_write_that_is_sent_again_behind_a_cut_is_applied_once(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        assert session.write(leader, NextSequence(b"s", 1)).results == (Count(0),)
        new = split(group, b"g")
        upper = group.region_leader(new)
        session.cut = cut_of(upper, new)
        assert session.write(upper, NextSequence(b"s", 1), seq=1).results == (Count(0),)
        assert session.write(upper, NextSequence(b"s", 1)).results == (Count(1),)


def test_a_write_of_an_older_cut_is_told_its_outcome_or_that_it_was_and_will_be_none(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        both = (Put(b"a", b"1"), Put(b"z", b"1"))
        assert session.write(leader, *both).status is Status.OK
        new = split(group, b"g")
        leader = group.region_leader()
        assert session.write(leader, *both, seq=1).status is Status.OK, "it was applied when both were one"
        answer = leader.connect().call(*session.request(*both))
        assert outcome_of(answer) == Outcome(Status.WRONG_EPOCH)
        told = {each["id"]: each for each in msgspec.json.decode(answer.ext["regions"])["regions"]}
        assert {id: (each["start"], each["end"], each["epoch"]) for id, each in told.items()} == {
            0: ("", b"g".hex(), 2),
            new: (b"g".hex(), "", 2),
        }


def test_a_write_whose_region_is_cut_before_it_is_applied_is_refused_then(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        client = leader.connect()
        cut = client.ask(RequestCode.ROPEWALK_KV_SPLIT, cut_of(leader, 0), encode_values([b"g"]))
        group.until(lambda: len(region(leader).machine.ids) == 1 and region(leader).waiting, "it is appended")
        late = leader.connect().ask(*session.request(Put(b"z", b"lost")))
        writer = leader.connect()
        writer.ask(*session.request(Put(b"a", b"kept")))
        del late
        assert outcome_of(client.answer(cut)).status is Status.OK
        refused = writer.answer()
        assert outcome_of(refused).status is Status.WRONG_EPOCH
        told = msgspec.json.decode(refused.ext["regions"])["regions"]
        assert [each["start"] for each in told] == ["", b"g".hex()], "no key is in none"
        new = region(leader).machine.ids.get(0, 1)
        assert new is not None
        upper = group.region_leader(new)
        assert get(upper, b"z", region=new) == [None] == get(group.region_leader(), b"a")


def refused(answer: Command) -> str:
    assert answer.code == ResponseCode.INVALID_PARAMETER, answer
    return answer.remark or ""


def test_requests_for_keys_that_are_elsewhere_are_refused_with_the_regions(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "g;n;") as group:
        group.until(lambda: all(len(list(regions(each))) == 3 for each in group.members.values()), "three")
        leader = group.region_leader(1)
        session = Session(leader, 1)
        operations: tuple[Operation, ...] = (
            Put(b"a", b""),
            Put(b"n", b""),
            DeleteRange(b"g", b""),
            DeleteRange(b"g", b"nn"),
        )
        for operation in operations:
            assert session.write(leader, operation).status is Status.WRONG_EPOCH
        assert session.write(leader, DeleteRange(b"g", b"n")).status is Status.OK
        for code, body in (
            (RequestCode.ROPEWALK_KV_GET, [b"a"]),
            (RequestCode.ROPEWALK_KV_MULTI_GET, [b"g", b"n"]),
            (RequestCode.ROPEWALK_KV_SCAN, [b"n", b""]),
        ):
            answer = leader.connect().call(code, cut_of(leader, 1), encode_values(body))
            assert decode_found(answer.body)[0] is Status.WRONG_EPOCH and "regions" in answer.ext
        answer = leader.connect().call(
            RequestCode.ROPEWALK_KV_SPLIT, cut_of(leader, 1), encode_values([b"a"])
        )
        assert outcome_of(answer).status is Status.WRONG_EPOCH
        assert "begins at this key" in refused(ask_split(group, b"g", 1))


def test_a_store_has_sixteen_regions_at_most(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "16") as group:
        group.until(lambda: all(len(list(regions(each))) == 16 for each in group.members.values()), "sixteen")
        assert "as many as a store may have" in refused(ask_split(group, b"bb", 5))


def test_a_region_is_cut_by_a_leader_that_does_not_lead_region_0(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "g;n;") as group:
        group.until(lambda: all(len(list(regions(each))) == 3 for each in group.members.values()), "three")
        apart: list[int] = []

        def led_apart() -> bool:
            apart[:] = [id for id in (1, 2) if group.region_leader(id) is not group.region_leader()]
            return bool(apart)

        group.until(led_apart, "the leads are spread")
        (id, *_others) = apart
        new = split(group, b"h" if id == 1 else b"p", id)
        assert new == 3 and region(group.region_leader(new), new).machine.region.epoch > 1
        group.all_applied()


def test_a_member_that_was_away_during_a_cut_comes_to_the_same_regions(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        away = next(index for index, each in group.members.items() if each is not leader)
        group.stop(away)
        Session(leader).write(leader, Put(b"a", b"1"), Put(b"z", b"2"))
        new = split(group, b"g")
        upper = group.region_leader(new)
        Session(upper, new).write(upper, Put(b"z", b"3"))
        back = group.start(away)
        group.until(lambda: regions(back).get(new) is not None, "it has the region")
        group.region_leader(new)
        group.all_applied()
        assert get(back, b"z", region=new) == [b"3"]


def test_a_restart_of_all_members_has_the_regions_and_what_was_written_to_them(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "g;") as group:
        group.until(lambda: all(len(list(regions(each))) == 2 for each in group.members.values()), "two")
        new = split(group, b"p", 1)
        for id, key in ((0, b"a"), (1, b"h"), (new, b"q")):
            leader = group.region_leader(id)
            Session(leader, id).write(leader, Put(key, b"v"))
        for index in list(group.members):
            group.stop(index)
        for index in range(3):
            group.start(index, ropewalkKvRegions="4")  # of a store that is cut already it says nothing
        for id, key in ((0, b"a"), (1, b"h"), (new, b"q")):
            assert get(group.region_leader(id), key, region=id) == [b"v"]
        group.all_applied()
        assert len(ranges(group.members[0])) == 3
