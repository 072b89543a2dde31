"""A DLedger group and what should not be: stores of the other mode, strangers, damage, full disks, lost files."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from broker.replication.dledger.files import WrongMode
from ropewalk.codes import ResponseCode
from store.io.disk import Disk, DiskFull, MappedFile
from store.log.commitlog import StoreDamaged
from tests.broker.harness import FullDisk, InProcess, config_of
from tests.support.ledger_brokers import LedgerBrokers, Member


def bodies(member: Member, topic: str = "T") -> list[bytes]:
    return [record.body for record in member.stored(topic)]


def fill(member: Member, count: int, size: int = 8_000) -> list[bytes]:
    """Send messages until `count` are acknowledged; return their bodies."""
    client, sent = member.connect(), []
    for number in range(count):
        body = b"%06d" % number + bytes(size)
        assert client.send("T", body, queueId=0).code == ResponseCode.SUCCESS
        sent.append(body)
    return sent


class SmallDisk(Disk):
    """A disk on which, while `full`, no segment can be allocated and no small file be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.refused: list[str] = []

    def _refuse(self, path: Path) -> OSError:
        self.refused.append(path.name)
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def allocate(self, path: Path, size: int) -> MappedFile:
        if self.full:
            raise DiskFull(
                f"cannot allocate {size} bytes for {path}: No space left on device"
            ) from self._refuse(path)
        return super().allocate(path, size)

    def replace_file(self, path: Path, data: bytes) -> None:
        if self.full:
            raise self._refuse(path)
        super().replace_file(path, data)


def test_a_plain_store_is_no_store_of_a_member(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path / "n0")) as plain:
        assert plain.connect().send("T").code == ResponseCode.SUCCESS
    with pytest.raises(WrongMode, match="holds the log of a plain broker") as caught:
        LedgerBrokers(tmp_path, 1)
    assert "another storePathRootDir" in str(caught.value)
    assert not list((tmp_path / "n0").glob("dledger-*")), "nothing was begun"


def test_a_members_store_is_no_plain_store(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, 1) as group:
        fill(group.leader(), 1)
    with pytest.raises(WrongMode, match="member of a DLedger group, which a plain broker does not read"):
        InProcess(config_of(tmp_path / "n0"))
    assert not (tmp_path / "n0" / "commitlog").exists()


def test_a_store_of_master_and_slaves_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "n0" / "ropewalk" / "role.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(WrongMode, match="belongs to a group of master and slaves"):
        LedgerBrokers(tmp_path, 1)


def test_another_members_log_is_not_taken_for_an_own_empty_one(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, 1) as group:
        fill(group.leader(), 1)
    config = config_of(
        tmp_path / "n0",
        enableDLegerCommitLog=True,
        dLegerPeers="n5-127.0.0.1:40911",
        dLegerSelfId="n5",
    )
    with pytest.raises(WrongMode, match="holds the log of another member: dLegerSelfId = n5"):
        InProcess(config)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("mappedFileSizeCommitLog", 1 << 19, "mappedFileSizeCommitLog"),
        ("dLegerGroup", "another", "group"),
        ("brokerClusterName", "Elsewhere", "cluster"),
    ],
)
def test_a_member_that_does_not_belong_is_refused_and_changes_nothing(
    setting: str, value: object, says: str, tmp_path: Path
) -> None:
    with LedgerBrokers(tmp_path) as group:
        group.stop(2)
        stranger = group.start(2, None, **{setting: value})
        group.apart.add(2)
        leader = group.leader()
        group.apart.clear()
        sent = fill(leader, 3, 10)
        for _ in range(30):
            group.turn()
        assert group.members[0].leads or group.members[1].leads
        assert not stranger.leads and bodies(stranger) == []
        assert bodies(leader) == sent
        why = {peer.id: peer.why for peer in stranger.member.ledger.status().peers}
        assert all(says in text for text in why.values()), why


def test_a_lost_currterm_stops_the_start_in_words(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, 1) as group:
        fill(group.leader(), 1)
    (tmp_path / "n0" / "dledger-n0" / "currterm").unlink()
    with pytest.raises(StoreDamaged, match="currterm"):
        LedgerBrokers(tmp_path, 1)


@pytest.mark.parametrize("has_checksums", [True, False])
def test_a_damaged_entry_that_was_committed_stops_the_start_and_is_never_cut(
    tmp_path: Path, has_checksums: bool
) -> None:
    with LedgerBrokers(tmp_path, 1) as group:
        fill(group.leader(), 5, 100)
    path = tmp_path / "n0" / "dledger-n0" / "data" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at = data.index(b"000002" + bytes(20))
    data[at + 10] ^= 0xFF
    path.write_bytes(data)
    # Queue files and bound are gone too: the log is read again from its first entry.
    (tmp_path / "n0" / "ropewalk" / "bound").unlink()
    for file in (tmp_path / "n0" / "consumequeue").rglob("0*"):
        if file.is_file():
            file.unlink()
    if not has_checksums:
        shutil.rmtree(tmp_path / "n0" / "ropewalk" / "checksums")
    says = "damaged bytes in" if has_checksums else "damaged record in"
    with pytest.raises(StoreDamaged, match=says) as caught:
        LedgerBrokers(tmp_path, 1)
    assert f"`ropewalk store verify {tmp_path / 'n0'}`" in str(caught.value)
    assert "`ropewalk admin dledger readmit ID`: only while a majority" in str(caught.value)
    assert path.read_bytes() == data, "nothing was changed"


