"""What a master owes one slave: where it begins, what is under way, when it is hung up on."""

from __future__ import annotations

import pytest

from ha.stream.connection import WINDOW, HaConnection, HaRules, State
from ropewalk.errors import RemoteProtocolError
from tests.ha.worlds import SEGMENT, FakeSource, report
from tests.support.clocks import Clock
from tests.support.links import BufferedLink


class World:
    def __init__(self, size: int = 100_000, rules: HaRules | None = None) -> None:
        self.clock, self.link = Clock(), BufferedLink()
        self.source = FakeSource(bytearray(n * 7 % 251 for n in range(size)))
        self.changes = 0
        self.connection = HaConnection(
            self.link, self.source, rules or HaRules(), lambda _c, offset: offset, self._changed, self.clock
        )

    def _changed(self, _connection: HaConnection) -> None:
        self.changes += 1

    def backlog(self) -> bool:
        return self.connection.has_backlog

    def tick(self, later_ms: int) -> None:
        self.clock.ms += later_ms
        self.connection.tick()


def test_nothing_is_said_before_the_first_report() -> None:
    world = World()
    for _ in range(190):
        world.connection.advance()
        world.tick(100)
    assert world.link.take() == b"" and world.connection.state is State.SILENT
    assert not world.backlog()


def test_the_log_follows_the_report_in_frames_that_no_segment_border_falls_into() -> None:
    world = World(3 * SEGMENT)
    world.connection.receive(report(SEGMENT - 1000))
    world.connection.advance()
    frames = world.link.frames()
    assert b"".join(body for _, body in frames) == bytes(world.source.data[SEGMENT - 1000 :])
    at = SEGMENT - 1000
    for offset, body in frames:
        assert offset == at and 0 < len(body) <= 32_768
        assert offset // SEGMENT == (offset + len(body) - 1) // SEGMENT
        at += len(body)
    assert world.connection.next_offset == 3 * SEGMENT


def test_no_more_is_under_way_than_the_window_and_the_rest_follows_when_some_was_taken() -> None:
    world = World(5 * WINDOW)
    world.connection.receive(report(0))
    world.connection.advance()
    assert WINDOW <= world.link.out_size <= 2 * WINDOW
    world.connection.advance()
    assert world.link.out_size <= 2 * WINDOW
    assert not world.backlog()
    got = bytearray()
    while frames := world.link.frames():
        got += b"".join(body for _, body in frames)
        if world.backlog():
            world.connection.resume()
    assert got == world.source.data


def test_reports_are_taken_in_while_the_slave_takes_nothing() -> None:
    world = World(5 * WINDOW)
    world.connection.receive(report(0))
    world.connection.advance()
    assert world.link.out_size
    world.connection.receive(report(10, 20))
    assert world.connection.acknowledged == 20 and world.changes == 2


def test_a_report_cut_into_bytes_counts_when_it_is_complete() -> None:
    world = World()
    world.connection.receive(report(0))
    world.connection.advance()
    for byte in report(77):
        assert world.connection.acknowledged == 0
        world.connection.receive(bytes((byte,)))
    assert world.connection.acknowledged == 77


@pytest.mark.parametrize("offset", [-1, 100_001, 1 << 62, int.from_bytes(b"GET / HT", "big")])
def test_a_report_beyond_what_was_sent_is_refused_and_never_counts(offset: int) -> None:
    world = World()
    world.connection.receive(report(0))
    world.connection.advance()
    with pytest.raises(RemoteProtocolError, match="only bytes before 100000 were sent"):
        world.connection.receive(report(offset))
    assert world.connection.acknowledged == 0


def test_a_report_beyond_what_was_sent_so_far_is_one_too() -> None:
    world = World(5 * WINDOW)
    world.connection.receive(report(0))
    world.connection.advance()
    with pytest.raises(RemoteProtocolError):
        world.connection.receive(report(world.connection.next_offset + 1))


def test_the_last_report_is_what_a_slave_has_also_where_it_is_less_than_before() -> None:
    world = World()
    world.connection.receive(report(0))
    world.connection.advance()
    world.connection.receive(report(900))
    world.connection.receive(report(700))
    assert world.connection.acknowledged == 700


# -- time ---------------------------------------------------------------------------------------------------


