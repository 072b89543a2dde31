"""Whose reports count, and where a slave may begin."""

from __future__ import annotations

import pytest

from ha.stream.connection import HaConnection, HaRules, State
from ha.stream.service import HaService, Replica
from ropewalk.errors import RemoteProtocolError
from tests.ha.worlds import SEGMENT, FakeSource, report
from tests.support.clocks import Clock
from tests.support.links import BufferedLink


class World:
    def __init__(self, size: int = 1000, **rules: object) -> None:
        self.clock = Clock()
        self.source = FakeSource(bytearray(size))
        self.service = HaService(self.source, HaRules(**rules), self.clock, self._reported)  # type: ignore[arg-type]
        self.reports = 0
        self.service.begin()
        self._port = 40_000

    def _reported(self) -> None:
        self.reports += 1

    def connect(self, ip: str = "10.0.0.2", port: int | None = None) -> tuple[HaConnection, BufferedLink]:
        self._port += 1
        link = BufferedLink((ip, port or self._port))
        return self.service.accept(link), link

    def slave(self, offset: int, ip: str = "10.0.0.2", port: int | None = None) -> HaConnection:
        connection, _link = self.connect(ip, port)
        connection.receive(report(offset))
        self.service.advance()
        return connection


# -- who stays where there are too many ---------------------------------------------------------------------


def test_a_slave_that_has_not_asked_yet_is_not_pushed_out_by_strangers_who_have() -> None:
    """A stranger that connects again and again, and reports at once, looked busier than a slave at its hello."""
    world = World()
    world.service.member_hosts = lambda: {"10.0.0.2"}
    _slave, its_link = world.connect()
    for _ in range(600):
        world.slave(500, "10.9.9.9")
    assert not its_link.closed
    assert len(world.service.connections) == 256


# -- who counts ---------------------------------------------------------------------------------------------


def test_a_stranger_gets_bytes_and_counts_for_nothing() -> None:
    world = World()
    connection = world.slave(500)
    assert connection.next_offset == 1000
    assert world.service.counted() == [] and world.service.in_sync() == []


def test_of_one_address_as_many_connections_count_as_slaves_are_registered_there_the_newest_first() -> None:
    world = World()
    old, middle, new = (world.slave(500) for _ in range(3))
    world.service.set_registered({"10.0.0.2": 1, "10.0.0.9": 5})
    assert world.service.counted() == [new]
    world.service.set_registered({"10.0.0.2": 2})
    assert world.service.counted() == [new, middle]
    world.service.set_registered({"10.0.0.2": 7})
    assert world.service.counted() == [new, middle, old]
    new.closed()
    assert world.service.counted() == [middle, old]
    world.service.set_registered({"10.0.0.2": 1})
    assert world.service.counted() == [middle]


def test_a_connection_counts_from_its_first_report_on() -> None:
    world = World()
    world.service.set_registered({"10.0.0.2": 1})
    old = world.slave(500)
    young, _ = world.connect()
    assert world.service.counted() == [old]
    young.receive(report(1000))
    assert world.service.counted() == [young]


def test_who_said_hello_counts_once_with_its_newest_connection() -> None:
    world = World()
    world.service.identify(("10.0.0.7", 1), Replica(1, "10.0.0.7:10911"))
    first = world.slave(500, "10.0.0.7", 1)
    assert world.service.counted() == [first]
    second, _link = world.connect("10.0.0.7", 2)
    world.service.identify(("10.0.0.7", 2), Replica(1, "10.0.0.7:10911"))
    assert first.state is State.SHUTDOWN, "the older connection is hung up on"
    assert world.service.counted() == []
    second.receive(report(700))
    assert world.service.counted() == [second]
    first.closed()
    assert world.service.counted() == [second], "its later close touches nothing"
    world.service.identify(("10.0.0.7", 3), Replica(2, "10.0.0.7:10931"))
    world.slave(500, "10.0.0.7", 3).closed()
    world.slave(500, "10.0.0.7", 3)
    assert world.service.counted() == [second], "whoever has its port next is somebody else"


