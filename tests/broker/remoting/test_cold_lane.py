"""Requests that are not hot have a few milliseconds a turn together, whoever sends them and how many."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from broker.remoting import cold_lane
from broker.remoting.cold_lane import TURN_S, ColdLane
from broker.remoting.incoming import IncomingBudget
from broker.remoting.request import LargeAnswer
from broker.remoting.session import Handlers, Session
from ropewalk.codes import ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.support.links import FakeLink

STEP_S = TURN_S / 4


class World:
    """A lane, and sessions whose code 1 takes as many steps as its body says; each takes a quarter of a turn."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wakes = 0
        self.steps: list[int] = []
        self.lane = ColdLane(lambda: self.now_s, self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def session(self, port: int = 1) -> tuple[Session, FakeLink]:
        handlers, link = Handlers(), FakeLink(("127.0.0.1", port))
        handlers.cold[1] = self._work
        handlers.hot[2] = lambda session, request: session.answer(request, 0, "hot")
        return Session(
            link, handlers, lambda session: None, lane=self.lane, budget=IncomingBudget(lambda: 0)
        ), link

    def _work(self, session: Session, request: Command) -> Generator[None, None, Command]:
        for _ in range(int(request.body[:8])):
            self.steps.append(request.opaque)
            self.now_s += STEP_S
            yield
        if request.body.endswith(b"bad"):
            raise RemoteProtocolError("bad")
        return request.reply(ResponseCode.SUCCESS)

    def turn(self) -> None:
        self.lane.run()
        self.lane.left_s = TURN_S


def work(steps: int, opaque: int, more: bytes = b"") -> bytes:
    return encode_frame(Command(1, {}, b"%8d" % steps + more, opaque=opaque))


def answered(link: FakeLink) -> list[int]:
    data, link.sent = bytes(link.sent), bytearray()
    return [decode_frame(payload).opaque for payload in FrameBuffer().feed(data)]


def test_a_short_request_is_answered_in_its_turn() -> None:
    world = World()
    session, link = world.session()
    session.receive(work(1, 7))
    assert answered(link) == [7]
    assert not world.wakes


def test_a_long_request_takes_the_time_of_a_turn_and_goes_on_in_the_next() -> None:
    world = World()
    session, link = world.session()
    session.receive(work(9, 7))
    assert len(world.steps) == 4
    assert world.wakes == 1
    world.turn()  # nothing is left of the turn that it began in
    assert len(world.steps) == 4
    world.turn()
    world.turn()
    assert answered(link) == [7]
    assert not world.lane.size
    assert world.lane.size == 0


def test_a_hundred_requests_of_one_read_share_one_turn_and_sends_go_past_them() -> None:
    world = World()
    session, link = world.session()
    session.receive(b"".join(work(1, n) for n in range(100)) + encode_frame(Command(2, {}, b"", opaque=200)))
    assert len(world.steps) == 4
    assert answered(link) == [0, 1, 2, 200]
    for _ in range(40):
        world.turn()
    assert answered(link) == list(range(3, 100))


def test_of_a_read_with_hundreds_of_requests_most_are_not_looked_at_before_their_turn() -> None:
    world = World()
    session, link = world.session()
    session.receive(b"".join(work(1, n) for n in range(500)))
    assert (session.has_backlog, link.paused) == (True, True), "what its client says next would be kept too"
    answers = answered(link)
    for _ in range(200):
        session.resume()  # its client has taken what it was owed
        world.turn()
        answers += answered(link)
    assert answers == list(range(500))
    assert (session.has_backlog, link.paused) == (False, False)


def test_who_has_all_of_its_waiting_requests_refused_is_served_the_rest_of_its_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_lane, "WAITING_SIZE_MAX", 250_000)
    world = World()
    first, first_link = world.session()
    other, other_link = world.session(2)
    first.receive(b"".join(work(1, n, bytes(300)) for n in range(200)))
    assert first.has_backlog
    for n in range(200):
        other.receive(work(1, n, bytes(500)))
    assert world.lane.size <= 250_000
    for _ in range(200):
        world.turn()
    assert sorted(answered(first_link)) == list(range(200))
    assert sorted(answered(other_link)) == list(range(200))
    assert not first_link.paused
    assert not world.lane.size


