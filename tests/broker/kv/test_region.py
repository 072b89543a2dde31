"""A region in three members' processes: writes at its leader, reads anywhere, and who is told what when it dies."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import msgspec
import pytest
import trio

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.kv.commands import Status, decode_found
from ropewalk.format.kv.items import (
    AcquireLock,
    Count,
    Lease,
    NextSequence,
    Put,
    encode_items,
    encode_values,
)
from ropewalk.format.remoting import Command
from store.log.commitlog import StoreDamaged
from tests.broker.harness import Client
from tests.broker.kv.members import REGION, KvGroup, Session, get, outcome_of, region, write_patiently
from tests.support.ledger_brokers import LedgerBrokers, Member


def test_what_was_answered_at_the_leader_is_read_at_once_at_every_member(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        for number in range(5):
            session.write(leader, Put(b"k", b"%d" % number), Put(b"l", b"x"))
            for member in group.members.values():
                assert get(member, b"k", b"none", b"l") == [b"%d" % number, None, b"x"], member.id
        group.all_applied()


def test_a_follower_takes_no_write_and_tells_where_the_leader_is(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        follower = next(each for each in group.members.values() if each is not leader)
        answer = follower.connect().call(*session.request(Put(b"k", b"v")))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.ext["leader"] == ":".join(map(str, leader.broker.context.address))
        assert f"the leader it knows is {leader.id}" in (answer.remark or "")


def test_a_write_of_which_the_answer_was_lost_is_applied_once_by_the_next_leader(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        old = group.region_leader()
        session = Session(old)
        assert session.write(old, NextSequence(b"s", 1)).results == (Count(0),)
        group.stop(int(old.id[1]))  # its client never hears of the write
        new = group.region_leader()
        assert session.write(new, NextSequence(b"s", 1), seq=1).results == (Count(0),)
        assert session.write(new, NextSequence(b"s", 1)).results == (Count(1),)
        group.start(int(old.id[1]))
        group.region_leader()
        group.all_applied()


def test_a_leader_that_is_cut_off_tells_writers_that_the_outcome_is_unknown_and_serves_no_read(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path) as group:
        old = group.region_leader()
        session = Session(old)
        session.write(old, Put(b"k", b"old"))
        group.apart.add(int(old.id[1]))
        old.cut_off()
        client = old.connect()
        written = client.ask(*session.request(Put(b"k", b"lost"), seq=2))
        read = client.ask(RequestCode.ROPEWALK_KV_GET, REGION, encode_values([b"k"]))
        new = group.region_leader()
        assert new is not old
        other = Session(new)
        other.write(new, Put(b"k", b"new"))
        answers: dict[int, Command] = {}

        def all_answered() -> bool:
            answers.update({answer.opaque: answer for answer in client.answers()})
            return len(answers) == 2

        group.until(all_answered, lambda: str(answers))
        assert answers[written].code == ResponseCode.SYSTEM_ERROR and "TERM_CHANGED" in (
            answers[written].remark or ""
        )
        assert answers[read].code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert get(old, b"k", unsafe="true") == [b"old"], "what was asked for is what it has, however old"
        group.apart.clear()
        group.all_applied()
        assert get(old, b"k") == [b"new"]


def test_a_region_elects_its_next_leader_though_all_wall_clocks_were_set_back(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        for member in group.members.values():
            member.clock.set_wall(-3_600_000)
        group.stop(next(index for index, member in group.members.items() if member is leader))
        turns = count()
        group.until(
            lambda: next(turns) > 5000 or any(region(each).leads for each in group.members.values()),
            "a leader",
        )
        assert next(turns) < 5000, "nobody in a hundred seconds"


def lock_for(group: KvGroup, session: Session, leader: Member, lease_ms: int) -> Lease:
    """Ask for a lock, and return its lease or the one that another has."""
    (lease,) = write_patiently(
        group, session, leader, AcquireLock(b"lock", b"%d" % session.id, lease_ms)
    ).results
    assert isinstance(lease, Lease)
    return lease


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
@pytest.mark.parametrize("new_leader", [False, True])
def test_a_lease_lasts_its_time_and_no_longer_although_the_wall_clocks_were_set(
    tmp_path: Path, by_ms: int, new_leader: bool
) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        holder, other = Session(leader), Session(leader)
        granted = lock_for(group, holder, leader, 2000)
        assert granted.granted
        for member in group.members.values():
            member.clock.set_wall(by_ms)
        if new_leader:
            group.stop(next(index for index, member in group.members.items() if member is leader))
            leader = group.region_leader()
        clock = leader.clock
        before_ms = clock.monotonic()
        refused = lock_for(group, other, leader, 2000)
        assert not refused.granted and refused.token == granted.token
        group.until(lambda: lock_for(group, other, group.region_leader(), 2000).granted, "the lease is over")
        assert clock.monotonic() - before_ms >= refused.left_ms


def test_a_restart_of_all_members_has_the_state_that_was_answered(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        for number in range(20):
            session.write(leader, Put(b"%02d" % number, b"x" * 1000))
        for index in list(group.members):
            group.stop(index)
        for index in range(3):
            group.start(index)
        leader = group.region_leader()
        assert get(leader, b"00", b"19") == [b"x" * 1000] * 2
        assert session.write(leader, Put(b"19", b"y"), seq=20).status is Status.OK
        assert get(leader, b"19") == [b"x" * 1000], "the session has outlived the restart, too"


def test_a_member_that_was_away_catches_up(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        away = next(index for index, each in group.members.items() if each is not leader)
        group.stop(away)
        session = Session(leader)
        for number in range(50):
            session.write(leader, Put(b"%02d" % number, b"x" * 10_000))
        group.start(away)
        group.until(lambda: len(region(group.members[away]).machine.values) == 50, "it has caught up")
        assert get(group.members[away], b"49") == [b"x" * 10_000]


def test_a_member_whose_region_was_wiped_does_not_start(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        Session(leader)
        wiped = next(index for index, each in group.members.items() if each is not leader)
        group.stop(wiped)
        (tmp_path / f"n{wiped}" / "kv").rename(tmp_path / "gone")
        with pytest.raises(StoreDamaged, match="Put it back"):
            group.start(wiped)


@pytest.mark.parametrize("garbage", [None, "garbage"])
def test_a_lost_or_damaged_ballot_of_a_region_is_named_with_the_command_that_shows_its_terms(
    tmp_path: Path, garbage: str | None
) -> None:
    with KvGroup(tmp_path) as group:
        Session(group.region_leader())
        group.stop(2)
        ballot = tmp_path / "n2" / "kv" / "0" / "currterm"
        ballot.unlink()
        if garbage is not None:
            ballot.write_text(garbage)
        with pytest.raises(StoreDamaged, match=r"kv/0/currterm .*`ropewalk kv status` shows them"):
            group.start(2)


def refused(client: Client, code: int, ext: dict[str, object], body: bytes = b"") -> str:
    answer = client.call(code, ext, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    return answer.remark or ""


def test_requests_that_mean_nothing_are_refused_in_words(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        client, session = leader.connect(), Session(leader)
        key = encode_values([b"k"])
        assert "region" in refused(client, RequestCode.ROPEWALK_KV_GET, {"epoch": 1}, key)
        assert "end within a field" in refused(client, RequestCode.ROPEWALK_KV_GET, REGION, b"\0\0\0\1")
        assert "1 to 4096 bytes" in refused(client, RequestCode.ROPEWALK_KV_GET, REGION, encode_values([b""]))
        assert "1 to 1000 keys" in refused(
            client, RequestCode.ROPEWALK_KV_MULTI_GET, REGION, encode_values([])
        )
        assert "a start, an end" in refused(client, RequestCode.ROPEWALK_KV_SCAN, REGION, key)
        _code, header, _body = session.request(Put(b"k", b"v"))
        assert "1 to 1000 operations" in refused(
            client, RequestCode.ROPEWALK_KV_WRITE, header, encode_items([])
        )
        assert "no kind" in refused(client, RequestCode.ROPEWALK_KV_WRITE, header, encode_items([Count(1)]))


def test_another_epoch_is_refused_with_the_regions_as_they_are(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        session = Session(leader)
        code, header, body = session.request(Put(b"k", b"v"))
        assert (
            outcome_of(leader.connect().call(code, header | {"epoch": 2}, body)).status is Status.WRONG_EPOCH
        )
        for cut in ({"epoch": 2}, {"region": 7}):
            answer = leader.connect().call(RequestCode.ROPEWALK_KV_GET, REGION | cut, encode_values([b"k"]))
            assert decode_found(answer.body)[0] is Status.WRONG_EPOCH
            (told,) = msgspec.json.decode(answer.ext["regions"])["regions"]
            assert (told["id"], told["epoch"]) == (0, 1)


def test_every_member_tells_where_the_leader_is_and_how_far_it_is_itself(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        address = ":".join(map(str, leader.broker.context.address))
        Session(leader)
        group.all_applied()
        for member in group.members.values():
            (told,) = msgspec.json.decode(member.connect().call(RequestCode.ROPEWALK_KV_REGIONS).body)[
                "regions"
            ]
            assert told == {
                "id": 0, "start": "", "end": "", "epoch": 1, "leader": address,
            }  # fmt: skip
            (status,) = msgspec.json.decode(member.connect().call(RequestCode.ROPEWALK_KV_STATUS).body)[
                "regions"
            ]
            assert status["leads"] is (member is leader) and status["sessions"] == 1


def test_members_without_the_key_serve_no_key_value_store(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, size=1) as group:
        leader = group.leader()
        answer = leader.connect().call(RequestCode.ROPEWALK_KV_REGIONS)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "ropewalkKvRegions" in (answer.remark or "")
        assert not (tmp_path / "n0" / "kv").exists()


def test_messages_and_the_region_share_links_and_each_has_its_own_log(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader, region_leader = group.leader(), group.region_leader()
        session = Session(region_leader)
        for number in range(5):
            assert leader.connect().send("T", b"%d" % number, queueId=0).code == ResponseCode.SUCCESS
            session.write(region_leader, Put(b"k", b"%d" % number))
        assert len(region_leader.ends) == 4, "two links to each of two members"
        assert get(leader, b"k") == [b"4"]


def test_a_leader_that_is_to_stop_hands_the_region_over_first(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        group.leader()
        old = group.region_leader()
        session = Session(old)
        session.write(old, Put(b"k", b"v"))
        elections = region(old).ledger.roles.elections

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(old.member.hand_over)
                while nursery.child_tasks:
                    group.turn(1)
                    await trio.sleep(0.001)

        trio.run(main)
        new = group.region_leader()
        assert new is not old and not old.leads
        assert region(old).ledger.roles.elections == elections
        assert session.write(new, Put(b"k", b"w")).status is Status.OK


def test_metrics_tell_what_a_region_holds_and_how_long_its_log_is(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        Session(leader).write(leader, Put(b"a", b"1"), Put(b"b", b"2"))
        group.all_applied()
        for member in group.members.values():
            families, _sources = member.broker.count_metrics()
            told = {each.name: each.rows for each in families if each.name.startswith("ropewalk_kv_")}
            assert told["ropewalk_kv_keys"] == [(("0",), 2.0)]
            assert told["ropewalk_kv_leader"] == [(("0",), float(member is leader))]
            assert told["ropewalk_kv_log_bytes"] == [(("0",), float(region(member).ledger.core.log.end.pos))]
            assert told["ropewalk_kv_unapplied_entries"] == told["ropewalk_kv_waiting"] == [(("0",), 0.0)]
    with LedgerBrokers(tmp_path / "without", size=1) as group:
        families, _sources = group.leader().broker.count_metrics()
        assert {len(each.rows) for each in families if each.name.startswith("ropewalk_kv_")} == {0}