def test_the_registration_of_one_who_said_hello_vouches_for_no_one_else_of_that_address() -> None:
    world = World()
    world.service.set_registered({"10.0.0.2": 1})
    world.service.identify(("10.0.0.2", 1), Replica(1, "10.0.0.2:10911"))
    known = world.slave(500, port=1)
    world.slave(600, port=2)
    assert world.service.counted() == [known]


def test_two_slaves_on_one_machine_count_both() -> None:
    world = World()
    for broker_id in (1, 2):
        world.service.identify(("10.0.0.2", broker_id), Replica(broker_id, f"10.0.0.2:109{broker_id}1"))
    one, two = world.slave(500, port=1), world.slave(600, port=2)
    assert world.service.counted() == [two, one]


def test_a_slave_far_behind_counts_and_is_not_in_sync() -> None:
    world = World(gap_max=100)
    world.service.set_registered({"10.0.0.2": 2})
    far, near = world.slave(500), world.slave(950)
    assert world.service.counted() == [near, far]
    assert list(world.service.in_sync()) == [near]


def test_a_hello_whose_connection_does_not_come_vouches_for_nobody_later() -> None:
    world = World()
    world.service.identify(("10.0.0.2", 1), Replica(1, "10.0.0.2:10911"))
    world.clock.ms += 9_000
    world.service.tick()
    on_time = world.slave(500, port=1)
    assert world.service.counted() == [on_time]
    on_time.closed()
    world.service.identify(("10.0.0.2", 2), Replica(1, "10.0.0.2:10911"))
    world.clock.ms += 10_000
    world.service.tick()
    world.slave(500, port=2)
    assert world.service.counted() == []


def test_of_more_connections_than_any_group_has_the_oldest_that_is_nobodys_goes() -> None:
    world = World()
    world.service.set_registered({"10.0.0.3": 1})
    world.service.identify(("10.0.0.7", 1), Replica(1, "10.0.0.7:10911"))
    named, _ = world.connect("10.0.0.7", 1)
    stock = world.slave(500, "10.0.0.3")
    silent, _ = world.connect("10.0.0.3")
    asking = world.slave(0)
    strangers = [world.connect() for _ in range(300)]
    assert [link.closed for _, link in strangers] == [True] * 48 + [False] * 252
    assert len(world.service.connections) == 256
    assert all(each in world.service.connections for each in (named, stock, silent, asking))
    assert world.service.counted() == [stock]
    for _ in range(252):
        world.slave(0)
    world.connect()
    assert asking.state is State.SHUTDOWN, "who was sent the log goes when nobody is left who was not"
    named.receive(report(1000))
    assert world.service.counted() == [stock, named]


def test_where_every_connection_is_a_slaves_one_more_is_refused() -> None:
    world = World()
    for number in range(1, 257):
        world.service.identify(("10.0.0.7", number), Replica(number, "10.0.0.7:10911"))
        world.slave(0, "10.0.0.7", number)
    stranger, link = world.connect()
    assert link.closed and stranger.state is State.SHUTDOWN and len(world.service.counted()) == 256


# -- where a slave begins -----------------------------------------------------------------------------------


def test_an_empty_slave_gets_everything_there_is() -> None:
    world = World(3 * SEGMENT)
    world.source.begin = SEGMENT
    assert world.slave(0).next_offset == 4 * SEGMENT
    connection, link = world.connect()
    connection.receive(report(0))
    world.service.advance()
    assert link.frames()[0][0] == SEGMENT


def test_an_empty_slave_gets_the_newest_segment_if_that_is_asked_for() -> None:
    world = World(3 * SEGMENT - 10, from_last_file=True)
    connection, link = world.connect()
    connection.receive(report(0))
    world.service.advance()
    assert link.frames()[0][0] == 2 * SEGMENT


