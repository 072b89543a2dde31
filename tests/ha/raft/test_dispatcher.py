"""What a leader sends to one peer, where the transcripts do not show it."""

from __future__ import annotations

import pytest

from ha.raft.dispatcher import EntryDispatcher, RecentRuns, State
from ha.raft.log_state import LogState
from ha.raft.quorum import ConfigHistory
from ha.raft.terms import TermTable
from ha.raft.types import NOTHING, AppendAnswer, Config, HeartbeatAnswer, Point, Run, Settings
from ropewalk.errors import RemoteProtocolError

SETTINGS = Settings()
END = Point(99, 1, 9900)


def log() -> LogState:
    return LogState(TermTable([(1, 0, 0)]), ConfigHistory(Config(("n0", "n1"))), END, NOTHING)


def probing() -> EntryDispatcher:
    """A peer that was asked whether it has entry 99, and has nothing."""
    dispatcher = EntryDispatcher("n1", SETTINGS, END, True)
    assert dispatcher.next_send(log(), RecentRuns(), 1, 0) is not None
    dispatcher.answered(AppendAnswer(1, False, 99, -1, -1, -1), log())
    return dispatcher


def test_a_read_that_was_lost_is_asked_for_again() -> None:
    # JRaft issue 1271: a wake-up was lost, heartbeats went on, replication was dead.
    dispatcher = probing()
    asked = ("n1", 0, SETTINGS.frame_bytes_max)
    assert dispatcher.next_fetch(log(), 0) == asked
    assert dispatcher.next_fetch(log(), 1999) is None
    assert dispatcher.next_fetch(log(), 2000) == asked


def test_a_peer_that_lags_is_read_for_in_larger_pieces_once_its_log_is_known_to_agree() -> None:
    # Each read takes a turn of a loop that is busy with producers: pieces of a frame's size were 35 MB/s there.
    dispatcher = probing()
    dispatcher.next_fetch(log(), 0)
    assert dispatcher.fetched(NOTHING, Run(0, 10, 1, 0, 1000), log(), 1, 0) is not None
    dispatcher.answered(AppendAnswer(1, True, -1, 9, 9, -1), log())
    assert dispatcher.next_fetch(log(), 0) == ("n1", 10, SETTINGS.fetch_bytes_max)
    assert SETTINGS.fetch_bytes_max > SETTINGS.frame_bytes_max


def test_a_read_that_comes_late_is_dropped() -> None:
    dispatcher = probing()
    dispatcher.next_fetch(log(), 0)
    dispatcher.probe(50)
    assert dispatcher.fetched(NOTHING, Run(0, 10, 1, 0, 1000), log(), 1, 0) is None
    assert dispatcher.next == 50


def test_what_retention_removed_needs_a_snapshot() -> None:
    # DLedger issue 87: the index to write lay below the leader's first one, and replication stood still.
    dispatcher = probing()
    dispatcher.next_fetch(log(), 0)
    dispatcher.fetched(NOTHING, None, log(), 1, 0)
    assert dispatcher.state is State.SNAPSHOT
    assert dispatcher.next_fetch(log(), 9000) is None
    assert dispatcher.needs_snapshot(0)
    dispatcher.snapshot_ended(60)
    assert (dispatcher.state, dispatcher.next) == (State.PROBE, 61)


def test_a_peer_that_lacks_the_state_in_front_of_the_log_needs_a_snapshot_though_all_entries_are_there() -> (
    None
):
    dispatcher = probing()
    dispatcher.next_fetch(log(), 0)
    assert dispatcher.fetched(NOTHING, Run(0, 10, 1, 0, 1000), log(), 1, 0) is not None
    dispatcher.answered(AppendAnswer(1, False, -1, -1, -1, -1, lacks_state=True), log())
    assert dispatcher.state is State.SNAPSHOT and dispatcher.needs_snapshot(0)


def test_a_snapshot_of_which_nothing_is_heard_any_more_is_asked_for_again() -> None:
    dispatcher = probing()
    dispatcher.next_fetch(log(), 0)
    dispatcher.fetched(NOTHING, None, log(), 1, 0)
    assert dispatcher.needs_snapshot(0) and not dispatcher.needs_snapshot(4900)
    dispatcher.snapshot_goes_on(4900)
    assert not dispatcher.needs_snapshot(9800) and dispatcher.needs_snapshot(9900)


def test_another_link_ends_a_snapshot() -> None:
    dispatcher = probing()
    dispatcher.next_fetch(log(), 0)
    dispatcher.fetched(NOTHING, None, log(), 1, 0)
    dispatcher.linked(False)
    dispatcher.linked(True)
    assert dispatcher.state is State.PROBE and dispatcher.match == -1


def test_an_answer_beyond_the_log_is_no_answer_of_a_correct_member() -> None:
    with pytest.raises(RemoteProtocolError, match="confirms entries through 100"):
        probing().answered(AppendAnswer(1, True, -1, 100, 100, -1), log())
    with pytest.raises(RemoteProtocolError, match="confirms"):
        probing().heard(HeartbeatAnswer(1, 1, 3, 4), log(), 0)


def test_a_refusal_that_was_overtaken_moves_nothing() -> None:
    dispatcher = probing()
    dispatcher.next_fetch(log(), 0)
    dispatcher.fetched(NOTHING, Run(0, 10, 1, 0, 1000), log(), 1, 0)
    dispatcher.answered(AppendAnswer(1, True, -1, 9, 9, -1), log())
    assert (dispatcher.state, dispatcher.match, dispatcher.next) == (State.REPLICATE, 9, 10)
    for refusal in (AppendAnswer(1, False, 5, -1, 4, 1), AppendAnswer(1, False, 30, -1, 4, 1)):
        dispatcher.answered(refusal, log())
    assert (dispatcher.state, dispatcher.match, dispatcher.next) == (State.REPLICATE, 9, 10)


def test_the_oldest_runs_are_dropped_when_there_are_many() -> None:
    recent = RecentRuns(bytes_max=250, count_max=10)
    for index in range(4):
        recent.add(Point(index - 1, 1, index * 100), Run(index, 1, 1, index * 100, 100))
    assert [recent.get(index, 1000) is not None for index in range(4)] == [False, False, True, True]


def test_runs_that_waited_for_room_leave_in_one_frame_through_the_segments_end() -> None:
    # Over a link of 20 ms, a frame for each message let eight windows of them through in a second, and no more.
    recent = RecentRuns()
    for index in range(6):
        pos = index * 100 if index < 4 else 1024 + (index - 4) * 100
        recent.add(Point(index - 1, 1, index * 100), Run(index, 1, 1, pos, 100))
    nothing_before = Point(-1, 1, 0)
    assert recent.get(0, 1000) == (nothing_before, Run(0, 4, 1, 0, 400)), (
        "the next one stands in another segment"
    )
    assert recent.get(0, 299) == (nothing_before, Run(0, 2, 1, 0, 200)), (
        "three would be more than a frame holds"
    )
    assert recent.get(4, 1000) == (Point(3, 1, 400), Run(4, 2, 1, 1024, 200))
    assert recent.get(5, 1000) == (Point(4, 1, 500), Run(5, 1, 1, 1124, 100))
