"""A master that came back with less than its slaves have: what a slave keeps, and whom the master waits for."""

from __future__ import annotations

import msgspec
import pytest

from ha.group.divergence import Finding
from ha.group.epochs import Epochs
from ha.group.hello import MemberStatusMessage
from ha.group.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER, QuorumPolicy, RoleRecord
from ha.group.shorter_master import longer_slaves, may_be_acknowledged, way_out

POLICY = QuorumPolicy(SYNC_MASTER, 2, 3, {"1": "s1:1", "2": "s2:1"})
EPOCHS = Epochs.of([(3, 0), (4, 500)])
RECORD = RoleRecord(SYNC_MASTER, 0, 4, 4, "", "", POLICY)


def slave(address: str, end: int, **changes: object) -> MemberStatusMessage:
    found = MemberStatusMessage("b", 1, address, SLAVE, 4, 4, 0, end, log_epoch=4)
    return msgspec.structs.replace(found, **changes)


def test_a_slave_keeps_what_a_sync_master_of_the_same_epoch_lacks() -> None:
    assert may_be_acknowledged(EPOCHS, 900, 4, POLICY, flushes_first=False)
    assert may_be_acknowledged(Epochs(), 900, 0, POLICY, flushes_first=False), (
        "a group that never changed its master"
    )


def test_a_tail_of_an_older_epoch_is_cut_as_ever() -> None:
    assert not may_be_acknowledged(EPOCHS, 900, 5, POLICY, flushes_first=False)
    assert not may_be_acknowledged(EPOCHS, 500, 4, POLICY, flushes_first=False), "no byte of epoch 4 is here"


def test_what_a_master_lacks_that_flushes_before_it_acknowledges_was_never_acknowledged() -> None:
    assert not may_be_acknowledged(EPOCHS, 900, 4, POLICY, flushes_first=True)


def test_a_slave_of_a_master_that_waits_for_nobody_cuts() -> None:
    alone = QuorumPolicy(ASYNC_MASTER, 1, 3, {"1": "s1:1"})
    assert not may_be_acknowledged(EPOCHS, 900, 4, alone, flushes_first=False)
    before = msgspec.structs.replace(alone, previous_acks=1)
    assert may_be_acknowledged(EPOCHS, 900, 4, before, flushes_first=False), "it waited until a moment ago"


def test_a_master_knows_which_slaves_have_more_of_its_epoch() -> None:
    found = longer_slaves(RECORD, 700, {}, [slave("s1:1", 701), slave("s2:1", 700)])
    assert found == {"s1:1": 701}


@pytest.mark.parametrize(
    "other",
    [
        slave("s1:1", 900, log_epoch=3),
        slave("s1:1", 900, leader_epoch=3),
        slave("s1:1", 900, role=SYNC_MASTER),
        slave("s9:1", 900),
    ],
    ids=["a tail of an older epoch", "a slave of an older master", "a master", "no slave of this group"],
)
def test_a_master_waits_for_nobody_else(other: MemberStatusMessage) -> None:
    assert longer_slaves(RECORD, 700, {}, [other]) == {}


def test_a_slave_that_had_more_and_is_silent_is_waited_for_until_it_has_less_or_is_forgotten() -> None:
    known = {"s1:1": 900}
    assert longer_slaves(RECORD, 700, known, []) == known
    assert longer_slaves(RECORD, 700, known, [slave("s1:1", 0, log_epoch=0)]) == {}, (
        "it begins with an empty store"
    )
    forgotten = msgspec.structs.replace(RECORD, policy=POLICY.without_slave(1))
    assert longer_slaves(forgotten, 700, known, []) == {}


def test_a_master_that_waits_for_no_slave_takes_messages_whoever_has_more() -> None:
    alone = msgspec.structs.replace(RECORD, role=ASYNC_MASTER, policy=QuorumPolicy(slaves={"1": "s1:1"}))
    assert longer_slaves(alone, 700, {}, [slave("s1:1", 900)]) == {}


def test_the_way_out_is_a_switch_unless_the_master_went_on_with_records_of_its_own() -> None:
    assert way_out(Finding.LONGER, "b", "s1:1") == "`ropewalk admin ha switch b`"
    assert way_out(Finding.DIVERGED, "b", "s1:1") == "`ropewalk admin ha failover b --to s1:1 --force`"
