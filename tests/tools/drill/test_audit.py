from collections.abc import Sequence

import pytest

from tools.drill.audit import (
    Attempt,
    Audit,
    Found,
    Outcome,
    Sent,
    audit,
    outcome_of,
    overlapping_acknowledgements,
)
from tools.drill.messages import Identity, body_of, identify


def sent(number: int, *codes: int | None, queue: int = 0, lane: int = 0, offset: int | None = None) -> Sent:
    """A message with one attempt for each code; an acknowledgement says `offset`, and 100 times as much in the log."""
    entry = Sent(Identity(lane, number, queue))
    for index, code in enumerate(codes):
        at = number + index / 10
        attempt = Attempt(at, "node-1", at + 0.05, code)
        if code == 0 and offset is not None:
            attempt.queue_offset, attempt.log_offset = offset, 100 * offset
        entry.attempts.append(attempt)
    return entry


def found(*numbers: int, queue: int = 0, lane: int = 0, first: int = 0) -> list[Found]:
    return [
        Found(queue, first + index, Identity(lane, number, queue)) for index, number in enumerate(numbers)
    ]


def kinds(result: Audit) -> dict[str, int]:
    return {finding.kind: finding.count for finding in result.findings}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, "acknowledged"),
        (10, "unknown"),
        (11, "unknown"),
        (12, "unknown"),
        (None, "unknown"),
        (1, "refused"),
        (14, "refused"),
        (16, "refused"),
    ],
)
def test_only_status_0_is_an_acknowledgement_and_10_11_12_say_nothing(
    code: int | None, outcome: Outcome
) -> None:
    assert outcome_of(code) == outcome


def test_what_was_acknowledged_and_is_there_is_clean() -> None:
    result = audit([sent(1, 0, offset=0), sent(2, 0, offset=1)], found(1, 2))
    assert (result.acknowledged, result.lost, result.findings) == (2, 0, [])


def test_an_acknowledged_message_that_is_not_there_is_lost() -> None:
    result = audit([sent(1, 0, offset=0), sent(2, 0, offset=1)], found(1))
    assert result.lost == 1
    assert kinds(result) == {"acknowledged but lost": 1}
    assert "0-2" in result.findings[0].examples[0]


def test_an_acknowledged_message_of_a_removed_segment_is_removed_and_one_behind_it_is_lost() -> None:
    everything = [sent(number, 0, offset=number) for number in range(4)]
    result = audit(everything, found(2, 3, first=2), begin=200)
    assert (result.removed, result.lost, result.findings) == (2, 0, [])
    result = audit(everything, found(3, first=3), begin=200)
    assert (result.removed, result.lost) == (2, 1)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("code", [10, 11, 12, None])
def test_a_message_of_unknown_fate_may_be_there_or_not(code: int | None, there: bool) -> None:
    result = audit([sent(1, code)], found(1) if there else [])
    assert (result.unknown, result.unknown_found, result.findings) == (1, int(there), [])


def test_a_refused_message_that_is_there_is_told() -> None:
    assert kinds(audit([sent(1, 16)], found(1))) == {"refused but stored": 1}
    assert not audit([sent(1, 16)], []).findings


def test_a_message_that_was_sent_again_may_be_there_twice_and_counts_as_a_duplicate() -> None:
    result = audit([sent(1, None, 0, offset=1)], found(1, 1))
    assert (result.duplicates, result.findings) == (1, [])


@pytest.mark.parametrize("codes", [(0,), (16, 0), (1, 16, 0)])
def test_a_message_that_was_sent_once_may_not_be_there_twice(codes: Sequence[int]) -> None:
    assert kinds(audit([sent(1, *codes, offset=0)], found(1, 1))) == {"stored more often than sent": 1}


def test_first_records_out_of_their_producers_order_are_told_and_late_duplicates_are_not() -> None:
    everything = [sent(1, None, 0, offset=0), sent(2, 0, offset=1), sent(3, 0, offset=2)]
    assert audit(everything, found(1, 2, 3, 1)).order_violations == 0
    swapped = [sent(1, 0, offset=1), sent(2, 0, offset=0)]
    assert audit(swapped, found(2, 1)).order_violations == 1