def test_who_is_shed_is_found_without_a_look_at_all_who_wait() -> None:
    """With 8,000 sessions, each further request over the bound had looked at all of them."""
    world = World()
    sessions = [world.session(number) for number in range(2, 302)]
    world.lane.left_s = 0
    for count, (session, _link) in enumerate(sessions):
        session.receive(b"".join(work(1, n, bytes(40)) for n in range(1 + count % 40)))
    queues = world.lane._queues
    assert len(queues) == 300
    _session, largest = world.lane._largest()
    assert largest.size * 2 > max(queue.size for queue in queues.values())
    assert sum(len(each) for each in world.lane._by_bits) == 300
    for _ in range(20_000):
        if not world.lane.size:
            break
        world.turn()
    assert not world.lane.size and not any(world.lane._by_bits)


def test_a_frame_of_many_megabytes_that_has_to_wait_too_long_is_told_that_the_broker_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_lane, "WAITING_SIZE_MAX", 10 << 20)
    world = World()
    session, link = world.session()
    session.receive(encode_frame(Command(2, {}, bytes(7 << 20), opaque=3)))
    session.receive(encode_frame(Command(2, {}, bytes(7 << 20), opaque=4)))
    (refused,) = (decode_frame(payload) for payload in FrameBuffer().feed(bytes(link.sent)))
    assert (refused.opaque, refused.code) == (4, ResponseCode.SYSTEM_BUSY)
    link.sent.clear()
    for _ in range(3):
        world.turn()
    assert answered(link) == [3]
    assert not link.closed


def test_a_change_of_many_entries_goes_on_when_its_connection_ends_and_a_look_does_not() -> None:
    world = World()
    session, link = world.session()
    done: list[str] = []

    def steps(what: str) -> Generator[None, None, Command | None]:
        for _ in range(10):
            world.now_s += STEP_S
            yield
        done.append(what)
        return Command(1).reply(ResponseCode.SUCCESS)

    session.answer_in_steps(Command(1), steps("looked"))
    session.answer_in_steps(Command(1), steps("changed"), must_end=True)
    session.answer_in_steps(Command(1), steps("looked again"))
    world.turn()
    session.closed()
    for _ in range(10):
        world.turn()
    assert done == ["changed"]
    assert not world.lane.size
    assert not link.sent
    session.answer_in_steps(Command(1), steps("looked too late"))
    for _ in range(10):
        world.turn()
    assert done == ["changed"]


def test_an_answer_in_pieces_is_one_frame_and_one_that_fits_none_an_error() -> None:
    world = World()
    session, link = world.session()
    request = Command(1, opaque=7)
    pieces = [b"a" * 1_000, b"b" * 1_000]
    session.outbox.send(request, LargeAnswer(0, opaque=7, flag=1, pieces=pieces))
    (answer,) = (decode_frame(payload) for payload in FrameBuffer().feed(bytes(link.sent)))
    assert (answer.opaque, answer.code, answer.body) == (7, 0, b"".join(pieces))
    link.sent.clear()
    session.outbox.send(request, LargeAnswer(0, opaque=7, flag=1, pieces=[bytes(1 << 20)] * 16))
    (answer,) = (decode_frame(payload) for payload in FrameBuffer().feed(bytes(link.sent)))
    assert (answer.opaque, answer.code, answer.remark) == (7, 1, "the answer does not fit a frame")


def test_sessions_take_turns_and_one_with_much_delays_no_other() -> None:
    world = World()
    greedy, _ = world.session(1)
    greedy.receive(b"".join(work(50, n) for n in range(50)))
    modest, link = world.session(2)
    modest.receive(work(1, 99))
    world.turn()
    world.turn()
    assert answered(link) == [99]


def test_a_session_that_reads_none_of_its_answers_is_not_served_until_it_reads() -> None:
    """A stranger who asks and never reads has the broker make answers that pile up."""
    world = World()
    deaf, deaf_link = world.session(1)
    deaf.receive(b"".join(work(1, n) for n in range(100)))
    deaf_link.congested = True
    modest, link = world.session(2)
    modest.receive(b"".join(work(1, n) for n in range(1000, 1100)))
    world.steps.clear()
    for _ in range(60):
        world.turn()
    assert world.steps == list(range(1000, 1100)), "others have the whole lane"
    wakes = world.wakes
    for _ in range(10):
        world.turn()
    assert world.wakes == wakes, "nobody waits for a turn"
    assert deaf.has_backlog, "its connection tells when its peer has read"
    deaf_link.congested = False
    deaf.resume()
    deaf.receive(work(1, 100))
    for _ in range(60):
        world.turn()
    assert (answered(deaf_link), answered(link)) == (list(range(101)), list(range(1000, 1100)))
    assert (deaf.has_backlog, world.lane.size) == (False, 0)


