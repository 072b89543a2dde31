"""A slave's end of the stream: what it asks for, appends, reports, and when it gives up."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ha.stream.client import ClientState, HaClient, Stream, joined
from ha.stream.connection import HaRules
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.ha import encode_header, encode_report
from store.message_store import MessageStore
from tests.store.disks import CountingDisk
from tests.store.worlds import SEGMENT_SIZE, World, bytes_of, put, settle, wait_for
from tests.support.clocks import Clock
from tests.support.links import BufferedLink


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a master's log, a few segments of it."""
    world = World(tmp_path_factory.mktemp("log") / "master")
    chance = random.Random(3)
    with world.opened() as store:
        for number in range(60):
            put(store, [b"%d" % number + bytes(chance.choice((3, 200, 900)))])
    return bytes_of(world)


class Slave:
    """A store, its client, and a turn of the loop."""

    def __init__(self, store: MessageStore, *, ack_after_flush: bool = False) -> None:
        self.store, self.clock, self.link = store, Clock(), BufferedLink()
        self.follower = store.follow()
        self.client = HaClient(
            self.follower,
            HaRules(),
            lambda: store.log.flushed_offset,
            self.clock,
            ack_after_flush=ack_after_flush,
        )

    def connect(self) -> None:
        self.link = BufferedLink()
        self.client.opened(self.link)
        self.client.begin()

    # Questions as calls: the type checker does not believe that an attribute can change between two asserts.

    def is_in(self, state: ClientState) -> bool:
        return self.client.state is state

    def is_paused(self) -> bool:
        return self.client.paused

    def hung_up(self) -> bool:
        return self.link.closed

    def deaf(self) -> bool:
        return self.link.paused

    def turn(self, data: bytes = b"") -> list[int]:
        """One turn in which these bytes come; the reports that leave."""
        self.store.begin_turn()
        self.store.run_completions()
        if data:
            buffer = bytearray(data)
            self.client.receive(memoryview(buffer))
            buffer[:] = bytes(len(data))  # as the shell does with what comes next
        self.client.turn_ended()
        self.store.publish()
        return self.reports()

    def tick(self, later_ms: int) -> list[int]:
        self.clock.ms += later_ms
        self.store.begin_turn()
        self.store.run_completions()
        self.store.tick()
        self.client.tick()
        self.client.turn_ended()
        return self.reports()

    def reports(self) -> list[int]:
        data = self.link.take()
        return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]

    def frame(self, log: bytes, start: int, end: int) -> bytes:
        return encode_header(start, end - start) + log[start:end]

    def until(self, log: bytes, end: int) -> None:
        """Bring the log to `end`, frame by frame."""
        give_up = time.monotonic() + 30
        while self.follower.end < end:
            at = self.follower.end
            stop = min(end, at - at % SEGMENT_SIZE + SEGMENT_SIZE)
            self.turn(self.frame(log, at, stop))
            while self.is_paused():
                assert time.monotonic() < give_up
                self.store.tick()
                self.turn()


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    with World(tmp_path / "slave").opened() as store:
        store.tick()
        settle(store)
        yield Slave(store)


def sizes(log: bytes, count: int) -> list[int]:
    """Where the first records end."""
    ends, at = [], 0
    for _ in range(count):
        at += int.from_bytes(log[at : at + 4], "big")
        ends.append(at)
    return ends


def test_the_first_report_leaves_at_once_and_says_where_the_log_ends(slave: Slave, log: bytes) -> None:
    slave.link = BufferedLink()
    slave.client.opened(slave.link)
    assert slave.is_in(ClientState.HANDSHAKE) and slave.reports() == []
    slave.client.begin()
    assert slave.is_in(ClientState.TRANSFER) and slave.reports() == [0]
    first = sizes(log, 1)[0]
    assert slave.turn(slave.frame(log, 0, first)) == [first]
    slave.client.drop("test")
    slave.connect()
    assert slave.reports() == [first]


def test_a_record_is_reported_when_all_of_it_is_here_and_once_a_turn(slave: Slave, log: bytes) -> None:
    slave.connect()
    slave.reports()
    one, two, three = sizes(log, 3)
    assert slave.turn(slave.frame(log, 0, one - 1)) == []
    assert slave.turn(slave.frame(log, one - 1, two + 5)) == [two]
    assert slave.turn(slave.frame(log, two + 5, three - 3) + slave.frame(log, three - 3, three)) == [three]
    assert slave.turn() == []


