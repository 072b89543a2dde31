"""Who becomes master, and what a handover leaves behind when messages get lost."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.group.epochs import Epochs
from ha.group.handover import Answer, Ask, Handover, Kind, Member, Phase, Send, Standing, choose
from ha.group.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER, Act, RoleCore, RoleRecord, Terms


def standing(
    broker_id: int, end: int, *, slaves: int = 2, copies: int = 2, log_epoch: int = 0, **rest: int
) -> Standing:
    terms = Terms(SYNC_MASTER, copies, 1, {str(n): f"s{n}" for n in range(1, slaves + 1)})
    return Standing(f"s{broker_id}", broker_id, SLAVE, 1, 0, end, log_epoch, terms=terms, **rest)


def by_address(*standings: Standing) -> dict[str, Standing]:
    return {each.address: each for each in standings}


def test_the_furthest_of_enough_slaves_is_chosen() -> None:
    choice = choose(by_address(standing(1, 100), standing(2, 300)), None)
    assert choice.winner is not None and choice.winner.address == "s2" and choice.reason == ""


def test_too_few_answers_choose_nobody_and_tell_what_is_at_risk() -> None:
    choice = choose(by_address(standing(1, 100, master_end=450, master_age_ms=320)), None)
    assert choice.winner is None
    assert "1 of 2 slaves accepted, 2 have to" in choice.reason
    assert "at least 350 bytes are at risk as of 320 ms before contact was lost" in choice.reason


def test_a_slave_that_is_not_on_the_roll_is_none_of_the_answers_that_are_needed() -> None:
    """Nothing was ever acknowledged on its word, so it cannot stand for what somebody else acknowledged."""
    choice = choose(by_address(standing(1, 100), standing(7, 100)), None)
    assert choice.winner is None and "1 of 2 slaves accepted, 2 have to" in choice.reason


def test_force_goes_on_and_still_tells() -> None:
    choice = choose(by_address(standing(1, 100)), None, force=True)
    assert choice.winner is not None
    assert "nobody knows how far the master's log reached" in choice.reason


def test_one_slave_of_one_is_enough() -> None:
    assert choose(by_address(standing(1, 5, slaves=1)), None).winner is not None


def test_where_all_slaves_have_everything_one_answer_is_enough() -> None:
    assert choose(by_address(standing(2, 5, copies=3)), None).winner is not None


def test_a_group_that_waits_for_nobody_is_never_failed_over_without_force() -> None:
    terms = Terms(ASYNC_MASTER, 1, 1, {"1": "s1"})
    one = {"s1": Standing("s1", 1, SLAVE, 1, 0, 50, terms=terms)}
    assert choose(one, None).winner is None
    assert choose(one, None, force=True).winner is not None


def test_a_long_tail_of_an_old_epoch_does_not_win() -> None:
    choice = choose(by_address(standing(1, 9000, log_epoch=1), standing(2, 300, log_epoch=2)), None)
    assert choice.winner is not None and choice.winner.address == "s2"


def test_the_one_who_is_wanted_is_chosen_among_equals_only() -> None:
    equal = by_address(standing(1, 100), standing(2, 100))
    assert choose(equal, None, wanted="s2").winner == equal["s2"]
    behind = choose(by_address(standing(1, 100), standing(2, 90)), None, wanted="s2")
    assert behind.winner is None and "s1 has more" in behind.reason
    assert choose(equal, None, wanted="s9").winner is None


def test_of_a_master_that_answers_too_nothing_may_be_missing() -> None:
    master = Standing("m", 0, SYNC_MASTER, 1, 0, 300, terms=standing(1, 0).terms)
    behind = by_address(standing(1, 280), standing(2, 290))
    choice = choose(behind, master)
    assert choice.winner is None and "10 bytes are missing" in choice.reason
    forced = choose(behind, master, force=True)
    assert forced.winner == behind["s2"] and "10 bytes are missing" in forced.reason


def test_what_is_at_risk_is_told_by_who_heard_of_most() -> None:
    heard = by_address(
        standing(1, 100, slaves=3, copies=2, master_end=450, master_age_ms=320),
        standing(2, 100, slaves=3, copies=2, master_end=400, master_age_ms=20),
    )
    assert "at least 350 bytes are at risk as of 320 ms" in choose(heard, None).reason


def test_with_the_master_s_own_word_one_slave_that_has_it_all_is_enough() -> None:
    master = Standing("m", 0, SYNC_MASTER, 1, 0, 300, terms=standing(1, 0).terms)
    assert choose(by_address(standing(1, 300)), master).winner is not None
    missing = choose(by_address(standing(1, 200)), master)
    assert missing.winner is None and "100 bytes are missing" in missing.reason


def test_the_terms_of_who_knows_most_count() -> None:
    old = Standing("s1", 1, SLAVE, 5, 3, 100, terms=Terms(SYNC_MASTER, 2, 7, {"1": "s1"}))
    new = Standing(
        "s2", 2, SLAVE, 5, 3, 100, terms=Terms(SYNC_MASTER, 2, 8, {"1": "s1", "2": "s2", "3": "s3"})
    )
    assert choose(by_address(old, new), None).winner is None, "two of three cannot know"


def test_a_promise_that_nobody_has_heard_of_again_is_a_risk() -> None:
    """Whoever asked for it may have made a master, who counts slaves that nobody here knows of."""
    doubting = standing(1, 100, slaves=1, doubt=2)
    choice = choose(by_address(doubting), None)
    assert choice.winner is None and "epoch 2" in choice.reason
    assert choose(by_address(doubting), None, force=True).winner is not None
    knows = msgspec.structs.replace(doubting.terms, version=9)
    other = Standing("s2", 2, SLAVE, 3, 2, 100, terms=knows)
    assert choose(by_address(doubting, other), None).winner is not None, "it followed that master"


@given(st.data())
def test_whoever_is_chosen_has_every_acknowledged_byte(data: st.DataObject) -> None:
    slaves = data.draw(st.integers(1, 5))
    copies = data.draw(st.integers(2, slaves + 1))
    ends = data.draw(st.lists(st.integers(0, 20), min_size=slaves, max_size=slaves))
    # Acknowledged is what `copies - 1` slaves have: the end that so many reach.
    acknowledged = sorted(ends, reverse=True)[copies - 2]
    answering = data.draw(st.sets(st.integers(1, slaves)))
    answers = by_address(*(standing(n, ends[n - 1], slaves=slaves, copies=copies) for n in sorted(answering)))
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

    def answer(self, send: Send) -> Answer:
        core = self.core
        match send.ask:
            case Ask.LOOK:
                return Answer(self.standing())
            case Ask.ACCEPT:
                outcome = core.accept(send.epoch, send.by)
            case Ask.RELEASE:
                outcome = core.release(send.epoch, send.by)
            case Ask.PROMOTE:
                outcome = core.promote(send.epoch, send.by, old_master=send.master, terms=send.terms)
            case Ask.FOLLOW:
                outcome = core.follow(send.epoch, send.broker_id, send.master, send.terms)
        if outcome.act is Act.LEAD:
            self.led.append((send.epoch, send.by))
            self.epochs = self.epochs.begin(send.epoch, self.end)
        return Answer(refusal=outcome.refusal) if outcome.refusal else Answer(self.standing())

    def standing(self) -> Standing:
        record = self.core.record
        return Standing(
            self.address, record.broker_id, record.role, record.epoch, record.reign, self.end,
            self.epochs.of_end(self.end), terms=record.terms, waiting=self.waiting,
        )  # fmt: skip


def group(ends: list[int], copies: int = 2) -> dict[str, Broker]:
    """A master `m` with the first end, and a slave for each other one."""
    terms = Terms(SYNC_MASTER, copies, 1, {str(n): f"s{n}" for n in range(1, len(ends))})
    found = {"m": Broker("m", RoleRecord(SYNC_MASTER, 0, terms=terms), ends[0])}
    for n, end in enumerate(ends[1:], 1):
        found[f"s{n}"] = Broker(f"s{n}", RoleRecord(SLAVE, n, terms=terms), end)
    return found


def carry(
    handover: Handover, brokers: dict[str, Broker], lost: Callable[[Send], bool] = lambda send: False
) -> Handover:
    """Deliver every question to whoever is in `brokers`, until it is over; time runs out when nothing moves."""
    due = handover.start()
    for _ in range(1000):
        if handover.is_over:
            return handover
        if not due:
            due = handover.time_is_up()
            continue
        send = due.pop(0)
        there = brokers.get(send.address)
        answer = there.answer(send) if there is not None and not lost(send) else Answer()
        due += handover.heard(send.address, send.ask, answer)
    raise AssertionError(f"it does not end: {handover.phase}")


def members(brokers: dict[str, Broker]) -> list[Member]:
    return [Member(each.address, each.core.record.broker_id) for each in brokers.values()]


def test_a_switch_makes_the_slave_master_and_the_master_its_slave() -> None:
    brokers = group([500, 500])
    done = carry(Handover(Kind.SWITCH, members(brokers), 1, "op", master="m", target="s1"), brokers)
    assert done.phase is Phase.DONE and done.winner is not None and done.winner.address == "s1"
    new, old = brokers["s1"].core.record, brokers["m"].core.record
    assert (new.role, new.broker_id, new.reign) == (SYNC_MASTER, 0, 1)
    assert (old.role, old.broker_id, old.reign, old.master) == (SLAVE, 1, 1, "s1")
    assert new.terms.slaves == {"1": "m"}


def test_a_switch_waits_until_the_slave_has_everything() -> None:
    brokers = group([500, 300])
    handover = Handover(Kind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    due = handover.heard("m", Ask.ACCEPT, brokers["m"].answer(fence))
    for ends_at in (300, 300, 300, 500, 500):
        brokers["s1"].end, brokers["m"].waiting = ends_at, 1
        due = [
            more
            for send in due
            for more in handover.heard(send.address, send.ask, brokers[send.address].answer(send))
        ]
        assert handover.phase is Phase.CATCH_UP, "a producer waits for its answer"
    brokers["m"].waiting = 0
    while due and not handover.is_over:
        due = [
            more
            for send in due
            for more in handover.heard(send.address, send.ask, brokers[send.address].answer(send))
        ]
    assert handover.phase is Phase.DONE


def test_a_switch_to_a_slave_that_never_comes_gives_the_group_back_to_its_master() -> None:
    brokers = group([500, 300])
    before = {address: each.core.record for address, each in brokers.items()}
    handover = Handover(Kind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    handover.heard("m", Ask.ACCEPT, brokers["m"].answer(fence))
    for send in handover.time_is_up():
        assert send.ask is Ask.RELEASE
        handover.heard(send.address, send.ask, brokers[send.address].answer(send))
    assert handover.phase is Phase.FAILED and "did not reach the master's end" in handover.reason
    assert {address: each.core.record for address, each in brokers.items()} == before


def test_a_failover_promotes_the_furthest_and_the_others_follow_it() -> None:
    brokers = group([500, 400, 450])
    del brokers["m"]
    known = [*members(brokers), Member("m", 0)]
    done = carry(Handover(Kind.FAILOVER, known, 1, "op", master="m"), brokers)
    assert done.phase is Phase.DONE and done.winner is not None and done.winner.address == "s2"
    assert brokers["s1"].core.record.master == "s2"
    assert brokers["s2"].core.record.terms.slaves == {"1": "s1", "2": "m"}


def test_a_failover_with_too_few_answers_leaves_everybody_as_it_was() -> None:
    brokers = group([500, 400, 450])
    known = members(brokers)
    del brokers["m"], brokers["s2"]
    done = carry(Handover(Kind.FAILOVER, known, 1, "op", master="m"), brokers)
    assert done.phase is Phase.FAILED and "1 of 2 slaves accepted" in done.reason
    assert brokers["s1"].core.record.epoch == 0
    forced = carry(Handover(Kind.FAILOVER, known, 1, "op", master="m", force=True), brokers)
    assert forced.phase is Phase.DONE and "at risk" not in forced.reason and "nobody knows" in forced.reason


def test_a_lost_answer_to_the_promotion_is_asked_for_again_and_nobody_is_released() -> None:
    brokers = group([500, 500])
    heard: list[Ask] = []

    def lost(send: Send) -> bool:
        heard.append(send.ask)
        if send.ask is Ask.PROMOTE and heard.count(Ask.PROMOTE) == 1:
            brokers[send.address].answer(send)  # carried out, and the answer lost
            return True
        return False

    done = carry(Handover(Kind.SWITCH, members(brokers), 1, "op", master="m", target="s1"), brokers, lost)
    assert done.phase is Phase.DONE and Ask.RELEASE not in heard
    assert brokers["s1"].led == [(1, "op")]


def test_who_is_interrupted_sets_everybody_free_unless_somebody_may_be_master() -> None:
    brokers = group([500, 300])
    before = {address: each.core.record for address, each in brokers.items()}
    handover = Handover(Kind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    handover.heard("m", Ask.ACCEPT, brokers["m"].answer(fence))
    for send in handover.abandon("interrupted"):
        brokers[send.address].answer(send)
    assert {address: each.core.record for address, each in brokers.items()} == before
    promoting = Handover(Kind.FAILOVER, members(brokers), 2, "op", master="m")
    (accept,) = promoting.start()
    (promote,) = promoting.heard("s1", Ask.ACCEPT, brokers["s1"].answer(accept))
    assert promote.ask is Ask.PROMOTE and promoting.abandon("interrupted") == []
    (again,) = promoting.heard("s1", Ask.PROMOTE, Answer())
    assert promoting.heard("s1", again.ask, Answer(refusal="another epoch")) == []
    assert promoting.phase is Phase.FAILED, "it may have been one for a while"


def test_a_master_that_takes_messages_although_it_was_fenced_is_left_alone() -> None:
    brokers = group([500, 300])
    handover = Handover(Kind.SWITCH, members(brokers), 1, "op", master="m", target="s1")
    (fence,) = handover.start()
    handover.heard("m", Ask.ACCEPT, brokers["m"].answer(fence))
    brokers["m"].end += 1
    (release,) = handover.heard("m", Ask.LOOK, Answer(brokers["m"].standing()))
    assert release.ask is Ask.RELEASE and "went on by itself" in handover.reason


def test_an_answer_that_comes_when_its_phase_is_over_changes_nothing() -> None:
    brokers = group([500, 400, 450])
    handover = Handover(Kind.FAILOVER, members(brokers), 1, "op", master="m")
    first, second = handover.start()
    handover.heard(first.address, first.ask, brokers[first.address].answer(first))
    released = handover.time_is_up()
    assert handover.phase is Phase.RELEASE and {send.ask for send in released} == {Ask.RELEASE}
    assert handover.heard(second.address, second.ask, brokers[second.address].answer(second)) == []
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
        epoch = 1 + max(each.core.record.epoch for each in brokers.values())
        by = f"op{attempt}"

        def lost(send: Send) -> bool:
            if chance.random() < 0.25:
                if chance.random() < 0.5 and send.address in alive:
                    alive[send.address].answer(send)  # it arrived; its answer did not
                return True
            return False

        done = carry(Handover(Kind.FAILOVER, known, epoch, by, master="m"), alive, lost)
        if done.phase is Phase.DONE:
            assert done.winner is not None
            assert brokers[done.winner.address].end >= acknowledged
            break
    led = [reign for each in brokers.values() for reign in each.led]
    assert len({epoch for epoch, _by in led}) == len(led), "two masters of one epoch"
    for each in brokers.values():
        assert not each.led or each.end >= acknowledged
