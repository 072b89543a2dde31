"""Unfinished requests: a stranger who begins many large ones and sends nothing more is the one who loses them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from broker.remoting.incoming import FRAME_GRACE_MS, IncomingBudget
from broker.remoting.origins import origin_of
from broker.remoting.session import Handlers, Session
from ropewalk.codes import RequestCode
from ropewalk.errors import RemoteProtocolError
from tests.broker.harness import Client, InProcess, request, send_ext
from tests.broker.remoting.net import Net, Turns
from tests.support.links import FakeLink

MIB = 1 << 20
LARGE = (16 * MIB - 4).to_bytes(4, "big")
"""The length field of the largest frame."""
V2 = RequestCode.SEND_MESSAGE_V2
StartBroker = Callable[..., InProcess]


def begin_large(client: Client, size: int) -> None:
    """Send the first `size` bytes of a frame of 16 MiB, as a socket would bring them."""
    data = LARGE + b"x" * (size - 4)
    for begin in range(0, size, 256 << 10):
        client.feed(data[begin : begin + (256 << 10)])


@pytest.mark.parametrize("host", ["10.0.0.9", "192.0.2.7"], ids=["another address", "same address"])
def test_who_holds_the_memory_for_unfinished_requests_is_closed_and_not_the_newcomer(
    start_broker: StartBroker, host: str
) -> None:
    running = start_broker(incomingBytesTotalMax=32 * MIB, mappedFileSizeCommitLog=8 * MIB)
    greedy = [running.connect(peer=("192.0.2.7", 1000 + n)) for n in range(3)]
    for each in greedy:
        begin_large(each, 15 * MIB)
    assert [each.link.closed for each in greedy] == [True, False, False], "the oldest of them made room"
    honest = running.connect(peer=(host, 1))
    frame = request(V2, send_ext("T"), b"b" * MIB, opaque=7)
    for _ in range(4):
        for begin in range(0, len(frame), 100_000):
            honest.feed(frame[begin : begin + 100_000])
        assert honest.answer(7).code == 0
    begin_large(running.connect(peer=("192.0.2.7", 2)), 15 * MIB)
    assert not honest.link.closed
    assert greedy[1].link.closed
    assert running.broker.budget.size <= 32 * MIB


def test_a_length_alone_takes_no_memory(running: InProcess) -> None:
    for _ in range(50):
        running.connect().feed(LARGE)
    assert running.broker.budget.size == 50 * 4


def test_many_small_unfinished_requests_go_before_the_large_one_that_came_last(
    start_broker: StartBroker,
) -> None:
    running = start_broker(incomingBytesTotalMax=32 * MIB, mappedFileSizeCommitLog=8 * MIB)
    small = [running.connect(peer=("192.0.2.7", 1000 + n)) for n in range(512)]
    for each in small:
        each.feed(LARGE + b"x" * ((64 << 10) - 4))
    large = running.connect(peer=("192.0.2.7", 1))
    begin_large(large, 4 * MIB)
    assert not large.link.closed
    assert [each.link.closed for each in small] == [n < 64 for n in range(512)]


def test_what_still_arrives_of_a_request_that_was_given_up_is_not_read_as_another(
    start_broker: StartBroker,
) -> None:
    running = start_broker(incomingBytesTotalMax=32 * MIB, mappedFileSizeCommitLog=8 * MIB)
    first = running.connect()
    begin_large(first, 15 * MIB)
    for _ in range(2):
        begin_large(running.connect(), 15 * MIB)
    assert first.link.closed
    with pytest.raises(RemoteProtocolError, match="incomingBytesTotalMax = 33554432"):
        first.feed(request(V2, send_ext("T"), b"hidden in the body of the large one"))
    assert first.answers() == []


def test_a_request_has_thirty_seconds_and_one_for_each_64_kib_of_its_size(
    running: InProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, ms = running.broker.budget.sweep, running.clock

    def pass_time(milliseconds: int) -> None:
        for _ in range(milliseconds // 1000):
            ms.ms += 1000
            sweep()

    trickling, slow = running.connect(), running.connect()
    trickling.feed((1000).to_bytes(4, "big"))
    begin_large(slow, MIB)
    for _ in range(FRAME_GRACE_MS // 1000 - 1):
        pass_time(1000)
        trickling.feed(b"x")
        slow.feed(b"x")

    def closed() -> tuple[bool, bool]:
        return trickling.link.closed, slow.link.closed

    assert closed() == (False, False)
    pass_time(2000)
    assert closed() == (True, False), "16 MiB have 30 s and 256 s"
    pass_time(250_000)
    assert closed() == (True, False)
    pass_time(6000)
    assert closed() == (True, True)
    said = capsys.readouterr().out
    assert said.count("took too long to arrive") == 2
    assert "16777216" in said
    assert running.broker.budget.size == 0


def test_a_stream_of_requests_that_never_pauses_is_never_overdue(running: InProcess) -> None:
    client = running.connect()
    frame = request(RequestCode.HEART_BEAT, body=b"x" * 1000)
    size = len(frame)
    client.feed(frame[: size // 2])
    for _ in range(100):  # the same number of bytes is kept after each read, of another request each time
        client.feed(frame[size // 2 :] + frame[: size // 2])
        running.clock.ms += 1000
        running.broker.budget.sweep()
    assert not client.link.closed
    client.feed(frame[size // 2 :])
    assert len(client.answers()) == 101


def test_who_is_not_read_because_it_takes_no_answers_is_not_late(running: InProcess) -> None:
    client = running.connect()
    client.feed(LARGE)
    client.link.congested = True
    for _ in range(400):
        running.clock.ms += 1000
        running.broker.budget.sweep()
    assert not client.link.closed
    client.link.congested = False
    for _ in range(29):
        running.clock.ms += 1000
        running.broker.budget.sweep()
    assert not client.link.closed


def test_after_the_process_stood_still_its_peers_have_a_moment_to_be_read(running: InProcess) -> None:
    client = running.connect()
    client.feed(request(V2, send_ext("T"))[:20])
    running.clock.ms += 600_000
    running.broker.budget.sweep()
    assert not client.link.closed
    running.clock.ms += 1000
    running.broker.budget.sweep()
    assert client.link.closed


def test_requests_that_wait_for_a_slow_reader_count_too(running: InProcess) -> None:
    client = running.connect()
    client.link.congested = True
    frames = request(V2, send_ext("T"), b"b" * 1000) * 20
    client.feed(frames)
    assert len(frames) - 20 * 4 == running.broker.budget.size
    client.link.congested = False
    client.session.resume()
    assert running.broker.budget.size == 0
    assert [answer.code for answer in client.answers()] == [0] * 20


def test_a_connection_that_ends_gives_its_bytes_back() -> None:
    budget = IncomingBudget(lambda: 0)
    session = Session(FakeLink(("::1", 1)), Handlers(), lambda session: None, budget=budget)
    session.receive(LARGE + b"x" * 1000)
    assert budget.size == 1004
    session.closed()
    assert budget.size == 0


def test_addresses_of_one_ipv6_network_are_one_origin() -> None:
    assert origin_of("2001:db8:0:1::1") == origin_of("2001:db8:0:1:ffff::9") != origin_of("2001:db8:0:2::1")
    assert origin_of("fe80::1%eth0") == origin_of("fe80::2")
    assert origin_of("192.0.2.1") == "192.0.2.1"
    assert origin_of("no:address") == "no:address"


def test_a_client_sends_large_messages_while_another_one_holds_all_the_memory(
    start_broker: StartBroker, stack: ExitStack
) -> None:
    running = start_broker(incomingBytesTotalMax=32 * MIB, mappedFileSizeCommitLog=8 * MIB)
    net = Net(stack, Turns(running.broker))
    net.port = net.listen("127.0.0.1", running.broker.new_session)
    greedy = [net.connect() for _ in range(3)]
    for each in greedy:
        data = memoryview(LARGE + b"x" * (15 * MIB))
        while data:
            try:
                data = data[each.send(data) :]
            except BlockingIOError:
                net.turn()
            except (ConnectionResetError, BrokenPipeError):
                break
    net.idle()
    honest = net.connect()
    frame = memoryview(request(V2, send_ext("T"), b"b" * MIB))
    while frame:
        try:
            frame = frame[honest.send(frame) :]
        except BlockingIOError:
            net.turn()
    assert b'"code":0' in net.read(honest, 100)
    assert net.is_closed(greedy[0])
    assert len(net.shell.connections) == 3
