"""What members say to each other, and who is turned away."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.group.hello import (
    RANGES_MAX,
    SUMMED_MAX,
    Hello,
    MemberStatusMessage,
    Welcome,
    decode_untrusted,
    encode,
    ranges_refusal,
    refusal_of,
)
from ha.group.roles import SLAVE, SYNC_MASTER, QuorumPolicy, RoleRecord
from ropewalk.errors import RemoteProtocolError

MASTER = RoleRecord(SYNC_MASTER, 0, 3, 3)
HELLO = Hello("c", "a", 1, "b:10911", "b:40000", 3, 0, 500, 1 << 20, [(3, 100)], [(0, 500)], [17])


def refused(hello: Hello = HELLO, record: RoleRecord = MASTER, taken: str = "", **changes: Any) -> str | None:
    return refusal_of(msgspec.structs.replace(hello, **changes), "c", "a", record, 1 << 20, taken)


def test_a_slave_of_this_group_is_welcome() -> None:
    assert refused() is None
    assert refused(promised_epoch=2) is None, "it has not heard of this epoch yet"
    assert refused(taken="b:10911") is None, "that is itself, before its connection broke"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cluster": "other"}, "belongs to a of cluster c, and not to a of cluster other"),
        ({"broker_name": "z"}, "not to z of cluster c"),
        ({"broker_id": 0}, "brokerId 0 is no slave's"),
        ({"promised_epoch": 4}, "has accepted epoch 4, and this master leads epoch 3"),
        ({"segment_size": 5}, "mappedFileSizeCommitLog is 5 at the slave and 1048576 here"),
        ({"segment_size": 1 << 21}, "mappedFileSizeCommitLog is 2097152 at the slave and 1048576 here"),
        ({"epochs": [(2, 5), (1, 9)]}, "epochs makes no sense"),
        ({"ranges": [(5, 5)]}, "one of them is none"),
    ],
)
def test_who_does_not_belong_is_told_why(changes: dict[str, Any], why: str) -> None:
    assert why in (refused(**changes) or "")


def test_a_fenced_master_takes_nobody_who_promised_what_fences_it() -> None:
    fenced = RoleRecord(SYNC_MASTER, 0, 4, 3, "somebody")
    assert "has accepted epoch 4, and this master leads epoch 3" in (
        refused(record=fenced, promised_epoch=4) or ""
    )


def test_two_slaves_cannot_share_an_id() -> None:
    assert "d:10911 is connected as slave 1 already" in (refused(taken="d:10911") or "")


def test_a_slave_has_no_slaves() -> None:
    record = RoleRecord(SLAVE, 2, 3, 3, master="m:10911")
    assert "its master is m:10911" in (refused(record=record) or "")


def test_nobody_has_to_sum_more_than_a_bounded_number_of_bytes() -> None:
    assert ranges_refusal([(0, SUMMED_MAX)]) is None
    assert ranges_refusal([(0, SUMMED_MAX + 1)]) is not None
    assert ranges_refusal([(0, 1)] * (RANGES_MAX + 1)) is not None


def test_messages_come_back_as_they_were() -> None:
    welcome = Welcome(3, 0, 900, [(3, 100)], [None, 5], QuorumPolicy(SYNC_MASTER, 2, 1, {"1": "b:1"}))
    assert decode_untrusted(Welcome, encode(welcome)) == welcome
    message = MemberStatusMessage(
        "a", 1, "b:1", SLAVE, 4, 3, 0, 900, 3, policy=welcome.policy, master_age_ms=7
    )
    member_status = decode_untrusted(MemberStatusMessage, encode(message)).status()
    assert (member_status.rank, member_status.policy, member_status.master_age_ms) == (
        (3, 900),
        welcome.policy,
        7,
    )


@given(st.binary(max_size=200))
def test_whatever_a_stranger_sends_is_refused_in_one_way(data: bytes) -> None:
    try:
        decode_untrusted(Hello, data)
    except RemoteProtocolError:
        return
    pytest.fail("random bytes are a hello")