@pytest.mark.parametrize("offset", [1001, 1 << 40, -1])
def test_a_slave_that_is_ahead_is_refused(offset: int) -> None:
    world = World()
    world.service.set_registered({"10.0.0.2": 1})
    connection, link = world.connect()
    with pytest.raises(RemoteProtocolError, match=f"it reports log offset {offset}"):
        connection.receive(report(offset))
    assert connection.next_offset == -1 and link.out == []
    assert world.service.counted() == []
    world.service.identify(("10.0.0.3", 1), Replica(1, "10.0.0.3:10911"))
    with pytest.raises(RemoteProtocolError, match=f"it reports log offset {offset}"):
        world.slave(offset, "10.0.0.3", port=1)  # what a hello said does not make it true


def test_a_slave_behind_what_is_kept_is_told_to_begin_anew() -> None:
    world = World()
    world.source.begin = SEGMENT
    world.service.begin()
    with pytest.raises(RemoteProtocolError, match="empty its store"):
        world.slave(SEGMENT - 1)
    assert world.slave(SEGMENT).next_offset == SEGMENT + 1000


def test_bytes_that_nobody_was_sent_are_another_history() -> None:
    """A master that lost its tail grows past the end of a slave that kept it: the slave's bytes are others."""
    world = World(1000)
    world.source.data += bytes(500)  # appended since
    with pytest.raises(RemoteProtocolError, match=r"nothing behind 1000 was ever sent to 10\.0\.0\.2"):
        world.slave(1200)
    world.slave(1000).closed()  # was sent everything, to 1500
    assert world.slave(1200).next_offset == 1500
    with pytest.raises(RemoteProtocolError, match=r"ever sent to 10\.0\.0\.3"):
        world.slave(1200, "10.0.0.3")


def test_what_was_sent_in_an_earlier_reign_vouches_for_nothing() -> None:
    """In between it was a slave, and may have lost what it had sent."""
    world = World(1000)
    world.source.data += bytes(500)
    world.slave(1000).closed()  # was sent everything, to 1500
    world.service.end()
    world.source.data = world.source.data[:1100]
    world.service.begin()
    world.source.data += bytes(900)
    with pytest.raises(RemoteProtocolError, match="nothing behind 1100 was ever sent"):
        world.slave(1200)


def test_who_said_hello_was_compared_already() -> None:
    world = World(1000)
    world.source.data += bytes(500)
    world.service.identify(("10.0.0.2", 1), Replica(1, "10.0.0.2:10911"))
    assert world.slave(1200, port=1).next_offset == 1500


def test_with_a_secret_nobody_begins_who_has_not_proven_that_it_knows_it() -> None:
    world = World()
    world.service.secret_required = True
    with pytest.raises(RemoteProtocolError, match="ropewalkSecret"):
        world.slave(0)
    world.service.identify(("10.0.0.2", 1), Replica(1, "10.0.0.2:10911"))
    assert world.slave(0, port=1).next_offset == 1000


# -- life ---------------------------------------------------------------------------------------------------


def test_a_broker_that_is_no_master_hangs_up() -> None:
    world = World()
    slave = world.slave(0)
    world.service.end()
    assert slave.state is State.SHUTDOWN and world.service.connections == []
    connection, link = world.connect()
    assert link.closed and connection.state is State.SHUTDOWN
    connection.receive(report(0))
    connection.closed()
    assert world.service.connections == []


def test_a_silent_slave_is_hung_up_on_and_counts_no_more() -> None:
    world = World()
    world.service.set_registered({"10.0.0.2": 2})
    silent, link = world.connect()
    silent.receive(report(0))
    world.clock.ms += 10_000
    other = world.slave(0)
    world.clock.ms += 10_100
    world.service.tick()
    assert link.closed and world.service.counted() == [other]


def test_what_may_have_changed_is_told() -> None:
    world = World()
    slave = world.slave(0)
    told = world.reports
    slave.receive(report(10))
    assert world.reports > told
    told = world.reports
    world.service.set_registered({"10.0.0.2": 1})
    assert world.reports > told
    told = world.reports
    world.service.set_registered({"10.0.0.2": 1})
    assert world.reports == told
    slave.closed()
    assert world.reports > told