def test_producers_and_queues_have_orders_of_their_own() -> None:
    everything = [
        sent(9, 0, lane=0, offset=0),
        sent(1, 0, lane=1, offset=1),
        sent(5, 0, lane=0, queue=1, offset=0),
    ]
    there = [Found(0, 0, Identity(0, 9, 0)), Found(0, 1, Identity(1, 1, 0)), Found(1, 0, Identity(0, 5, 1))]
    assert not audit(everything, there).findings


def test_a_message_at_another_place_than_acknowledged_is_told() -> None:
    assert kinds(audit([sent(1, 0, offset=7)], found(1))) == {"moved": 1}


def test_gaps_strangers_wrong_queues_and_changed_bytes_are_told() -> None:
    there = [
        Found(0, 3, Identity(0, 1, 0)),
        Found(0, 5, None),
        Found(0, 6, Identity(0, 2, 1)),
        Found(0, 7, Identity(0, 3, 0), intact=False),
    ]
    everything = [sent(1, 0, offset=3), sent(2, 0, queue=1, offset=6), sent(3, 0, offset=7)]
    found_kinds = kinds(audit([*everything[:1], *everything[2:]], there))
    assert found_kinds["gap in a queue"] == 1
    assert found_kinds["never sent"] == 2
    assert found_kinds["changed"] == 1
    assert (
        kinds(audit([Sent(Identity(0, 2, 1), [])], [Found(0, 0, Identity(0, 2, 1))]))["in another queue"] == 1
    )


def test_every_broker_that_acknowledges_has_its_time() -> None:
    def one(number: int, broker: str, at: float) -> Sent:
        return Sent(Identity(0, number, 0), [Attempt(at, broker, at + 0.01, 0)])

    entries = [one(1, "a", 1.0), one(2, "a", 2.0), one(3, "b", 3.0), one(4, "b", 4.0)]
    assert overlapping_acknowledgements(entries, [(0.0, "a"), (2.5, "b")]) == 0
    # Sent to the old master before the new one answered anything: it was under way.
    under_way = Sent(Identity(0, 5, 0), [Attempt(2.9, "a", 3.5, 0)])
    assert overlapping_acknowledgements([*entries, under_way], [(0.0, "a"), (2.5, "b")]) == 0
    late = Sent(Identity(0, 6, 0), [Attempt(3.2, "a", 3.5, 0)])
    assert overlapping_acknowledgements([*entries, late], [(0.0, "a"), (2.5, "b")]) == 1


def test_a_former_master_may_acknowledge_again_when_it_was_made_master_again() -> None:
    def one(number: int, broker: str, at: float) -> Sent:
        return Sent(Identity(0, number, 0), [Attempt(at, broker, at + 0.01, 0)])

    entries = [one(1, "a", 1.0), one(2, "b", 3.0), one(3, "a", 5.0)]
    assert overlapping_acknowledgements(entries, [(0.0, "a"), (2.0, "b"), (4.0, "a")]) == 0
    assert overlapping_acknowledgements(entries, [(0.0, "a")]) == 1


@pytest.mark.parametrize("size", [1, 120, 1000])
def test_a_body_says_whose_it_is_and_any_change_shows(size: int) -> None:
    identity = Identity(3, 41, 2)
    body = body_of("run1", identity, size)
    assert identify("run1", body) == (identity, True)
    for position in (len(body) - 1, len(body) // 2):
        changed = bytearray(body)
        changed[position] ^= 1
        assert identify("run1", bytes(changed)) != (identity, True)
    assert identify("run2", body) == (None, False)
    assert identify("run1", b"something else") == (None, False)


def test_a_leader_that_does_not_know_whether_it_is_kept_leaves_its_fate_open() -> None:
    assert outcome_of(1, "TERM_CHANGED: n0 does not lead any more") == "unknown"
    assert outcome_of(1, "QUORUM_LATE: most members did not have it") == "unknown"
    assert outcome_of(1, "the store failed") == "refused" == outcome_of(14, "TERM_CHANGED")
