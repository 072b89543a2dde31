"""One member's promises, and what they keep it from."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.group.roles import (
    ASYNC_MASTER,
    SLAVE,
    SYNC_MASTER,
    QuorumPolicy,
    RoleAction,
    RoleCore,
    RoleRecord,
    SlaveRoster,
)

POLICY = QuorumPolicy(SYNC_MASTER, 2, 3, {"1": "b:1", "2": "c:1"})


def slave(broker_id: int = 1, epoch: int = 0) -> RoleCore:
    return RoleCore(RoleRecord(SLAVE, broker_id, epoch, epoch, policy=POLICY))


def master(epoch: int = 0) -> RoleCore:
    return RoleCore(RoleRecord(SYNC_MASTER, 0, epoch, epoch, policy=POLICY))


def test_a_slave_that_accepts_drops_its_master_and_listens_to_no_older_one() -> None:
    member = slave()
    assert member.accept(1, "op").action is RoleAction.DROP
    assert not member.listens_to(0)
    assert member.listens_to(1)


def test_a_master_that_accepts_is_fenced_and_still_the_master() -> None:
    member = master()
    assert member.accept(1, "op").action is RoleAction.FENCE
    assert member.is_master and member.is_fenced


@pytest.mark.parametrize("epoch", [1_006, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("member", [master(5), slave(epoch=5), master()])
def test_an_epoch_far_above_the_last_is_refused_since_no_other_could_follow_it(
    member: RoleCore, epoch: int
) -> None:
    """A stranger that has a member accept the highest number there is ends every later change of its role."""
    before = member.record
    assert "above the last one" in (member.accept(epoch, "op").refusal or "")
    assert "above the last one" in (member.follow(epoch, 1, "x:1").refusal or "")
    assert member.record == before
    assert member.accept(before.promised_epoch + 1_000, "op").refusal is None


def test_a_slave_that_was_in_no_epoch_begins_in_its_masters_but_not_at_the_end_of_the_numbers() -> None:
    assert slave().follow(1 << 41, 1, "x:1").refusal is not None
    member = slave()
    assert member.follow(7_000, 1, "x:1").refusal is None
    assert member.follow(8_001, 1, "x:1").refusal is not None


def test_a_policy_far_above_the_last_is_refused_by_promotion_following_and_adoption() -> None:
    far = msgspec.structs.replace(POLICY, version=1 << 60)
    member = slave()
    assert "policy" in (member.adopt_policy(far).refusal or "")
    assert "policy" in (member.follow(1, 1, "x:1", far).refusal or "")
    member.accept(1, "op")
    assert "policy" in (member.promote(1, "op", policy=far).refusal or "")
    assert member.record.role == SLAVE


@pytest.mark.parametrize(
    "changes",
    [
        {"role": SLAVE},
        {"role": "nonsense"},
        {"version": 1 << 63},
        {"version": -1},
        {"in_sync_replicas": 0},
        {"previous_acks": -1},
        {"slaves": {"x": "b:1"}},
        {"slaves": {"\u00b2": "b:1"}},
        {"slaves": {"0": "b:1"}},
        {"slaves": {str(n): "b:1" for n in range(1, 66)}},
        {"slaves": {"9" * 5_000: "b:1"}},
        {"pending_slaves": {"1": 1 << 63}},
    ],
)
def test_a_policy_that_no_master_makes_is_no_policy(changes: dict[str, object]) -> None:
    """It would be written to role.json, where a broker reads it at its start."""
    with pytest.raises(ValueError):
        msgspec.structs.replace(POLICY, **changes)


def test_an_epoch_is_accepted_from_one_asker_only() -> None:
    member = slave()
    member.accept(1, "op")
    assert member.accept(1, "op").refusal is None, "the answer was lost: the same again"
    assert member.accept(1, "other").refusal is not None
    assert member.promote(1, "other").refusal is not None
    assert member.release(1, "other").refusal is not None
    assert member.accept(2, "other").refusal is None, "a higher epoch takes its place"
    assert member.promote(1, "op").refusal is not None


def test_nobody_is_promoted_in_an_epoch_that_it_did_not_accept() -> None:
    assert slave().promote(1, "op").refusal is not None
    assert slave(epoch=1).promote(1, "").refusal is not None


def test_the_promoted_swaps_ids_with_the_master_before() -> None:
    member = slave(1)
    member.accept(1, "op")
    decision = member.promote(1, "op", old_master="a:1")
    assert decision.action is RoleAction.LEAD
    assert (decision.record.role, decision.record.broker_id, decision.record.leader_epoch) == (
        SYNC_MASTER,
        0,
        1,
    )
    assert decision.record.policy.slaves == {"1": "a:1", "2": "c:1"}
    assert decision.record.policy.version > POLICY.version
    assert member.promote(1, "op").action is RoleAction.NOTHING, "asked twice, promoted once"


def test_who_is_released_goes_on_as_before() -> None:
    for member in (slave(), master()):
        before = member.record
        member.accept(5, "op")
        assert member.release(5, "op").action is RoleAction.RESUME
        assert member.record == before
        assert member.accept(1, "other").refusal is None


def test_a_promise_that_a_later_one_overtook_holds_again_when_that_is_released() -> None:
    for member in (slave(), master()):
        member.accept(5, "op")
        promised = member.record
        member.accept(7, "other")
        decision = member.release(7, "other")
        assert decision.action is RoleAction.NOTHING and decision.refusal is None
        assert member.record == promised, "somebody may be the master of epoch 5 by now"
        assert not member.listens_to(4)
        assert member.promote(5, "op").action is RoleAction.LEAD


def test_whoever_was_overtaken_can_give_up_too() -> None:
    member = slave()
    before = member.record
    member.accept(5, "op")
    member.accept(7, "other")
    assert member.release(5, "other").refusal is not None
    assert member.release(5, "op").action is RoleAction.NOTHING
    assert member.record.promised_epoch == 7
    assert member.release(7, "other").action is RoleAction.RESUME
    assert member.record == before


def test_promises_that_nobody_releases_take_no_room_without_end_and_are_kept() -> None:
    member = slave()
    for epoch in range(1, 101):
        member.accept(epoch, f"op{epoch}")
    assert len(member.record.superseded) <= 8
    for epoch in range(100, 0, -1):
        member.release(epoch, f"op{epoch}")
    assert not member.listens_to(90)


def test_a_master_of_before_stays_on_the_roll_though_nobody_knows_where_it_is() -> None:
    member = slave(1)
    member.accept(1, "op")
    policy = member.promote(1, "op", old_master="").record.policy
    assert policy.slaves == {"1": "", "2": "c:1"}
    assert policy.answers_needed == POLICY.answers_needed


def test_nobody_is_released_from_a_reign() -> None:
    member = slave()
    member.accept(1, "op")
    member.promote(1, "op")
    assert member.release(1, "op").refusal is not None
    assert member.is_master and not member.is_fenced


def test_a_master_follows_a_newer_one_and_no_older() -> None:
    member = master(4)
    assert member.follow(3, 1, "b:1").refusal is not None
    assert member.follow(4, 1, "b:1").refusal is not None, "it is the master of epoch 4 itself"
    decision = member.follow(5, 1, "b:1")
    assert decision.action is RoleAction.FOLLOW
    assert (decision.record.role, decision.record.broker_id, decision.record.promised_epoch) == (SLAVE, 1, 5)
    assert member.follow(5, 1, "b:1").action is RoleAction.NOTHING


def test_a_promise_is_not_forgotten_for_the_word_of_an_older_master() -> None:
    member = slave()
    member.accept(7, "op")
    assert member.follow(6, 1, "b:1").refusal is not None
    assert member.record.promised_epoch == 7


def test_who_is_promoted_goes_on_with_the_newest_terms_that_anybody_knows() -> None:
    member = slave(1)
    member.accept(1, "op")
    policy = member.promote(1, "op", old_master="a:1", policy=POLICY.with_slave(3, "d:1")).record.policy
    assert policy.slaves == {"1": "a:1", "2": "c:1", "3": "d:1"}


def test_who_follows_a_new_master_has_its_terms_at_once() -> None:
    member = slave(2)
    member.accept(1, "op")
    newer = POLICY.with_slave(3, "d:1")
    assert member.follow(1, 2, "b:1", newer).record.policy == newer
    assert member.follow(1, 2, "b:1", POLICY).record.policy == newer, "a word from before it learned more"


def test_an_async_group_stays_one_under_its_new_master() -> None:
    member = RoleCore(RoleRecord(SLAVE, 1, policy=QuorumPolicy(ASYNC_MASTER, 1, 1, {"1": "b:1"})))
    member.accept(1, "op")
    assert member.promote(1, "op").record.role == ASYNC_MASTER


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "KING", "brokerId": 0},
        {"role": SLAVE, "brokerId": 0},
        {"role": SYNC_MASTER, "brokerId": 1},
        {"role": SLAVE, "brokerId": 1, "epoch": 1, "reign": 2},
    ],
)
def test_a_record_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        msgspec.convert(wrong, RoleRecord)


def test_a_record_survives_its_file() -> None:
    record = RoleRecord(SLAVE, 1, 7, 6, "op", "a:1", POLICY)
    assert msgspec.json.decode(msgspec.json.encode(record), type=RoleRecord) == record


_steps = st.lists(
    st.tuples(
        st.sampled_from(["accept", "release", "promote", "follow"]),
        st.integers(1, 6),
        st.sampled_from(["op", "other"]),
    ),
    max_size=30,
)


@given(_steps)
def test_whatever_is_asked_an_epoch_has_one_asker_and_a_reign_never_falls(
    steps: list[tuple[str, int, str]],
) -> None:
    member = slave()
    promises: dict[int, str] = {}
    """What it promised and was not released from, nor given a role above."""
    for what, epoch, by in steps:
        before = member.record
        match what:
            case "accept":
                decision = member.accept(epoch, by)
            case "release":
                decision = member.release(epoch, by)
            case "promote":
                decision = member.promote(epoch, by)
            case _:
                decision = member.follow(epoch, 1, "a:1")
        after = member.record
        assert decision.record is after
        assert after.leader_epoch >= before.leader_epoch
        if decision.refusal is not None:
            assert after == before and decision.action is RoleAction.NOTHING
        elif what == "accept":
            promises[epoch] = by
        elif what == "release":
            assert promises.pop(epoch) == by
        else:
            promises.clear()
        assert after.promised_epoch == max(promises, default=after.leader_epoch), (
            "the newest promise that still stands"
        )
        if decision.action is RoleAction.LEAD:
            assert (before.promised_epoch, before.promised_to) == (epoch, by)


# -- whose reports count ----------------------------------------------------------------------------------


def heard(roster: SlaveRoster, broker_id: int, version: int) -> None:
    roster.policy = roster.policy.confirmed_by_all(roster.record_version(broker_id, version))


def test_a_new_slave_counts_when_every_other_slave_knows_of_it() -> None:
    roster = SlaveRoster(QuorumPolicy(SYNC_MASTER, 2, 1, {"1": "b:1"}).with_slave(2, "c:1"))
    assert roster.counts(1) and not roster.counts(2)
    heard(roster, 2, 2)
    assert not roster.counts(2), "slave 1, alone with its old terms, would be content with its own answer"
    heard(roster, 1, 2)
    assert roster.counts(2)


def test_the_first_slave_counts_as_soon_as_it_knows_of_itself() -> None:
    roster = SlaveRoster(QuorumPolicy(SYNC_MASTER, 2).with_slave(1, "b:1"))
    assert not roster.counts(1)
    heard(roster, 1, 1)
    assert roster.counts(1) and not roster.counts(9)


def test_a_slave_that_moved_counts_as_before() -> None:
    roster = SlaveRoster(QuorumPolicy(SYNC_MASTER, 2, 1, {"1": "b:1", "2": "c:1"}).with_slave(3, "d:1"))
    roster.policy = roster.policy.with_slave(1, "b:2").with_slave(3, "d:2")
    assert roster.policy.version == 4 and roster.counts(1) and not roster.counts(3)


def test_fewer_copies_are_enough_only_when_every_slave_has_heard_so() -> None:
    roster = SlaveRoster(
        QuorumPolicy(SYNC_MASTER, 3, 4, {"1": "b:1", "2": "c:1"}).with_requirement(SYNC_MASTER, 2)
    )
    assert roster.required_acks == 2
    heard(roster, 1, 5)
    assert roster.required_acks == 2, "slave 2 would still think that its own answer is enough"
    heard(roster, 2, 5)
    assert roster.required_acks == 1


def test_more_copies_are_asked_for_at_once() -> None:
    assert (
        SlaveRoster(
            QuorumPolicy(SYNC_MASTER, 2, 4, {"1": "b:1", "2": "c:1"}).with_requirement(SYNC_MASTER, 3)
        ).required_acks
        == 2
    )


def test_what_not_every_slave_has_heard_is_not_forgotten_by_a_new_start_nor_by_a_new_master() -> None:
    """The one that has not heard would be content with its own answer, whoever the master is."""
    policy = (
        QuorumPolicy(SYNC_MASTER, 3, 4, {"1": "b:1", "2": "c:1"})
        .with_slave(3, "d:1")
        .with_requirement(SYNC_MASTER, 2)
    )
    for later in (
        msgspec.json.decode(msgspec.json.encode(policy), type=QuorumPolicy),
        policy.after_swap(1, "a:1"),
        policy.after_swap(3, "a:1"),
    ):
        roster = SlaveRoster(later)
        heard(roster, 1, later.version)
        heard(roster, 3, later.version)
        assert roster.required_acks == 2 and roster.counts(1) and not roster.counts(3)
        heard(roster, 2, later.version)
        assert roster.required_acks == 1 and roster.counts(3)


def test_a_forgotten_slave_is_waited_for_no_more() -> None:
    core = master()
    decision = core.remove_slave(2)
    assert decision.record.policy.slaves == {"1": "b:1"} and decision.record.policy.version == 4
    roster = SlaveRoster(decision.record.policy)
    assert roster.counts(1) and not roster.counts(2)
    assert roster.record_version(1, 4) == 4
    assert core.remove_slave(2).refusal == "the group has no slave 2; there are: 1"
    assert slave().remove_slave(1).refusal is not None


def test_where_no_slave_is_left_nobody_has_to_hear_that_fewer_are_enough() -> None:
    policy = QuorumPolicy(SYNC_MASTER, 2, 4, {"1": "b:1"}).with_requirement(SYNC_MASTER, 1)
    assert SlaveRoster(policy).required_acks == 1 and SlaveRoster(policy.without_slave(1)).required_acks == 0
    assert SlaveRoster(QuorumPolicy(SYNC_MASTER, 2, 4).with_requirement(SYNC_MASTER, 1)).required_acks == 0


def test_a_group_has_room_for_so_many_slaves() -> None:
    policy = QuorumPolicy()
    for broker_id in range(1, 65):
        policy = policy.with_slave(broker_id, f"h:{broker_id}")
    with pytest.raises(ValueError, match="at most 64"):
        policy.with_slave(65, "h:65")
    assert policy.with_slave(64, "h:64") is policy
