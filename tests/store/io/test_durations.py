"""How long things took, counted in classes."""

from store.io.durations import Durations


def test_a_duration_is_counted_once_in_the_first_class_that_holds_it() -> None:
    durations = Durations((0.001, 0.01, 0.1))
    for seconds in (0.0, 0.001, 0.0011, 0.01, 0.05, 0.1, 0.11, 1000.0):
        durations.add(seconds)
    assert durations.counts == [2, 2, 2, 2]
    assert durations.total == sum((0.0, 0.001, 0.0011, 0.01, 0.05, 0.1, 0.11, 1000.0))
