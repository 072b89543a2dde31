"""When the log tells again of a refusal that goes on."""

from __future__ import annotations

from broker.admin.repeated import REFUSALS_MAX, SAY_AGAIN_MS, Repeated


def test_a_refusal_that_goes_on_is_told_every_ten_minutes_with_the_number() -> None:
    repeated = Repeated()
    assert repeated.count("10.0.0.1", "no secret", 0) == 1
    assert [repeated.count("10.0.0.1", "no secret", moment) for moment in (1, 2, SAY_AGAIN_MS - 1)] == [
        0,
        0,
        0,
    ]
    assert repeated.count("10.0.0.1", "no secret", SAY_AGAIN_MS) == 4
    assert repeated.count("10.0.0.1", "no secret", SAY_AGAIN_MS + 1) == 0


def test_two_addresses_that_take_turns_are_one_line_each_and_another_reason_is_told() -> None:
    repeated = Repeated()
    told = [
        repeated.count(peer, "no secret", moment) for moment in range(10) for peer in ("10.0.0.1", "10.0.0.2")
    ]
    assert sum(map(bool, told)) == 2
    assert repeated.count("10.0.0.1", "another secret", 11) == 1


def test_strangers_of_many_addresses_take_no_memory_without_a_bound() -> None:
    repeated = Repeated()
    for number in range(10 * REFUSALS_MAX):
        assert repeated.count(f"10.0.{number >> 8}.{number & 255}", "no secret", number) == 1
    assert len(repeated._told) == REFUSALS_MAX
