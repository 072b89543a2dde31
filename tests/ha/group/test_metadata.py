"""Whose offset wins, and what has changed since."""

from hypothesis import given
from hypothesis import strategies as st

from ha.group.hello import decode_untrusted, encode
from ha.group.metadata import OffsetJournal, Seen, SyncRequest, SyncResponse, wins
from ha.group.roles import QuorumPolicy


def test_the_later_commit_wins_also_when_it_goes_back() -> None:
    assert wins((5, 200), (90, 100))
    assert not wins((90, 100), (5, 200))
    assert wins((6, 100), (5, 100)) and not wins((5, 100), (5, 100))
    assert wins((0, 0), None)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12), st.randoms())
def test_two_members_agree_in_whatever_order_they_hear(
    commits: list[tuple[int, int]], chance: object
) -> None:
    def merged(order: list[tuple[int, int]]) -> tuple[int, int] | None:
        kept: tuple[int, int] | None = None
        for commit in order:
            if wins(commit, kept):
                kept = commit
        return kept

    shuffled = list(commits)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merged(commits) == merged(shuffled)


KEYS = [("T", "g", 0), ("T", "g", 1), ("U", "g", 0)]


def test_a_journal_tells_what_changed_since_oldest_first_and_once() -> None:
    journal = OffsetJournal()
    for key in (KEYS[0], KEYS[1], KEYS[0]):
        journal.record(key, 100 + journal.sequence)
    assert journal.since(0) == ([(KEYS[1], 101), (KEYS[0], 102)], 3)
    assert journal.since(3) == ([], 3)
    journal.record(KEYS[2], 500)
    assert journal.since(3) == ([(KEYS[2], 500)], 4)
    assert journal.time_of(KEYS[0]) == 102 and journal.time_of(("V", "g", 0)) == 0


def test_a_long_list_comes_in_parts_that_miss_nothing() -> None:
    journal = OffsetJournal()
    journal.load((("T", "g", n), n) for n in range(10))
    found, sequence = [], 0
    while True:
        part, sequence = journal.since(sequence, limit=3)
        if not part:
            break
        found += part
    assert found == [(("T", "g", n), n) for n in range(10)]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=30))
def test_a_reader_that_asks_now_and_then_ends_with_every_latest_time(
    steps: list[tuple[tuple[str, str, int], bool]],
) -> None:
    journal = OffsetJournal()
    copy: dict[tuple[str, str, int], int] = {}
    sequence = 0
    for time, (key, asks) in enumerate(steps):
        journal.record(key, time)
        if asks:
            part, sequence = journal.since(sequence, limit=2)
            copy.update(part)
    while part := journal.since(sequence, limit=2)[0]:
        sequence = journal.since(sequence, limit=2)[1]
        copy.update(part)
    assert copy == journal.times()


def test_what_was_forgotten_is_not_told() -> None:
    journal = OffsetJournal()
    journal.record(KEYS[0], 1)
    journal.forget([KEYS[0], KEYS[1]])
    assert journal.since(0) == ([], 0) and len(journal) == 0


def test_questions_and_answers_travel() -> None:
    ask = SyncRequest(1, "b:1", 3, Seen("run", 1, 2, 3, 4), 500, 400, 7, 3, [("T", "g", 0, 5, 100)])
    assert decode_untrusted(SyncRequest, encode(ask)) == ask
    answer = SyncResponse(3, ask.seen, 9, 8, 7, QuorumPolicy(), {"t": {}}, None, {"1": 5}, ask.commits, True)
    assert decode_untrusted(SyncResponse, encode(answer)) == answer
