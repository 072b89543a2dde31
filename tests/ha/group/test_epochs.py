"""Who wrote which part of the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.group.epochs import Epochs


def test_a_log_without_a_change_of_master_is_of_epoch_0() -> None:
    assert Epochs().of_end(0) == Epochs().of_end(1 << 40) == 0


def test_the_last_byte_decides_and_not_what_begins_behind_it() -> None:
    epochs = Epochs.of([(1, 0), (2, 900)])
    assert epochs.of_end(900) == 1, "the first byte of epoch 2 is not there yet"
    assert epochs.of_end(901) == 2


def test_a_new_reign_forgets_what_the_list_says_behind_the_own_end() -> None:
    adopted = Epochs.of([(1, 0), (2, 900)])
    assert adopted.begin(3, 850).pairs() == [(1, 0), (3, 850)]


def test_an_epoch_without_a_byte_leaves_no_trace() -> None:
    assert Epochs.of([(1, 0), (2, 900)]).begin(3, 900).pairs() == [(1, 0), (3, 900)]


def test_an_old_epoch_cannot_follow_a_newer_one() -> None:
    with pytest.raises(ValueError, match="epoch 2 cannot follow epoch 4"):
        Epochs.of([(4, 10)]).begin(2, 20)


@pytest.mark.parametrize(
    "pairs", [[(2, 0), (1, 5)], [(1, 5), (2, 5)], [(0, 0)], [(1,)], [(1, "0")], [(1, -1)]]
)
def test_what_is_no_list_of_epochs_is_refused(pairs: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="epoch"):
        Epochs.of(pairs)


def test_logs_agree_up_to_where_their_writers_part() -> None:
    old_master, new_master = Epochs.of([(1, 0)]), Epochs.of([(1, 0), (2, 900)])
    assert old_master.agree_up_to(1000, new_master, 950) == 900
    assert new_master.agree_up_to(950, old_master, 1000) == 900
    assert old_master.agree_up_to(800, new_master, 950) == 800


def test_logs_of_no_known_writer_may_agree_as_far_as_both_reach() -> None:
    assert Epochs().agree_up_to(500, Epochs(), 300) == 300
    assert Epochs().agree_up_to(500, Epochs.of([(1, 400)]), 900) == 400
    assert Epochs().agree_up_to(500, Epochs.of([(1, 0)]), 900) == 0, "another log altogether"


_histories = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=6)


def _history(steps: list[tuple[int, int]]) -> tuple[Epochs, list[int]]:
    """A list, and the epoch of every byte of its log."""
    epochs, epoch = Epochs(), 0
    writers: list[int] = []
    for more, size in steps:
        epoch += more
        epochs = epochs.begin(epoch, len(writers))
        writers += [epoch] * size
    return epochs, writers


@given(_histories, st.integers(0, 24), _histories)
def test_the_bound_is_where_the_writers_of_the_bytes_begin_to_differ(
    steps: list[tuple[int, int]], cut: int, others: list[tuple[int, int]]
) -> None:
    mine, my_writers = _history(steps)
    # The other log shares a prefix and goes on under epochs of its own.
    theirs, writers = mine.cut(cut), my_writers[:cut]
    epoch = max(writers, default=0)
    for more, size in others:
        epoch += more
        if (epoch, len(writers)) in mine.pairs():
            epoch += 100  # no two masters share an epoch
        theirs = theirs.begin(epoch, len(writers))
        writers += [epoch] * size
    common = 0
    while common < min(len(writers), len(my_writers)) and writers[common] == my_writers[common]:
        common += 1
    bound = mine.agree_up_to(len(my_writers), theirs, len(writers))
    assert bound == theirs.agree_up_to(len(writers), mine, len(my_writers))
    assert bound == common