def test_an_idle_connection_gets_a_heartbeat_that_names_the_next_byte() -> None:
    world = World(1000)
    world.connection.receive(report(400))
    world.connection.advance()
    world.link.take()
    world.tick(5000)
    assert world.link.take() == b""
    world.tick(1)
    assert world.link.frames() == [(1000, b"")]
    world.tick(4999)
    assert world.link.frames() == []
    world.connection.receive(report(1000))
    world.source.data += b"new"
    world.tick(2)
    assert world.link.frames() == [(1000, b"new")], "bytes are a heartbeat too"
    world.tick(4999)
    assert world.link.frames() == []


def test_a_slave_that_takes_nothing_is_owed_no_heartbeats_besides() -> None:
    world = World(1000)
    world.connection.receive(report(0))
    world.connection.advance()
    for _ in range(3):
        world.tick(5001)
        world.connection.receive(report(0))
    assert len(world.link.frames()) == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_slave_is_given_up_after_twenty_seconds_of_silence_and_not_before(first: bool) -> None:
    world = World()
    if first:
        world.connection.receive(report(0))
        world.tick(10_000)
        world.connection.receive(report(5))
    world.tick(19_900)
    world.tick(100)
    with pytest.raises(RemoteProtocolError, match="no report for more than 20000 ms"):
        world.tick(100)


def test_what_a_stuck_slave_is_owed_is_copied_out_of_the_map() -> None:
    world = World()
    world.connection.receive(report(0))
    world.connection.advance()
    world.tick(500)
    world.tick(900)
    assert world.link.owned == 0
    world.tick(200)
    assert world.link.owned == 1


def test_a_slave_that_is_overtaken_by_retention_is_told_to_go() -> None:
    world = World(5 * WINDOW)
    world.connection.receive(report(0))
    world.connection.advance()
    removed = 4 * WINDOW
    del world.source.data[:removed]
    world.source.begin = removed
    with pytest.raises(RemoteProtocolError, match=f"the log begins at {removed} by now"):
        world.tick(100)


def test_flow_control_counts_bodies_and_pauses_when_the_second_is_used_up() -> None:
    world = World(500_000, HaRules(bytes_per_second=100_000))
    world.connection.receive(report(0))
    world.connection.advance()
    sent = [sum(len(body) for _, body in world.link.frames())]
    assert not world.backlog()
    for _ in range(35):
        world.tick(100)
        sent.append(sum(len(body) for _, body in world.link.frames()))
        assert not any(body == b"" for _, body in world.link.frames())
    assert sent[0] == 100_000 and sum(sent[:10]) == 100_000
    assert 300_000 <= sum(sent) <= 400_000


# -- cold bytes ---------------------------------------------------------------------------------------------


def test_cold_bytes_are_fetched_and_meanwhile_nothing_else_is_sent() -> None:
    world = World(SEGMENT)
    world.source.warm_from = 40_000
    world.connection.receive(report(0))
    world.connection.advance()
    world.connection.advance()
    assert world.link.take() == b"" and len(world.source.fetches) == 1
    assert not world.backlog()
    world.source.answer()
    world.connection.advance()
    assert b"".join(body for _, body in world.link.frames()) == bytes(world.source.data)


def test_bytes_that_cannot_be_read_are_asked_for_again_a_second_later() -> None:
    world = World(1000)
    world.source.warm_from = 1000
    world.connection.receive(report(0))
    world.connection.advance()
    world.source.answer(fails=True)
    world.connection.advance()
    world.tick(999)
    assert world.source.fetches == [] and not world.backlog()
    world.tick(1)
    for _ in range(5):
        world.source.answer(fails=True)
        world.tick(1000)
    assert world.link.frames() == [(0, b"")], "the heartbeat still names the byte that is next"
    world.source.answer()
    assert world.link.frames() == [(0, bytes(world.source.data))]


def test_what_is_fetched_for_a_slave_that_is_gone_is_dropped() -> None:
    world = World(1000)
    world.source.warm_from = 1000
    world.connection.receive(report(0))
    world.connection.advance()
    world.connection.closed()
    world.link.close()
    world.source.answer()
    assert world.connection.state is State.SHUTDOWN and world.link.out == []


def test_in_sync_is_close_to_the_end_and_only_after_a_report() -> None:
    world = World(1000, HaRules(gap_max=100))
    assert not world.connection.is_in_sync(0)
    world.connection.receive(report(900))
    assert not world.connection.is_in_sync(1000)
    assert world.connection.is_in_sync(999)
