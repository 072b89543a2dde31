"""Who becomes master, and what a handover leaves behind when messages get lost."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.group.epochs import Epochs
from ha.group.handover import (
    Answer,
    Handover,
    HandoverKind,
    Member,
    MemberStatus,
    Phase,
    Question,
    QuestionKind,
    choose,
)
from ha.group.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER, QuorumPolicy, RoleAction, RoleCore, RoleRecord


def member_status(
    broker_id: int, end: int, *, slaves: int = 2, copies: int = 2, log_epoch: int = 0, **rest: int
) -> MemberStatus:
    policy = QuorumPolicy(SYNC_MASTER, copies, 1, {str(n): f"s{n}" for n in range(1, slaves + 1)})
    return MemberStatus(f"s{broker_id}", broker_id, SLAVE, 1, 0, end, log_epoch, policy=policy, **rest)


def by_address(*statuses: MemberStatus) -> dict[str, MemberStatus]:
    return {each.address: each for each in statuses}


def test_the_furthest_of_enough_slaves_is_chosen() -> None:
    choice = choose(by_address(member_status(1, 100), member_status(2, 300)), None)
    assert choice.winner is not None and choice.winner.address == "s2" and choice.reason == ""


def test_too_few_answers_choose_nobody_and_tell_what_is_at_risk() -> None:
    choice = choose(by_address(member_status(1, 100, master_end=450, master_age_ms=320)), None)
    assert choice.winner is None
    assert "1 of 2 slaves accepted, 2 have to" in choice.reason
    assert "at least 350 bytes are at risk as of 320 ms before contact was lost" in choice.reason


def test_a_slave_that_is_not_on_the_roll_is_none_of_the_answers_that_are_needed() -> None:
    """Nothing was ever acknowledged on its word, so it cannot stand for what somebody else acknowledged."""
    choice = choose(by_address(member_status(1, 100), member_status(7, 100)), None)
    assert choice.winner is None and "1 of 2 slaves accepted, 2 have to" in choice.reason


def test_force_goes_on_and_still_tells() -> None:
    choice = choose(by_address(member_status(1, 100)), None, force=True)
    assert choice.winner is not None
    assert "nobody knows how far the master's log reached" in choice.reason


def test_one_slave_of_one_is_enough() -> None:
    assert choose(by_address(member_status(1, 5, slaves=1)), None).winner is not None


def test_where_all_slaves_have_everything_one_answer_is_enough() -> None:
    assert choose(by_address(member_status(2, 5, copies=3)), None).winner is not None


def test_a_group_that_waits_for_nobody_is_never_failed_over_without_force() -> None:
    policy = QuorumPolicy(ASYNC_MASTER, 1, 1, {"1": "s1"})
    one = {"s1": MemberStatus("s1", 1, SLAVE, 1, 0, 50, policy=policy)}
    assert choose(one, None).winner is None
    assert choose(one, None, force=True).winner is not None


def test_a_long_tail_of_an_old_epoch_does_not_win() -> None:
    choice = choose(by_address(member_status(1, 9000, log_epoch=1), member_status(2, 300, log_epoch=2)), None)
    assert choice.winner is not None and choice.winner.address == "s2"


def test_the_one_who_is_wanted_is_chosen_among_equals_only() -> None:
    equal = by_address(member_status(1, 100), member_status(2, 100))
    assert choose(equal, None, wanted="s2").winner == equal["s2"]
    behind = choose(by_address(member_status(1, 100), member_status(2, 90)), None, wanted="s2")
    assert behind.winner is None and "s1 has more" in behind.reason
    assert choose(equal, None, wanted="s9").winner is None


def test_of_a_master_that_answers_too_nothing_may_be_missing() -> None:
    master = MemberStatus("m", 0, SYNC_MASTER, 1, 0, 300, policy=member_status(1, 0).policy)
    behind = by_address(member_status(1, 280), member_status(2, 290))
    choice = choose(behind, master)
    assert choice.winner is None and "10 bytes are missing" in choice.reason
    forced = choose(behind, master, force=True)
    assert forced.winner == behind["s2"] and "10 bytes are missing" in forced.reason


def test_what_is_at_risk_is_told_by_who_heard_of_most() -> None:
    heard = by_address(
        member_status(1, 100, slaves=3, copies=2, master_end=450, master_age_ms=320),
        member_status(2, 100, slaves=3, copies=2, master_end=400, master_age_ms=20),
    )
    assert "at least 350 bytes are at risk as of 320 ms" in choose(heard, None).reason


def test_with_the_master_s_own_word_one_slave_that_has_it_all_is_enough() -> None:
    master = MemberStatus("m", 0, SYNC_MASTER, 1, 0, 300, policy=member_status(1, 0).policy)
    assert choose(by_address(member_status(1, 300)), master).winner is not None
    missing = choose(by_address(member_status(1, 200)), master)
    assert missing.winner is None and "100 bytes are missing" in missing.reason


def test_the_terms_of_who_knows_most_count() -> None:
    old = MemberStatus("s1", 1, SLAVE, 5, 3, 100, policy=QuorumPolicy(SYNC_MASTER, 2, 7, {"1": "s1"}))
    new = MemberStatus(
        "s2", 2, SLAVE, 5, 3, 100, policy=QuorumPolicy(SYNC_MASTER, 2, 8, {"1": "s1", "2": "s2", "3": "s3"})
    )
    assert choose(by_address(old, new), None).winner is None, "two of three cannot know"


def test_a_promise_that_nobody_has_heard_of_again_is_a_risk() -> None:
    """Whoever asked for it may have made a master, who counts slaves that nobody here knows of."""
    doubting = member_status(1, 100, slaves=1, newest_open_promise=2)
    choice = choose(by_address(doubting), None)
    assert choice.winner is None and "epoch 2" in choice.reason
    assert choose(by_address(doubting), None, force=True).winner is not None
    knows = msgspec.structs.replace(doubting.policy, version=9)
    other = MemberStatus("s2", 2, SLAVE, 3, 2, 100, policy=knows)
    assert choose(by_address(doubting, other), None).winner is not None, "it followed that master"


@given(st.data())
def test_whoever_is_chosen_has_every_acknowledged_byte(data: st.DataObject) -> None:
    slaves = data.draw(st.integers(1, 5))
    copies = data.draw(st.integers(2, slaves + 1))
    ends = data.draw(st.lists(st.integers(0, 20), min_size=slaves, max_size=slaves))
    # Acknowledged is what `copies - 1` slaves have: the end that so many reach.
    acknowledged = sorted(ends, reverse=True)[copies - 2]
    answering = data.draw(st.sets(st.integers(1, slaves)))
    answers = by_address(
        *(member_status(n, ends[n - 1], slaves=slaves, copies=copies) for n in sorted(answering))
    )
    choice = choose(answers, None)
    if choice.winner is not None:
        assert choice.winner.end >= acknowledged
    elif len(answering) == slaves:
        pytest.fail(f"all answered, and nobody was chosen: {choice.reason}")


# -- the conversation -------------------------------------------------------------------------------------


class Broker:
    """A member with a log that is only a length, and the shipped core."""

    def __init__(self, address: str, record: RoleRecord, end: int) -> None:
        self.address = address
        self.core = RoleCore(record)
        self.end = end
        self.waiting = 0
        self.epochs = Epochs()
        self.led: list[tuple[int, str]] = []

    def answer(self, question: Question) -> Answer:
        core = self.core
        match question.kind:
            case QuestionKind.MEMBER_STATUS:
                return Answer(self.status())
            case QuestionKind.ACCEPT:
                decision = core.accept(question.epoch, question.operator)
            case QuestionKind.RELEASE:
                decision = core.release(question.epoch, question.operator)
            case QuestionKind.PROMOTE:
                decision = core.promote(
                    question.epoch, question.operator, old_master=question.master, policy=question.policy
                )
            case QuestionKind.FOLLOW:
                decision = core.follow(question.epoch, question.broker_id, question.master, question.policy)
        if decision.action is RoleAction.LEAD:
            self.led.append((question.epoch, question.operator))
            self.epochs = self.epochs.begin(question.epoch, self.end)
        return Answer(refusal=decision.refusal) if decision.refusal else Answer(self.status())

    def status(self) -> MemberStatus:
        record = self.core.record
        return MemberStatus(
            self.address, record.broker_id, record.role, record.promised_epoch, record.leader_epoch, self.end,
            self.epochs.of_end(self.end), policy=record.policy, waiting=self.waiting,
        )  # fmt: skip


def group(ends: list[int], copies: int = 2) -> dict[str, Broker]:
    """A master `m` with the first end, and a slave for each other one."""
    policy = QuorumPolicy(SYNC_MASTER, copies, 1, {str(n): f"s{n}" for n in range(1, len(ends))})
    found = {"m": Broker("m", RoleRecord(SYNC_MASTER, 0, policy=policy), ends[0])}
    for n, end in enumerate(ends[1:], 1):
        found[f"s{n}"] = Broker(f"s{n}", RoleRecord(SLAVE, n, policy=policy), end)
    return found


def carry(
    handover: Handover, brokers: dict[str, Broker], lost: Callable[[Question], bool] = lambda question: False
) -> Handover:
    """Deliver every question to whoever is in `brokers`, until it is over; time runs out when nothing moves."""
    due = handover.start()
    for _ in range(1000):
        if handover.is_over:
            return handover
        if not due:
            due = handover.on_timeout()
            continue
        question = due.pop(0)
        there = brokers.get(question.address)
        answer = there.answer(question) if there is not None and not lost(question) else Answer()
        due += handover.on_answer(question.address, question.kind, answer)
    raise AssertionError(f"it does not end: {handover.phase}")


def members(brokers: dict[str, Broker]) -> list[Member]:
    return [Member(each.address, each.core.record.broker_id) for each in brokers.values()]


def test_a_switch_makes_the_slave_master_and_the_master_its_slave() -> None:
    brokers = group([500, 500])
    done = carry(Handover(HandoverKind.SWITCH, members(brokers), 1, "op", master="m", target="s1"), brokers)
    assert done.phase is Phase.DONE and done.winner is not None and done.winner.address == "s1"
    new, old = brokers["s1"].core.record, brokers["m"].core.record
    assert (new.role, new.broker_id, new.leader_epoch) == (SYNC_MASTER, 0, 1)
    assert (old.role, old.broker_id, old.leader_epoch, old.master) == (SLAVE, 1, 1, "s1")
    assert new.policy.slaves == {"1": "m"}


def test_a_switch_waits_until_the_slave_has_everything() -> None:
    brokers = group([500, 300])
    handover = Handover(HandoverKind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    due = handover.on_answer("m", QuestionKind.ACCEPT, brokers["m"].answer(fence))
    for ends_at in (300, 300, 300, 500, 500):
        brokers["s1"].end, brokers["m"].waiting = ends_at, 1
        due = [
            more
            for question in due
            for more in handover.on_answer(
                question.address, question.kind, brokers[question.address].answer(question)
            )
        ]
        assert handover.phase is Phase.CATCH_UP, "a producer waits for its answer"
    brokers["m"].waiting = 0
    while due and not handover.is_over:
        due = [
            more
            for question in due
            for more in handover.on_answer(
                question.address, question.kind, brokers[question.address].answer(question)
            )
        ]
    assert handover.phase is Phase.DONE


def test_a_switch_to_a_slave_that_never_comes_gives_the_group_back_to_its_master() -> None:
    brokers = group([500, 300])
    before = {address: each.core.record for address, each in brokers.items()}
    handover = Handover(HandoverKind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    handover.on_answer("m", QuestionKind.ACCEPT, brokers["m"].answer(fence))
    for question in handover.on_timeout():
        assert question.kind is QuestionKind.RELEASE
        handover.on_answer(question.address, question.kind, brokers[question.address].answer(question))
    assert handover.phase is Phase.FAILED and "did not reach the master's end" in handover.reason
    assert {address: each.core.record for address, each in brokers.items()} == before


def test_a_failover_promotes_the_furthest_and_the_others_follow_it() -> None:
    brokers = group([500, 400, 450])
    del brokers["m"]
    known = [*members(brokers), Member("m", 0)]
    done = carry(Handover(HandoverKind.FAILOVER, known, 1, "op", master="m"), brokers)
    assert done.phase is Phase.DONE and done.winner is not None and done.winner.address == "s2"
    assert brokers["s1"].core.record.master == "s2"
    assert brokers["s2"].core.record.policy.slaves == {"1": "s1", "2": "m"}


def test_a_failover_with_too_few_answers_leaves_everybody_as_it_was() -> None:
    brokers = group([500, 400, 450])
    known = members(brokers)
    del brokers["m"], brokers["s2"]
    done = carry(Handover(HandoverKind.FAILOVER, known, 1, "op", master="m"), brokers)
    assert done.phase is Phase.FAILED and "1 of 2 slaves accepted" in done.reason
    assert brokers["s1"].core.record.promised_epoch == 0
    forced = carry(Handover(HandoverKind.FAILOVER, known, 1, "op", master="m", force=True), brokers)
    assert forced.phase is Phase.DONE and "at risk" not in forced.reason and "nobody knows" in forced.reason


def test_a_lost_answer_to_the_promotion_is_asked_for_again_and_nobody_is_released() -> None:
    brokers = group([500, 500])
    heard: list[QuestionKind] = []

    def lost(question: Question) -> bool:
        heard.append(question.kind)
        if question.kind is QuestionKind.PROMOTE and heard.count(QuestionKind.PROMOTE) == 1:
            brokers[question.address].answer(question)  # carried out, and the answer lost
            return True
        return False

    done = carry(
        Handover(HandoverKind.SWITCH, members(brokers), 1, "op", master="m", target="s1"), brokers, lost
    )
    assert done.phase is Phase.DONE and QuestionKind.RELEASE not in heard
    assert brokers["s1"].led == [(1, "op")]


def test_who_is_interrupted_sets_everybody_free_unless_somebody_may_be_master() -> None:
    brokers = group([500, 300])
    before = {address: each.core.record for address, each in brokers.items()}
    handover = Handover(HandoverKind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    handover.on_answer("m", QuestionKind.ACCEPT, brokers["m"].answer(fence))
    for question in handover.abandon("interrupted"):
        brokers[question.address].answer(question)
    assert {address: each.core.record for address, each in brokers.items()} == before
    promoting = Handover(HandoverKind.FAILOVER, members(brokers), 2, "op", master="m")
    (accept,) = promoting.start()
    (promote,) = promoting.on_answer("s1", QuestionKind.ACCEPT, brokers["s1"].answer(accept))
    assert promote.kind is QuestionKind.PROMOTE and promoting.abandon("interrupted") == []
    (again,) = promoting.on_answer("s1", QuestionKind.PROMOTE, Answer())
    assert promoting.on_answer("s1", again.kind, Answer(refusal="another epoch")) == []
    assert promoting.phase is Phase.FAILED, "it may have been one for a while"


def test_a_master_that_takes_messages_although_it_was_fenced_is_left_alone() -> None:
    brokers = group([500, 300])
    handover = Handover(HandoverKind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    handover.on_answer("m", QuestionKind.ACCEPT, brokers["m"].answer(fence))
    brokers["m"].end += 1
    (release,) = handover.on_answer("m", QuestionKind.MEMBER_STATUS, Answer(brokers["m"].status()))
    assert release.kind is QuestionKind.RELEASE and "went on by itself" in handover.reason


def test_an_answer_that_comes_when_its_phase_is_over_changes_nothing() -> None:
    brokers = group([500, 400, 450])
    handover = Handover(HandoverKind.FAILOVER, members(brokers), 1, "op", master="m")
    first, second = handover.start()
    handover.on_answer(first.address, first.kind, brokers[first.address].answer(first))
    released = handover.on_timeout()
    assert handover.phase is Phase.RELEASE and {question.kind for question in released} == {
        QuestionKind.RELEASE
    }
    assert handover.on_answer(second.address, second.kind, brokers[second.address].answer(second)) == []
    assert handover.phase is Phase.RELEASE


@given(st.integers(0, 1 << 30), st.integers(1, 4), st.data())
def test_however_messages_get_lost_an_epoch_has_one_master_and_nothing_acknowledged_is_lost(
    seed: int, slaves: int, data: st.DataObject
) -> None:
    copies = data.draw(st.integers(2, slaves + 1))
    ends = data.draw(st.lists(st.integers(0, 50), min_size=slaves, max_size=slaves))
    brokers = group([max(ends), *ends], copies)
    acknowledged = sorted(ends, reverse=True)[copies - 2]
    chance = random.Random(seed)
    known = members(brokers)
    down = {address for address in brokers if address != "m" and chance.random() < 0.3} | {"m"}
    alive = {address: each for address, each in brokers.items() if address not in down}
    for attempt in range(4):
        epoch = 1 + max(each.core.record.promised_epoch for each in brokers.values())
        by = f"op{attempt}"

        def lost(question: Question) -> bool:
            if chance.random() < 0.25:
                if chance.random() < 0.5 and question.address in alive:
                    alive[question.address].answer(question)  # it arrived; its answer did not
                return True
            return False

        done = carry(Handover(HandoverKind.FAILOVER, known, epoch, by, master="m"), alive, lost)
        if done.phase is Phase.DONE:
            assert done.winner is not None
            assert brokers[done.winner.address].end >= acknowledged
            break
    led = [leader_epoch for each in brokers.values() for leader_epoch in each.led]
    assert len({epoch for epoch, _by in led}) == len(led), "two masters of one epoch"
    for each in brokers.values():
        assert not each.led or each.end >= acknowledged
