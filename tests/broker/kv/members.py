"""Members that serve a region in one process, and a session of it by hand."""

from __future__ import annotations

from pathlib import Path

from broker.kv.region import KvRegion
from broker.kv.regions import KvRegions
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.kv.commands import Outcome, Status, decode_found, decode_outcome
from ropewalk.format.kv.items import Count, Operation, encode_items, encode_values
from ropewalk.format.remoting import Command
from tests.support.ledger_brokers import LedgerBrokers, Member

REGION: dict[str, object] = {"region": 0, "epoch": 1}


class KvGroup(LedgerBrokers):
    """Members that serve a region."""

    def __init__(self, root: Path, regions: str = "1", **settings: object) -> None:
        super().__init__(root, ropewalkKvRegions=regions, **settings)  # type: ignore[arg-type]

    def region_leader(self, id: int = 0) -> Member:
        """Return the member that leads a region, once all that can be reached follow it."""

        def near() -> list[Member]:
            return [each for index, each in self.members.items() if index not in self.apart]

        def agreed() -> bool:
            found = [regions(each).get(id) for each in near()]
            leaders = [each.ledger.me.id for each in found if each is not None and each.leads]
            return len(leaders) == 1 and all(
                each is not None and each.ledger.standing.leader == leaders[0] and each.machine.leader
                for each in found
            )

        self.until(agreed, f"one leader of region {id}")
        return next(each for each in near() if region(each, id).leads)

    def have_lead(self, index: int) -> None:
        """Have a member lead region 0; a handover for which a slow disk was too late is asked for once more."""
        wanted, ended = self.members[index], list[object](["not begun"])

        def leads() -> bool:
            leader = next((each for each in self.members.values() if region(each).leads), wanted)
            if leader is not wanted and ended:
                ended.clear()
                region(leader).ledger.transfer(wanted.id, ended.append)
            return region(wanted).leads

        self.until(leads, f"{wanted.id} leads")

    def all_applied(self) -> None:
        """Wait until all members have applied the same entries of the same regions."""

        def points() -> set[tuple[tuple[int, ...], ...]]:
            return {
                tuple(
                    (each.number, each.machine.applied, each.ledger.core.log.commit.index)
                    for each in regions(member)
                )
                for member in self.members.values()
            }

        self.until(lambda: len(points()) == 1, "all have applied the same")
        digests = {
            member.id: [each.machine.digest() for each in regions(member)] for member in self.members.values()
        }
        assert len(set(map(tuple, digests.values()))) == 1, (
            f"members differ that have applied the same entries: {digests}"
        )


def regions(member: Member) -> KvRegions:
    assert member.member.kv is not None
    return member.member.kv


def region(member: Member, id: int = 0) -> KvRegion:
    found = regions(member).get(id)
    assert found is not None, id
    return found


def cut_of(member: Member, id: int) -> dict[str, object]:
    """Return the header's fields for a region as this member knows it."""
    return {"region": id, "epoch": region(member, id).machine.region.epoch}


class Session:
    """A session, which goes to whichever member it is told."""

    def __init__(self, leader: Member, region: int = 0) -> None:
        self.region = region
        self.cut = cut_of(leader, region)
        answer = leader.connect().call(RequestCode.ROPEWALK_KV_SESSION, self.cut)
        (result,) = decode_outcome(answer.body).results
        assert isinstance(result, Count)
        self.id = result.number
        self.seq = 0

    def request(
        self, *operations: Operation, seq: int = 0, lowest: int = 0
    ) -> tuple[int, dict[str, object], bytes]:
        if not seq:
            self.seq = seq = self.seq + 1
        header = {**self.cut, "session": self.id, "seq": seq, "lowest": lowest or seq}
        return RequestCode.ROPEWALK_KV_WRITE, header, encode_items(operations)

    def write(self, member: Member, *operations: Operation, seq: int = 0) -> Outcome:
        return outcome_of(member.connect().call(*self.request(*operations, seq=seq)))


def write_patiently(group: KvGroup, session: Session, leader: Member, *operations: Operation) -> Outcome:
    """Write where the next file of a log may not be there yet, and the lead of a region may just be handed over."""
    request = session.request(*operations)
    while (answer := leader.connect().call(*request)).code in (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    ):
        group.turn()
        leader = group.region_leader(session.region)
    return outcome_of(answer)


def outcome_of(answer: Command) -> Outcome:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_outcome(answer.body)


def get(member: Member, *keys: bytes, region: int = 0, **options: object) -> list[bytes | None]:
    header = cut_of(member, region) | options
    answer = member.connect().call(RequestCode.ROPEWALK_KV_MULTI_GET, header, encode_values(keys))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    status, found = decode_found(answer.body)
    assert status is Status.OK
    return found
