"""One member's promises, and what they keep it from."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.group.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER, Act, RoleCore, RoleRecord, Roll, Terms

TERMS = Terms(SYNC_MASTER, 2, 3, {"1": "b:1", "2": "c:1"})


def slave(broker_id: int = 1, epoch: int = 0) -> RoleCore:
    return RoleCore(RoleRecord(SLAVE, broker_id, epoch, epoch, terms=TERMS))


def master(epoch: int = 0) -> RoleCore:
    return RoleCore(RoleRecord(SYNC_MASTER, 0, epoch, epoch, terms=TERMS))


def test_a_slave_that_accepts_drops_its_master_and_listens_to_no_older_one() -> None:
    member = slave()
    assert member.accept(1, "op").act is Act.DROP
    assert not member.listens_to(0)
    assert member.listens_to(1)


def test_a_master_that_accepts_is_fenced_and_still_the_master() -> None:
    member = master()
    assert member.accept(1, "op").act is Act.FENCE
    assert member.is_master and member.is_fenced


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
    outcome = member.promote(1, "op", old_master="a:1")
    assert outcome.act is Act.LEAD
    assert (outcome.record.role, outcome.record.broker_id, outcome.record.reign) == (SYNC_MASTER, 0, 1)
    assert outcome.record.terms.slaves == {"1": "a:1", "2": "c:1"}
    assert outcome.record.terms.version > TERMS.version
    assert member.promote(1, "op").act is Act.NOTHING, "asked twice, promoted once"


def test_who_is_released_goes_on_as_before() -> None:
    for member in (slave(), master()):
        before = member.record
        member.accept(5, "op")
        assert member.release(5, "op").act is Act.RESUME
        assert member.record == before
        assert member.accept(1, "other").refusal is None


def test_a_promise_that_a_later_one_overtook_holds_again_when_that_is_released() -> None:
    for member in (slave(), master()):
        member.accept(5, "op")
        promised = member.record
        member.accept(7, "other")
        outcome = member.release(7, "other")
        assert outcome.act is Act.NOTHING and outcome.refusal is None
        assert member.record == promised, "somebody may be the master of epoch 5 by now"
        assert not member.listens_to(4)
        assert member.promote(5, "op").act is Act.LEAD


def test_whoever_was_overtaken_can_give_up_too() -> None:
    member = slave()
    before = member.record
    member.accept(5, "op")
    member.accept(7, "other")
    assert member.release(5, "other").refusal is not None
    assert member.release(5, "op").act is Act.NOTHING
    assert member.record.epoch == 7
    assert member.release(7, "other").act is Act.RESUME
    assert member.record == before


def test_promises_that_nobody_releases_take_no_room_without_end_and_are_kept() -> None:
    member = slave()
    for epoch in range(1, 101):
        member.accept(epoch, f"op{epoch}")
    assert len(member.record.overtaken) <= 8
    for epoch in range(100, 0, -1):
        member.release(epoch, f"op{epoch}")
    assert not member.listens_to(90)


def test_a_master_of_before_stays_on_the_roll_though_nobody_knows_where_it_is() -> None:
    member = slave(1)
    member.accept(1, "op")
    terms = member.promote(1, "op", old_master="").record.terms
    assert terms.slaves == {"1": "", "2": "c:1"}
    assert terms.answers_needed == TERMS.answers_needed


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
    outcome = member.follow(5, 1, "b:1")
    assert outcome.act is Act.FOLLOW
    assert (outcome.record.role, outcome.record.broker_id, outcome.record.epoch) == (SLAVE, 1, 5)
    assert member.follow(5, 1, "b:1").act is Act.NOTHING


def test_a_promise_is_not_forgotten_for_the_word_of_an_older_master() -> None:
    member = slave()
    member.accept(7, "op")
    assert member.follow(6, 1, "b:1").refusal is not None
    assert member.record.epoch == 7


def test_who_is_promoted_goes_on_with_the_newest_terms_that_anybody_knows() -> None:
    member = slave(1)
    member.accept(1, "op")
    terms = member.promote(1, "op", old_master="a:1", terms=TERMS.with_slave(3, "d:1")).record.terms
    assert terms.slaves == {"1": "a:1", "2": "c:1", "3": "d:1"}


def test_who_follows_a_new_master_has_its_terms_at_once() -> None:
    member = slave(2)
    member.accept(1, "op")
    newer = TERMS.with_slave(3, "d:1")
    assert member.follow(1, 2, "b:1", newer).record.terms == newer
    assert member.follow(1, 2, "b:1", TERMS).record.terms == newer, "a word from before it learned more"


def test_an_async_group_stays_one_under_its_new_master() -> None:
    member = RoleCore(RoleRecord(SLAVE, 1, terms=Terms(ASYNC_MASTER, 1, 1, {"1": "b:1"})))
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
    record = RoleRecord(SLAVE, 1, 7, 6, "op", "a:1", TERMS)
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
                outcome = member.accept(epoch, by)
            case "release":
                outcome = member.release(epoch, by)
            case "promote":
                outcome = member.promote(epoch, by)
            case _:
                outcome = member.follow(epoch, 1, "a:1")
        after = member.record
        assert outcome.record is after
        assert after.reign >= before.reign
        if outcome.refusal is not None:
            assert after == before and outcome.act is Act.NOTHING
        elif what == "accept":
            promises[epoch] = by
        elif what == "release":
            assert promises.pop(epoch) == by
        else:
            promises.clear()
        assert after.epoch == max(promises, default=after.reign), "the newest promise that still stands"
        if outcome.act is Act.LEAD:
            assert (before.epoch, before.by) == (epoch, by)


# -- whose reports count ----------------------------------------------------------------------------------


def heard(roll: Roll, broker_id: int, version: int) -> None:
    roll.terms = roll.terms.settled(roll.has(broker_id, version))


def test_a_new_slave_counts_when_every_other_slave_knows_of_it() -> None:
    roll = Roll(Terms(SYNC_MASTER, 2, 1, {"1": "b:1"}).with_slave(2, "c:1"))
    assert roll.counts(1) and not roll.counts(2)
    heard(roll, 2, 2)
    assert not roll.counts(2), "slave 1, alone with its old terms, would be content with its own answer"
    heard(roll, 1, 2)
    assert roll.counts(2)


def test_the_first_slave_counts_as_soon_as_it_knows_of_itself() -> None:
    roll = Roll(Terms(SYNC_MASTER, 2).with_slave(1, "b:1"))
    assert not roll.counts(1)
    heard(roll, 1, 1)
    assert roll.counts(1) and not roll.counts(9)


def test_a_slave_that_moved_counts_as_before() -> None:
    roll = Roll(Terms(SYNC_MASTER, 2, 1, {"1": "b:1", "2": "c:1"}).with_slave(3, "d:1"))
    roll.terms = roll.terms.with_slave(1, "b:2").with_slave(3, "d:2")
    assert roll.terms.version == 4 and roll.counts(1) and not roll.counts(3)


def test_fewer_copies_are_enough_only_when_every_slave_has_heard_so() -> None:
    roll = Roll(Terms(SYNC_MASTER, 3, 4, {"1": "b:1", "2": "c:1"}).with_promise(SYNC_MASTER, 2))
    assert roll.required_acks == 2
    heard(roll, 1, 5)
    assert roll.required_acks == 2, "slave 2 would still think that its own answer is enough"
    heard(roll, 2, 5)
    assert roll.required_acks == 1


def test_more_copies_are_asked_for_at_once() -> None:
    assert (
        Roll(Terms(SYNC_MASTER, 2, 4, {"1": "b:1", "2": "c:1"}).with_promise(SYNC_MASTER, 3)).required_acks
        == 2
    )


def test_what_not_every_slave_has_heard_is_not_forgotten_by_a_new_start_nor_by_a_new_master() -> None:
    """The one that has not heard would be content with its own answer, whoever the master is."""
    terms = (
        Terms(SYNC_MASTER, 3, 4, {"1": "b:1", "2": "c:1"}).with_slave(3, "d:1").with_promise(SYNC_MASTER, 2)
    )
    for later in (
        msgspec.json.decode(msgspec.json.encode(terms), type=Terms),
        terms.after_swap(1, "a:1"),
        terms.after_swap(3, "a:1"),
    ):
        roll = Roll(later)
        heard(roll, 1, later.version)
        heard(roll, 3, later.version)
        assert roll.required_acks == 2 and roll.counts(1) and not roll.counts(3)
        heard(roll, 2, later.version)
        assert roll.required_acks == 1 and roll.counts(3)


def test_a_forgotten_slave_is_waited_for_no_more() -> None:
    core = master()
    outcome = core.forget(2)
    assert outcome.record.terms.slaves == {"1": "b:1"} and outcome.record.terms.version == 4
    roll = Roll(outcome.record.terms)
    assert roll.counts(1) and not roll.counts(2)
    assert roll.has(1, 4) == 4
    assert core.forget(2).refusal == "no slave 2 is on the roll; there are: 1"
    assert slave().forget(1).refusal is not None


def test_where_no_slave_is_left_nobody_has_to_hear_that_fewer_are_enough() -> None:
    terms = Terms(SYNC_MASTER, 2, 4, {"1": "b:1"}).with_promise(SYNC_MASTER, 1)
    assert Roll(terms).required_acks == 1 and Roll(terms.without_slave(1)).required_acks == 0
    assert Roll(Terms(SYNC_MASTER, 2, 4).with_promise(SYNC_MASTER, 1)).required_acks == 0


def test_a_group_has_room_for_so_many_slaves() -> None:
    terms = Terms()
    for broker_id in range(1, 65):
        terms = terms.with_slave(broker_id, f"h:{broker_id}")
    with pytest.raises(ValueError, match="at most 64"):
        terms.with_slave(65, "h:65")
    assert terms.with_slave(64, "h:64") is terms