def test_a_session_whose_answers_fill_its_connection_goes_on_whenever_its_peer_has_read() -> None:
    world = World()
    session, link = world.session()
    session.receive(b"".join(work(1, n) for n in range(500)))
    answers: list[int] = []
    for _ in range(400):
        link.congested = bool(link.sent)
        world.turn()
        link.congested = False
        answers += answered(link)
        session.resume()
    assert answers == list(range(500))
    assert not session.has_backlog and not link.paused and not world.lane.size


def test_a_session_that_reads_nothing_is_the_one_that_is_told_that_too_much_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_lane, "WAITING_SIZE_MAX", 100_000)
    world = World()
    deaf, deaf_link = world.session(1)
    for n in range(10):
        deaf.receive(work(9, n, b"x" * 9_000))
    deaf_link.congested = True
    world.turn()
    world.turn()
    modest, modest_link = world.session(2)
    modest.receive(work(9, 77, b"x" * 30_000))
    assert deaf_link.sent and not modest_link.sent
    assert world.lane.size <= 100_000


def test_a_connection_that_ends_while_its_peer_reads_nothing_takes_its_requests_along() -> None:
    world = World()
    session, link = world.session()
    session.receive(work(9, 1) + work(9, 2))
    link.congested = True
    world.turn()
    world.turn()
    session.closed()
    assert not world.lane.size
    session.resume()
    link.congested = False
    steps = len(world.steps)
    world.turn()
    assert len(world.steps) == steps


def test_when_too_much_waits_the_session_with_most_of_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_lane, "WAITING_SIZE_MAX", 100_000)
    world = World()
    greedy, greedy_link = world.session(1)
    modest, modest_link = world.session(2)
    for n in range(10):
        greedy.receive(work(9, n, b"x" * 9_000))
    modest.receive(work(9, 77, b"x" * 30_000))
    data = bytes(greedy_link.sent)
    answers = [decode_frame(payload) for payload in FrameBuffer().feed(data)]
    assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}
    assert "too many large requests" in (answers[0].remark or "")
    assert not modest_link.sent
    assert world.lane.size <= 100_000


def test_a_change_that_is_under_way_is_not_shed_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_lane, "WAITING_SIZE_MAX", 1)
    world = World()
    session, link = world.session()
    done: list[str] = []

    def steps(name: str) -> Generator[None, None, Command]:
        for _ in range(20):
            world.now_s += cold_lane.TURN_S / 4
            yield
        done.append(name)
        return Command(0)

    session.answer_in_steps(Command(1), steps("begun"), must_end=True)
    session.answer_in_steps(Command(1), steps("never begun"), must_end=True)
    for _ in range(20):
        world.turn()
    assert done == ["begun"] and not world.lane.size
    (busy, _answer) = [decode_frame(payload).code for payload in FrameBuffer().feed(bytes(link.sent))]
    assert busy == ResponseCode.SYSTEM_BUSY


def test_a_connection_that_ends_takes_its_requests_along() -> None:
    world = World()
    session, _link = world.session()
    session.receive(work(9, 1) + work(9, 2))
    session.closed()
    steps = len(world.steps)
    world.turn()
    world.turn()
    assert len(world.steps) == steps
    assert world.lane.size == 0


def test_bytes_that_are_no_request_close_their_connection_in_a_later_turn_too() -> None:
    world = World()
    session, link = world.session()
    session.receive(work(9, 1, b"bad"))
    for _ in range(4):
        world.turn()
    assert link.closed
    assert not world.lane.size


def test_a_frame_of_many_megabytes_is_taken_apart_in_a_turn_of_its_own() -> None:
    world = World()
    session, link = world.session()
    session.receive(work(1, 3, b"x" * (7 << 20)))
    assert not world.steps
    assert not link.sent
    for _ in range(3):
        world.turn()
    assert answered(link) == [3]


def test_a_header_that_is_no_plain_json_is_a_request_of_the_lane() -> None:
    world = World()
    session, link = world.session()
    session.receive(work(9, 1))
    header = b"{code:2,opaque:5}"
    frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    session.receive(frame)
    assert not link.sent
    for _ in range(5):
        world.turn()
    assert sorted(answered(link)) == [1, 5]
