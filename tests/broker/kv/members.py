"""Members that serve a region in one process, and a session of it by hand."""

from __future__ import annotations

from pathlib import Path

from broker.kv.region import KvRegion
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

    def region_leader(self) -> Member:
        """Return the member that leads the region, once all that can be reached follow it."""

        def agreed() -> bool:
            near = [each for index, each in self.members.items() if index not in self.apart]
            leaders = [each for each in near if region(each).leads]
            return len(leaders) == 1 and all(
                region(each).ledger.standing.leader == leaders[0].id and region(each).machine.leader
                for each in near
            )

        self.until(agreed, "one leader of the region")
        return next(
            each for index, each in self.members.items() if region(each).leads and index not in self.apart
        )

    def all_applied(self) -> None:
        """Wait until all members have applied the same entries."""
        self.until(
            lambda: (
                len({region(each).machine.applied for each in self.members.values()}) == 1
                and len({region(each).ledger.commit.index for each in self.members.values()}) == 1
            ),
            "all have applied the same",
        )
        digests = {each.id: region(each).machine.digest() for each in self.members.values()}
        assert len(set(digests.values())) == 1, (
            f"members differ that have applied the same entries: {digests}"
        )


def region(member: Member) -> KvRegion:
    assert member.member.kv is not None
    (found,) = member.member.kv
    return found


class Session:
    """A session, which goes to whichever member it is told."""

    def __init__(self, leader: Member) -> None:
        answer = leader.connect().call(RequestCode.ROPEWALK_KV_SESSION, REGION)
        (result,) = decode_outcome(answer.body).results
        assert isinstance(result, Count)
        self.id = result.number
        self.seq = 0

    def request(
        self, *operations: Operation, seq: int = 0, lowest: int = 0
    ) -> tuple[int, dict[str, object], bytes]:
        if not seq:
            self.seq = seq = self.seq + 1
        header = {**REGION, "session": self.id, "seq": seq, "lowest": lowest or seq}
        return RequestCode.ROPEWALK_KV_WRITE, header, encode_items(operations)

    def write(self, member: Member, *operations: Operation, seq: int = 0) -> Outcome:
        return outcome_of(member.connect().call(*self.request(*operations, seq=seq)))


def outcome_of(answer: Command) -> Outcome:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_outcome(answer.body)


def get(member: Member, *keys: bytes, **options: object) -> list[bytes | None]:
    answer = member.connect().call(RequestCode.ROPEWALK_KV_MULTI_GET, REGION | options, encode_values(keys))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    status, found = decode_found(answer.body)
    assert status is Status.OK
    return found
