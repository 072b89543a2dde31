"""Which offset may be acknowledged, and which one consumers may see."""

import random

from ha.stream.group_transfer import GroupTransfer
from store.log.limits import NO_LIMIT


def test_nobody_is_waited_for_where_no_slave_is_needed() -> None:
    transfer = GroupTransfer(0, 3000, 100)
    assert (transfer.confirmed, transfer.decided) == (NO_LIMIT, NO_LIMIT)
    assert not transfer.reported([5])


def test_a_turn_is_confirmed_when_enough_slaves_have_all_of_it() -> None:
    transfer = GroupTransfer(1, 3000, 100)
    transfer.appended(200, 0, available=True)
    transfer.appended(300, 1, available=True)
    assert (transfer.confirmed, transfer.decided) == (100, 100)
    assert transfer.reported([199])
    assert (transfer.confirmed, transfer.decided) == (199, 100), "consumers see whole turns only"
    assert transfer.reported([250])
    assert (transfer.confirmed, transfer.decided) == (250, 200)
    assert transfer.reported([10, 300])
    assert (transfer.confirmed, transfer.decided) == (300, 300)


def test_the_slowest_of_those_that_are_needed_decides() -> None:
    transfer = GroupTransfer(2, 3000, 0)
    transfer.appended(100, 0, available=True)
    assert not transfer.reported([100])
    assert not transfer.reported([])
    assert transfer.reported([100, 40, 70])
    assert transfer.confirmed == 70
    assert transfer.reported([100, 100, 5])
    assert transfer.decided == 100


def test_what_is_confirmed_stays_so_when_the_slave_goes() -> None:
    transfer = GroupTransfer(1, 3000, 0)
    transfer.appended(100, 0, available=True)
    transfer.reported([100])
    assert not transfer.reported([])
    assert not transfer.reported([50])
    assert (transfer.confirmed, transfer.decided) == (100, 100)


def test_late_slaves_let_consumers_see_and_confirm_nothing() -> None:
    transfer = GroupTransfer(1, 3000, 0)
    transfer.appended(100, 1000, available=True)
    transfer.appended(200, 1500, available=True)
    transfer.expire(3999)
    assert transfer.decided == 0
    transfer.expire(4000)
    assert (transfer.confirmed, transfer.decided) == (0, 100)
    transfer.expire(4500)
    assert (transfer.confirmed, transfer.decided) == (0, 200)


def test_what_finds_too_few_slaves_is_decided_at_once_but_never_before_what_waits() -> None:
    transfer = GroupTransfer(1, 3000, 0)
    transfer.appended(100, 0, available=False)
    assert transfer.decided == 100
    transfer.appended(200, 10, available=True)
    transfer.appended(300, 20, available=False)
    assert transfer.decided == 100
    transfer.expire(3010)
    assert transfer.decided == 300


def test_a_turn_without_an_append_is_no_wait() -> None:
    transfer = GroupTransfer(1, 10, 0)
    transfer.appended(100, 0, available=True)
    transfer.appended(100, 5, available=False)
    assert transfer.decided == 0


def test_against_a_plain_model() -> None:
    """The same as asking, for every turn, whether enough slaves had it or its time was over."""
    for seed in range(300):
        chance = random.Random(seed)
        needed = chance.randint(1, 3)
        transfer = GroupTransfer(needed, 50, 0)
        turns: list[tuple[int, int]] = []  # (end, deadline)
        decided: set[int] = set()
        best: list[int] = []
        end = now = confirmed = 0
        for _ in range(60):
            now += chance.randint(0, 20)
            match chance.randint(0, 2):
                case 0:
                    end += chance.randint(1, 50)
                    available = chance.random() < 0.7
                    turns.append((end, now + 50 if available else now))
                    transfer.appended(end, now, available=available)
                case 1:
                    best = [chance.randint(0, end) for _ in range(chance.randint(0, 4))]
                    transfer.reported(best)
                    if len(best) >= needed:
                        confirmed = max(confirmed, sorted(best, reverse=True)[needed - 1])
                case _:
                    transfer.expire(now)
            through = 0
            for at, deadline in turns:
                if at in decided or at <= confirmed or deadline <= now:
                    through = at
                    if at <= transfer.decided:
                        decided.add(at)
                else:
                    break
            assert transfer.confirmed == confirmed, seed
            assert transfer.decided <= through, seed
            transfer.expire(now)
            assert transfer.decided == through, seed


def test_a_report_that_comes_before_its_turn_has_ended_decides_the_turn_when_it_does() -> None:
    """Slaves get bytes of a turn that goes on, and are quick: consumers do not wait for a report that came already."""
    transfer = GroupTransfer(1, 3000, 100)
    assert transfer.reported([300])
    transfer.appended(200, 0, available=True)
    assert (transfer.confirmed, transfer.decided) == (300, 200)
    transfer.appended(300, 0, available=True)
    assert (transfer.confirmed, transfer.decided) == (300, 300)
    transfer.appended(301, 0, available=True)
    assert transfer.decided == 300