def test_far_behind_a_report_leaves_every_few_milliseconds_and_none_is_lost(slave: Slave, log: bytes) -> None:
    slave.connect()
    slave.reports()
    one, two, three, four = sizes(log, 4)
    slave.clock.ms += 5
    slave.client.master_end = one + (1 << 20) + 1
    assert slave.turn(slave.frame(log, 0, one)) == [one]
    slave.client.master_end = two + (1 << 20) + 1
    assert slave.turn(slave.frame(log, one, two)) == []
    slave.clock.ms += 4
    assert slave.turn() == []
    slave.clock.ms += 1
    assert slave.turn() == [two]
    assert slave.turn(slave.frame(log, two, three)) == [three], "no more than 1 MiB is missing"
    assert slave.turn(slave.frame(log, three, four)) == [four]


def test_a_run_of_records_that_are_alike_is_reported_before_entries_are_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is all that came, and in order: whoever waits for it has waited for what comes before."""
    world = World(tmp_path / "master")
    with world.opened() as store:
        put(store, [b"%03d" % number for number in range(60)], tags="A")
    log = bytes_of(world)
    ends = sizes(log, 60)
    pushed: list[tuple[list[int], int]] = []
    with World(tmp_path / "slave").opened() as store:
        store.tick()
        settle(store)
        slave = Slave(store)
        queue = store.queue("T", 0)
        monkeypatch.setattr(
            BufferedLink, "push", lambda _link: pushed.append((slave.reports(), queue.next_offset))
        )
        slave.connect()
        slave.until(log, ends[0])
        slave.reports()
        pushed.clear()
        assert slave.turn(slave.frame(log, ends[0], ends[19])) == []
        assert pushed == [([ends[19]], 1)] and queue.next_offset == 20
        assert slave.turn(slave.frame(log, ends[19], ends[39] + 5)) == [ends[39]], "a part of more has come"
        assert slave.turn(slave.frame(log, ends[39] + 5, ends[40])) == [ends[40]]
        broken = bytearray(log)
        broken[log.index(b"050", ends[49])] ^= 1
        with pytest.raises(RemoteProtocolError):
            slave.turn(slave.frame(bytes(broken), ends[40], ends[59]))
        assert len(pushed) == 1
        assert slave.reports() == [] and slave.client.reported == ends[40]
        assert slave.follower.boundary == queue.max_physical == ends[49]


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_cut_anywhere_makes_the_same_log(tmp_path: Path, log: bytes, seed: int) -> None:
    chance = random.Random(seed)
    stream, at = bytearray(), 0
    while at < len(log):
        stop = min(len(log), at + chance.randint(1, 3000), at - at % SEGMENT_SIZE + SEGMENT_SIZE)
        stream += encode_header(at, stop - at) + log[at:stop]
        at = stop
        if chance.random() < 0.3:
            stream += encode_header(at, 0)
    world = World(tmp_path / "slave")
    with world.opened() as store:
        slave = Slave(store)
        slave.connect()
        reports, give_up = slave.reports(), time.monotonic() + 30
        while stream or slave.is_paused():
            assert time.monotonic() < give_up
            size = chance.choice((1, 5, 11, 12, 13, 500, 9000))
            data = bytes(stream[:size]) if not slave.deaf() else b""
            del stream[: len(data)]
            store.tick()
            reports += slave.turn(data)
        assert reports == sorted(set(reports)) and reports[-1] == len(log)
    assert bytes_of(world) == log


def test_frames_are_joined_within_a_segment_where_they_follow_each_other() -> None:
    pieces = [
        (90, b"ab"),
        (92, b"cd"),
        (94, b""),
        (94, b"efghij"),
        (100, b"k"),
        (101, b"l"),
        (105, b""),
        (105, b"m"),
    ]

    def frames() -> Iterator[tuple[int, memoryview]]:
        for offset, data in pieces:
            yield offset, memoryview(data)
        raise RemoteProtocolError("out of bounds")

    found: list[tuple[int, bytes]] = []
    with pytest.raises(RemoteProtocolError, match="out of bounds"):
        found.extend((offset, b"".join(run)) for offset, run in joined(frames(), 100))
    # A frame that crosses the border is not hidden in another one: the log refuses it by its place.
    assert found == [(90, b"abcd"), (94, b""), (94, b"efghij"), (100, b"kl"), (105, b""), (105, b"m")]
    crossing = [(0, memoryview(b"abc")), (3, memoryview(b"defgh")), (8, memoryview(b"ijk"))]
    assert [(at, len(b"".join(run))) for at, run in joined(crossing, 10)] == [(0, 8), (8, 3)]
    behind = [(8, memoryview(b"h")), (9, memoryview(b"i")), (3, memoryview(b"j"))]
    assert [(at, b"".join(run)) for at, run in joined(behind, 100)] == [(8, b"hi"), (3, b"j")]
    assert list(joined([], 100)) == []


def test_a_heartbeat_has_to_name_the_next_byte(slave: Slave, log: bytes) -> None:
    slave.connect()
    first = sizes(log, 1)[0]
    slave.turn(encode_header(0, 0))
    slave.turn(slave.frame(log, 0, first) + encode_header(first, 0))
    with pytest.raises(RemoteProtocolError, match=f"goes on at log offset {first + 1}, but this log ends at"):
        slave.turn(encode_header(first + 1, 0))
    assert slave.is_in(ClientState.ERROR)


@pytest.mark.parametrize("offset", [0, 1, 1 << 40])
def test_a_frame_for_another_place_ends_the_stream_and_is_not_tried_again_soon(
    slave: Slave, log: bytes, offset: int
) -> None:
    slave.connect()
    first = sizes(log, 1)[0]
    slave.turn(slave.frame(log, 0, first))
    with pytest.raises(RemoteProtocolError, match="nothing was appended"):
        slave.turn(encode_header(offset, 3) + b"abc")
    slave.client.closed()
    assert slave.is_in(ClientState.ERROR) and slave.client.wait_ms >= 10_000
    assert slave.follower.end == first


def test_garbage_in_place_of_records_is_refused_and_dropped(slave: Slave, log: bytes) -> None:
    slave.connect()
    first = sizes(log, 1)[0]
    slave.turn(slave.frame(log, 0, first))
    with pytest.raises(RemoteProtocolError, match="no record"):
        slave.turn(encode_header(first, 64) + b"\xff" * 64)
    slave.client.closed()
    assert slave.follower.end == first and slave.client.reported == first


def test_an_absurd_length_is_refused_before_anything_is_kept(slave: Slave) -> None:
    slave.connect()
    with pytest.raises(RemoteProtocolError, match="out of bounds"):
        slave.turn(encode_header(0, 0x7FFFFFFF))
    slave.client.closed()
    assert slave.is_in(ClientState.READY) and slave.store.log.segments == []


def test_a_master_that_speaks_before_it_is_asked_is_refused(slave: Slave) -> None:
    slave.client.opened(slave.link)
    with pytest.raises(RemoteProtocolError, match="before it was asked"):
        slave.turn(encode_header(0, 0))


def test_a_refusal_that_is_met_at_every_try_is_logged_once(slave: Slave, log: bytes) -> None:
    def refused(why: str) -> None:
        slave.client.opened(BufferedLink())
        slave.client.closed_for(why)

    with capture_logs() as logs:
        for why in ("one", "one", "another", "another"):
            refused(why)
        slave.connect()
        slave.client.closed_for("another")
        refused("another")
    assert [each["reason"] for each in logs if "ended" in each["event"]] == ["one", "another", "another"]
    with capture_logs() as logs:
        slave.connect()
        slave.turn(encode_header(0, len(log[:100])) + log[:100])
        slave.client.drop("")
        refused("another")
    assert [each["reason"] for each in logs if "ended" in each["event"]] == ["it hung up", "another"]


def test_the_part_of_a_record_that_a_broken_connection_left_is_asked_for_again(
    slave: Slave, log: bytes
) -> None:
    slave.connect()
    one, two, three = sizes(log, 3)
    slave.turn(slave.frame(log, 0, two)[: 12 + one + 30])
    slave.client.closed()
    assert slave.follower.end == one
    wait_for(slave.store, lambda: not slave.follower.cut_pending)
    slave.connect()
    assert slave.reports()[-1:] == [one]
    assert slave.turn(slave.frame(log, one, two) + encode_header(two, 1)[:7]) == [two]
    slave.client.closed()
    slave.connect()
    assert slave.reports()[-1:] == [two]
    assert slave.turn(slave.frame(log, two, three)) == [three], "nothing is left of an older frame either"


# -- time ---------------------------------------------------------------------------------------------------


def test_a_report_is_repeated_when_nothing_was_said_for_five_seconds(slave: Slave) -> None:
    slave.connect()
    slave.reports()
    slave.turn(encode_header(0, 0))
    assert slave.tick(5000) == []
    assert slave.tick(1) == [0]
    assert slave.tick(4999) == []


def test_a_master_silent_for_twenty_seconds_is_left_and_asked_again_at_once(slave: Slave) -> None:
    slave.connect()
    slave.tick(19_900)
    assert not slave.hung_up()
    slave.tick(100)
    assert not slave.hung_up()
    slave.tick(100)
    assert slave.hung_up() and slave.is_in(ClientState.READY)
    assert slave.client.wait_ms == 0


def test_failures_to_connect_are_spaced_out_up_to_a_second(slave: Slave, log: bytes) -> None:
    waits = []
    for _ in range(8):
        slave.client.failed("refused")
        waits.append(slave.client.wait_ms)
        slave.clock.ms += waits[-1]
    assert waits == [200, 400, 800, 1000, 1000, 1000, 1000, 1000]
    slave.connect()
    slave.turn(slave.frame(log, 0, sizes(log, 1)[0]))
    slave.client.closed()
    assert slave.client.wait_ms == 200, "bytes came: it was a good connection"


def test_what_comes_late_from_an_older_connection_touches_nothing(slave: Slave, log: bytes) -> None:
    old = Stream(slave.client)
    slave.connect()
    old.link = slave.link
    slave.client.drop("the master is elsewhere now")
    assert slave.client.wait_ms == 0
    slave.connect()
    slave.reports()
    old.receive(slave.frame(log, 0, sizes(log, 1)[0]))
    old.closed()
    assert slave.follower.end == 0 and slave.is_in(ClientState.TRANSFER)


# -- no room ------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_reading_keeps_the_heartbeat_and_goes_on_by_itself(
    tmp_path: Path, log: bytes
) -> None:
    disk, world = CountingDisk(), World(tmp_path / "slave")
    with world.opened(disk) as store:
        store.tick()
        settle(store)
        slave = Slave(store)
        slave.connect()
        slave.reports()
        disk.full = True
        at = 0
        while not slave.is_paused():
            stop = at - at % SEGMENT_SIZE + SEGMENT_SIZE
            slave.turn(slave.frame(log, at, stop))
            at = stop
        assert slave.deaf() and at == 2 * SEGMENT_SIZE
        reported = slave.client.reported
        assert 0 < reported <= SEGMENT_SIZE
        beats = [offset for _ in range(60) for offset in slave.tick(1000)]
        assert len(beats) == 10 and set(beats) == {reported}, "alive, and with nothing new"
        assert not slave.hung_up(), "a master is not silent to who does not listen"
        disk.full = False
        give_up = time.monotonic() + 30
        while slave.is_paused():
            assert time.monotonic() < give_up
            world.clock.ms += 1000
            slave.tick(50)
        assert not slave.deaf() and slave.follower.end == at
        slave.tick(1000)
        assert not slave.hung_up(), "it is listened to from now on, and has its time"
        slave.until(log, len(log))
    assert bytes_of(world) == log


def test_what_waited_for_room_is_dropped_with_its_connection(tmp_path: Path, log: bytes) -> None:
    disk, world = CountingDisk(), World(tmp_path / "slave")
    with world.opened(disk) as store:
        slave = Slave(store)
        disk.full = True
        slave.connect()
        slave.turn(slave.frame(log, 0, 1000))
        assert slave.is_paused()
        slave.client.closed()
        assert slave.follower.end == 0
        disk.full = False
        slave.connect()
        assert not slave.is_paused() and slave.reports() == [0]


# -- flushed bytes only -------------------------------------------------------------------------------------


def test_with_ack_after_flush_only_what_is_flushed_is_reported(tmp_path: Path, log: bytes) -> None:
    disk, world = CountingDisk(), World(tmp_path / "slave")
    with world.opened(disk) as store:
        slave = Slave(store, ack_after_flush=True)
        slave.connect()
        assert slave.reports() == [0]
        one, two = sizes(log, 2)
        slave.until(log, one)
        settle(store)
        slave.turn()
        disk.may_sync.clear()
        assert slave.follower.found_whole is None, "nothing is said before the disk has it"
        try:
            assert slave.turn(slave.frame(log, one, two)) == []
            store.request_flush()
            assert slave.turn() == []
            slave.client.closed()
            slave.connect()
            assert slave.reports() == [], "the first report is where the bytes go on, and has to wait too"
        finally:
            disk.may_sync.set()
        settle(store)
        assert slave.turn() == [two] and slave.is_in(ClientState.TRANSFER)


def test_reports_are_eight_bytes(slave: Slave) -> None:
    slave.connect()
    assert slave.link.take() == encode_report(0)
