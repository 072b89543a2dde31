from tools.drill.timeline import Gap, Sample, Timeline, gaps, lag_bytes, longest_gap, per_bucket


def test_times_count_from_the_beginning_of_the_load() -> None:
    now = 100.0
    timeline = Timeline(lambda: now)
    now = 107.0
    timeline.begin()
    now = 109.5
    assert timeline.add("fault", "kill").at == 2.5


def test_the_longest_gap_lies_between_two_acknowledgements_or_at_an_edge() -> None:
    times = [1.0, 1.1, 3.0, 3.1]
    assert longest_gap(times, 1.0, 3.1) == Gap(1.1, 3.0)
    assert longest_gap(times, 1.0, 9.0) == Gap(3.1, 9.0)
    assert longest_gap([], 2.0, 5.0) == Gap(2.0, 5.0)
    assert longest_gap(times, 4.0, 4.0).seconds == 0


def test_gaps_below_the_limit_are_left_out() -> None:
    assert gaps([1.0, 1.2, 2.0], 1.0, 2.05, 0.5) == [Gap(1.2, 2.0)]


def test_buckets_cover_the_whole_load_and_keep_latecomers_in_the_last() -> None:
    assert per_bucket([0.0, 0.05, 0.1, 0.29, 7.0], 0.1, 0.3) == [2, 1, 2]
    assert per_bucket([], 0.1, 0.0) == [0]


def test_a_member_is_behind_whoever_was_furthest_a_moment_ago() -> None:
    samples = [
        Sample(0.0, "a", 100),
        Sample(0.1, "b", 40),
        Sample(0.2, "a", None),
        Sample(0.3, "b", 100),
        Sample(5.0, "a", 100),
        Sample(5.1, "b", 300),
    ]
    assert lag_bytes(samples) == {"a": [(0.0, 0), (5.0, 0)], "b": [(0.1, 60), (0.3, 0), (5.1, 0)]}


def test_an_old_sample_of_a_silent_member_is_no_measure() -> None:
    assert lag_bytes([Sample(0.0, "a", 500), Sample(3.0, "b", 100)])["b"] == [(3.0, 0)]
