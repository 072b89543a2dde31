"""Real members of a DLedger group that retention leaves behind: they come back by a snapshot, and lead afterwards."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import command_of, pull_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
    decode_header,
)
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from tests.crash.ledger_group import SEGMENT_SIZE, LedgerGroup, Member
from tests.crash.ledger_load import TOPIC, Sender
from tests.support import waiting
from tools.drill.reading import compare_logs

pytestmark = [pytest.mark.crash, pytest.mark.slow]
GROUP = "readers"


def offset_of(member: Member, code: int) -> int:
    """Return the smallest or the next offset of the queue."""
    with Connection(member.address, 30.0) as connection:
        return decode_header(
            OffsetResponseHeader, connection.call(command_of(code, GetMaxOffsetHeader(TOPIC, 0))).ext
        ).offset


def read_from(member: Member, offset: int) -> list[bytes]:
    """Return the bodies of the messages of the queue from `offset` on."""
    found: list[bytes] = []
    end = offset_of(member, RequestCode.GET_MAX_OFFSET)
    with Connection(member.address, 30.0) as connection:
        while offset < end:
            answer = connection.call(pull_request(TOPIC, Queue("", 0), offset, 32, "*", 0))
            assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark, offset, end)
            records = decode_records(answer.body)
            found += [record.body for record in records]
            offset += len(records)
    return found


def segments_of(member: Member) -> dict[int, Path]:
    return {int(path.name): path for path in (member.store / f"dledger-{member.id}" / "data").iterdir()}


def expire(member: Member, offset: int) -> None:
    """Have retention remove what it may, which goes as far as `offset`."""

    def is_removed() -> bool:
        with Connection(member.address, 30.0) as connection:
            assert (
                connection.call(Command(RequestCode.DELETE_EXPIRED_COMMITLOG, {})).code
                == ResponseCode.SUCCESS
            )
        return min(segments_of(member)) >= offset

    waiting.until(is_removed, lambda: f"{member.id} keeps {sorted(segments_of(member))}", pause_s=0.3)


def is_quiet(group: LedgerGroup) -> bool:
    found = group.status()
    return (
        len(found) == 3 and len({end for each in found for end in (each.end, each.durable, each.shown)}) == 1
    )


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_member_that_retention_has_passed_is_equal_to_the_others_afterwards_and_leads(
    tmp_path: Path, is_empty: bool
) -> None:
    with LedgerGroup(tmp_path, settings={"fileReservedTime": 0}) as group:
        sender = Sender(group, bytes(20_000))
        leader = group.leader()
        sender.send(leader, time.monotonic() + 0.3)
        late = next(member for member in group.members if member is not leader)
        rest = [member for member in group.members if member is not late]
        waiting.until(lambda: is_quiet(group), "the members agree")
        late.kill()
        size = 20 * SEGMENT_SIZE
        sender.send_to_leader_while(lambda: max(segments_of(leader)) < size // 2, rest)
        with Admin(group.name_server) as admin:
            admin.create_group(GROUP)
        with Connection(group.leader(rest).address, 30.0) as connection:
            header = UpdateConsumerOffsetHeader(GROUP, TOPIC, 0, len(sender.acknowledged) - 5)
            assert connection.call(command_of(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0
        committed = len(sender.acknowledged) - 5
        sender.send_to_leader_while(lambda: max(segments_of(leader)) < size, rest)
        leader = group.leader(rest)
        with Admin(group.name_server) as admin:
            made = admin.snapshot_tables("broker-a")
        assert made.keys() == {member.id for member in rest} and len(set(made.values())) == 1
        for member in rest:
            expire(member, size // 2)
        leader.kill()  # it has the last entries in its memory still, and would send them from there
        leader.start()
        leader = group.leader(rest)
        if is_empty:
            shutil.rmtree(late.store)
            with Admin(group.name_server) as admin:
                assert not any(admin.readmit("broker-a", late.id).values())
        late.start()
        waiting.until(lambda: is_quiet(group), lambda: late.errors.read_text()[-2000:], patience_s=60)
        assert "a snapshot replaces the log of this member" in late.errors.read_text()
        assert min(segments_of(late)) == min(segments_of(leader)) >= size // 2
        with Admin(group.name_server) as admin:
            waiting.until(lambda: group.leader(group.members) is late or moved(admin, late), "it leads")
        low, high = (
            offset_of(late, code) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        )
        assert offset_of(leader, RequestCode.GET_MIN_OFFSET) == low, (
            "as of the member from which the snapshot came"
        )
        assert high == offset_of(leader, RequestCode.GET_MAX_OFFSET) and low > 0
        bodies = read_from(late, low)
        assert bodies == read_from(leader, low)
        kept = sender.acknowledged[sender.acknowledged.index(bodies[0]) :]
        assert [*dict.fromkeys(bodies)][: len(kept)] == kept, (
            "one without an answer may be there twice, or after all"
        )
        with Connection(late.address, 30.0) as connection:
            query = QueryConsumerOffsetHeader(GROUP, TOPIC, 0)
            answer = connection.call(command_of(RequestCode.QUERY_CONSUMER_OFFSET, query))
        assert decode_header(OffsetResponseHeader, answer.ext).offset == committed
        sender.send(late, time.monotonic() + 0.3)
        waiting.until(lambda: is_quiet(group), "the members agree")
        for member in group.members:
            member.kill()
        for member in rest:
            compared = compare_logs(late.store, member.store)
            assert compared.equal and compared.size > SEGMENT_SIZE, compared.text


def moved(admin: Admin, member: Member) -> bool:
    """Ask for the lead to go to a member; return whether it went."""
    try:
        return admin.transfer_lead("broker-a", member.id) == member.id
    except Exception:
        return False