def test_a_full_disk_of_a_follower_stops_nobody_and_it_catches_up(tmp_path: Path) -> None:
    disks = {index: FullDisk() for index in range(3)}
    with LedgerBrokers(tmp_path, disks=dict(disks), mappedFileSizeCommitLog=1 << 17) as group:
        leader = group.leader()
        slow = group.followers()[0]
        disks[int(slow.id[1])].full = True
        sent = fill(leader, 60)
        assert len(bodies(slow)) < 60
        disks[int(slow.id[1])].full = False
        group.until(lambda: bodies(slow) == sent, lambda: str(slow.member.ledger.status()))


def test_a_leader_whose_disk_stays_full_hands_over_and_goes_on_as_a_follower(tmp_path: Path) -> None:
    disks = {index: SmallDisk() for index in range(3)}
    with LedgerBrokers(tmp_path, disks=dict(disks), mappedFileSizeCommitLog=1 << 17) as group:
        full = group.leader()
        disk = disks[int(full.id[1])]
        disk.full = True
        client = full.connect()
        kept: list[bytes] = []
        while (answer := client.send("T", body := b"%06d" % len(kept) + bytes(8_000), queueId=0)).code == 0:
            kept.append(body)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the disk is full, nothing was stored: cannot allocate" in (answer.remark or "")
        group.until(lambda: not full.leads, "it hands over")
        leader = group.leader()
        assert leader is not full and full.member.ledger.status().stuck
        assert any("No space left" in why for why in full.broker.context.unready())
        assert bodies(full) == kept, "what it has it shows"
        kept += fill(leader, 3)
        for _ in range(200):
            group.turn()
        assert leader.leads and bodies(full) != kept and len(disk.refused) > 3
        disk.full = False
        group.until(lambda: all(bodies(each) == kept for each in group.members.values()), "all have all")
        group.until(lambda: not full.member.ledger.status().stuck, "it says that it goes on")


def test_without_a_member_that_has_room_the_leader_stays_and_readers_are_served(tmp_path: Path) -> None:
    disks = {index: SmallDisk() for index in range(3)}
    with LedgerBrokers(tmp_path, disks=dict(disks), mappedFileSizeCommitLog=1 << 17) as group:
        leader = group.leader()
        for disk in disks.values():
            disk.full = True
        client = leader.connect()
        kept: list[bytes] = []
        while client.send("T", body := b"%06d" % len(kept) + bytes(8_000), queueId=0).code == 0:
            kept.append(body)
        for _ in range(300):
            group.turn()
        found = [each for each in group.members.values() if each.leads]
        assert len(found) == 1 and bodies(found[0]) == kept
        for disk in disks.values():
            disk.full = False
        group.until(lambda: group.leader().connect().send("T", b"again", queueId=0).code == 0)
        wanted = [*kept, b"again"]
        group.until(lambda: all(bodies(each) == wanted for each in group.members.values()), "all have all")


def test_a_member_without_room_for_its_vote_votes_when_there_is_some(tmp_path: Path) -> None:
    disks = {index: SmallDisk() for index in range(3)}
    with LedgerBrokers(tmp_path, disks=dict(disks)) as group:
        leader = group.leader()
        sent = fill(leader, 3, 10)
        full = group.followers()[0]
        disk = disks[int(full.id[1])]
        disk.full = True
        term = full.member.ledger.core.election.saved.term
        group.apart.add(int(leader.id[1]))
        leader.cut_off()
        for _ in range(300):
            group.turn()
        rest = [each for each in group.members.values() if each is not leader]
        assert not any(each.leads for each in rest), "one vote of three is no majority"
        assert full.member.ledger.core.election.saved.term == term and disk.refused
        disk.full = False
        group.until(lambda: any(each.leads for each in rest), "the other one leads")
        group.apart.clear()
        sent += fill(group.leader(), 3, 10)
        group.until(lambda: all(bodies(each) == sent for each in group.members.values()), "all have all")


def test_a_full_disk_of_the_leader_refuses_messages_and_loses_none(tmp_path: Path) -> None:
    disks = {index: FullDisk() for index in range(3)}
    with LedgerBrokers(tmp_path, disks=dict(disks), mappedFileSizeCommitLog=1 << 17) as group:
        leader = group.leader()
        disks[int(leader.id[1])].full = True
        client, kept = leader.connect(), []
        for number in range(60):
            body = b"%06d" % number + bytes(8_000)
            answer = client.send("T", body, queueId=0)
            if answer.code == ResponseCode.SUCCESS:
                kept.append(body)
            else:
                assert answer.remark, answer
                break
        assert 0 < len(kept) < 60
        assert bodies(leader) == kept
        disks[int(leader.id[1])].full = False
        group.until(lambda: client.send("T", b"again", queueId=0).code == ResponseCode.SUCCESS)
        wanted = [*kept, b"again"]

        def told() -> str:
            return str([(len(bodies(each)), each.member.ledger.status()) for each in group.members.values()])

        group.until(lambda: all(bodies(each) == wanted for each in group.members.values()), told)
