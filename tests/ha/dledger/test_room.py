"""A log that waits for room: people are told of a wait that lasts, once, and of its end."""

from __future__ import annotations

from structlog.testing import capture_logs

from ha.dledger.room import STUCK_MS, DiskRoom
from ha.raft.types import Role


def test_people_are_told_once_of_a_log_that_waits_for_long_and_once_when_it_goes_on() -> None:
    room, states = DiskRoom(3), []
    with capture_logs() as logs:
        for at, since, role in (
            (100 + STUCK_MS - 1, 100, Role.LEADER),  # it may wait for its next segment only
            (100 + STUCK_MS, 100, Role.LEADER),
            (100 + 2 * STUCK_MS, 100, Role.LEADER),
            (5 * STUCK_MS, None, Role.FOLLOWER),
            (6 * STUCK_MS, None, Role.FOLLOWER),
        ):
            room.waits(since)
            room.tick(at, role, 7)
            states.append(room.is_stuck)
    assert states == [False, True, True, False, False]
    assert [each["log_level"] for each in logs] == ["error", "info"]
    assert all(each["region"] == 2 and each["end"] == 7 for each in logs)
