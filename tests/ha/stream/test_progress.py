"""Of a long copy people are told that it begins, how it gets on, and that it is over; of a short one, nothing."""

from ha.stream.progress import FAR, NEAR, TOLD_MS, CopyProgress

MB = 1_000_000


def test_a_slave_that_is_close_is_not_worth_a_word() -> None:
    copying = CopyProgress()
    assert [copying.observe(behind, 0, 0) for behind in (0, NEAR, FAR)] == [None, None, None]
    assert copying.text == ""


def test_a_long_copy_is_told_from_its_beginning_to_its_end() -> None:
    copying = CopyProgress()
    assert copying.observe(1000 * MB, 7, 0) == "1,000 MB of the master's log are missing here: copying them"
    assert copying.text == "copying, 0 %"
    assert copying.observe(900 * MB, 100 * MB + 7, TOLD_MS - 1) is None, "not every moment"
    assert copying.text == "copying, 10 %"
    assert copying.observe(750 * MB, 250 * MB + 7, TOLD_MS) == (
        "copying the master's log: 25 %, 250 MB are here, 750 MB are missing, 50 MB/s, about 15 s to go"
    )
    assert copying.observe(NEAR, 1000 * MB + 7, 2 * TOLD_MS) == (
        "copied 1,000 MB of the master's log in 10.0 s (100 MB/s)"
    )
    assert copying.text == ""
    assert copying.observe(FAR, 1000 * MB + 7, 3 * TOLD_MS) is None


def test_a_copy_that_stands_still_says_so() -> None:
    copying = CopyProgress()
    copying.observe(1000 * MB, 0, 0)
    assert str(copying.observe(1000 * MB, 0, TOLD_MS)).endswith("0 MB/s, it stands still")


def test_a_master_that_grows_as_fast_is_no_end_of_the_copy() -> None:
    copying = CopyProgress()
    copying.observe(1000 * MB, 0, 0)
    told = str(copying.observe(1000 * MB, 1000 * MB, TOLD_MS))
    assert told.startswith("copying the master's log: 50 %") and copying.text == "copying, 50 %"
