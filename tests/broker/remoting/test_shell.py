"""The shell on real sockets: what peers can do to it, and that none of it reaches the others."""

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame
from tests.broker.harness import InProcess, heartbeat_body, pull_ext, request, send_ext
from tests.broker.remoting.net import PATIENCE_S, Echo, HandSet, Net, Turns, only

StartBroker = Callable[..., InProcess]
V2 = RequestCode.SEND_MESSAGE_V2


def test_what_is_sent_is_handled_in_a_turn_and_answered_at_its_end(net: Net) -> None:
    client = net.connect()
    client.send(b"hello")
    assert net.read(client, 5) == b"hello"
    assert net.turns.begun == net.turns.ended > 0


def test_who_goes_first_is_read_before_all_others_and_what_it_leads_to_has_left_by_then(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [net.connect() for _ in range(3)]
    waiting, *_, priority_fds = (session.link for session in net.sessions)
    priority_fds.go_first()
    priority_fds.go_first()
    happened: list[tuple[str, int, int, bool]] = []

    def receive(session: Echo, _data: bytes) -> None:
        if session.link is priority_fds:
            waiting.send(b"answer")
        who = "first" if session.link is priority_fds else "other"
        happened.append((who, net.turns.reports, waiting.out_size, session.link.sole_ready))

    monkeypatch.setattr(Echo, "receive", receive)

    def turn(*senders: socket.socket) -> list[tuple[str, int, int, bool]]:
        happened.clear()
        for sender in senders:
            sender.send(b"x")
        net.turn(1)
        return list(happened)

    before = net.turns.begun
    assert turn(*clients) == [("first", 0, 6, False), ("other", 1, 0, False), ("other", 1, 0, False)]
    assert turn(clients[1], clients[2]) == [("first", 1, 6, False), ("other", 2, 0, True)]
    assert turn(clients[2]) == [("first", 2, 6, True)]
    assert turn(clients[0], clients[1]) == [("other", 2, 0, False)] * 2
    assert net.turns.begun == net.turns.ended == before + 4, "all of it is one turn"
    assert net.turns.reports == 2, "where there are no others, the turn just ends"
    assert net.read(clients[0], 18) == b"answer" * 3
    clients[2].close()
    net.until(lambda: not net.shell.priority_fds)


def test_a_turn_of_many_connections_ends_in_time_and_who_was_left_goes_first_in_the_next(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [net.connect() for _ in range(20)]
    clock = HandSet(monkeypatch)
    read: list[int] = []

    def receive(session: Echo, _data: bytes) -> None:
        clock.now += 0.001
        read.append(net.sessions.index(session))

    monkeypatch.setattr(Echo, "receive", receive)
    for turn in range(1, 6):
        for client in clients:  # all of them have something to say in every turn
            client.send(b"x")
        net.turn(1)
        assert len(read) == 4 * turn
    assert sorted(read) == list(range(20))
    net.turn(1)
    assert read[20:] == read[:4]


def test_a_new_connection_does_not_wait_behind_many_that_have_something_to_say(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [net.connect() for _ in range(20)]
    clock = HandSet(monkeypatch)

    def receive(_session: Echo, _data: bytes) -> None:
        clock.now += 0.001

    monkeypatch.setattr(Echo, "receive", receive)
    newcomer: socket.socket | None = None
    for turn in range(4):
        for client in clients:
            client.send(b"x")
        if turn == 2:
            newcomer = socket.socket()
            newcomer.connect(("127.0.0.1", net.port))
        net.turn(1)
    assert newcomer is not None
    assert len(net.shell.connections) == 21
    newcomer.close()


def test_a_peer_that_closes_is_forgotten_and_its_session_told_once(net: Net) -> None:
    client = net.connect()
    client.close()
    net.until(lambda: not net.shell.connections)
    net.shell.sweep()
    assert net.sessions[0].gone == 1


def test_a_peer_that_closes_its_half_has_what_it_asked_before_handled(net: Net) -> None:
    client = net.connect()
    client.send(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert net.read(client, 10) == b"last words"
    net.until(lambda: not net.shell.connections)
    assert net.is_closed(client)


def test_a_reset_ends_one_connection_and_no_other(net: Net) -> None:
    first, second = net.connect(), net.connect()
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.send(b"x")
    first.close()
    net.until(lambda: len(net.shell.connections) == 1)
    second.send(b"still here")
    assert net.read(second, 10) == b"still here"


def test_a_reset_while_it_is_owed_much_ends_it(net: Net) -> None:
    client = net.connect(receive_buffer=2048)
    only(net).send(b"z" * (1 << 20))
    net.shell.flush()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    net.until(lambda: not net.shell.connections)
    assert net.sessions[0].gone == 1


def test_who_takes_nothing_for_too_long_is_closed_and_the_others_stay(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    net = Net(stack, stall_s=0.2)
    net.now_s = clock.read
    _silent, slow, idle = (net.connect(receive_buffer=size) for size in (2048, 16 << 10, 2048))
    stalled, reading, quiet = list(net.shell.connections.values())
    for connection in (stalled, reading):
        connection.send(b"z" * 20_000_000)
    net.shell.flush()
    for _ in range(12):
        clock.pass_time(0.04)
        with suppress(BlockingIOError):
            slow.recv(16 << 10)
        net.idle(0.005)
        net.shell.sweep()
    assert set(net.shell.connections) == {reading.fd, quiet.fd}
    assert not net.is_closed(idle)
    assert [session.gone for session in net.sessions] == [1, 0, 0]


def test_who_neither_says_nor_gets_anything_for_too_long_is_closed(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    net = Net(stack, idle_s=0.2)
    net.now_s = clock.read
    _silent, talks, listens = (net.connect() for _ in range(3))
    silent, talking, listening = list(net.shell.connections.values())
    for _ in range(8):
        clock.pass_time(0.05)
        talks.send(b"x")
        listening.send(b"news")
        net.shell.flush()
        net.idle(0.002)
        net.shell.sweep()
    assert set(net.shell.connections) == {talking.fd, listening.fd}
    assert not silent.is_open
    assert listens.recv(4) == b"news"


# -- with a broker ------------------------------------------------------------------------------------------


@pytest.fixture
def served(start_broker: StartBroker, stack: ExitStack) -> Net:
    running = start_broker()
    net = Net(stack, Turns(running.broker))
    net.port = net.listen("127.0.0.1", running.broker.new_session)
    net.turns.broker = running.broker
    return net


def exchange(net: Net, client: socket.socket, frames: bytes, count: int) -> list[Command]:
    buffer = FrameBuffer()
    answers: list[Command] = []
    client.setblocking(True)
    client.sendall(frames)
    client.setblocking(False)

    def more() -> bool:
        try:
            data = client.recv(1 << 20)
            assert data, "closed early"
            answers.extend(decode_frame(payload) for payload in buffer.feed(data))
        except BlockingIOError:
            pass
        return len(answers) >= count

    net.until(more)
    return answers


def test_a_thousand_idle_connections_do_not_keep_a_producer_waiting(served: Net) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2300:
        pytest.skip("this machine allows too few descriptors for a thousand connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2300), hard))
    try:
        for _ in range(1000):
            served.connect()
        assert len(served.shell.connections) == 1000
        producer = served.connect()
        frames = b"".join(request(V2, send_ext("T"), opaque=n) for n in range(2000))
        started = time.monotonic()
        assert {c.code for c in exchange(served, producer, frames, 2000)} == {0}
        assert time.monotonic() - started < PATIENCE_S / 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_consumer_that_asks_for_much_and_takes_nothing_costs_a_bounded_amount(
    start_broker: StartBroker, stack: ExitStack
) -> None:
    running = start_broker(mappedFileSizeCommitLog=8 << 20)
    net = Net(stack, Turns(running.broker), out_max=1 << 20)
    port = net.listen("127.0.0.1", running.broker.new_session)
    producer, greedy = net.connect(port=port), net.connect(receive_buffer=64 << 10, port=port)
    net.until(lambda: len(net.shell.connections) == 2)
    body = b"m" * 60_000
    exchange(net, producer, b"".join(request(V2, send_ext("T"), body, opaque=n) for n in range(8)), 8)
    pulls = b"".join(request(RequestCode.PULL_MESSAGE, pull_ext("T"), opaque=n) for n in range(60))
    greedy.setblocking(True)
    greedy.settimeout(0.1)
    try:
        greedy.sendall(pulls)
    except TimeoutError:
        pytest.fail("sixty pulls fit a socket's buffers")
    greedy.setblocking(False)
    net.idle()
    connection = list(net.shell.connections.values())[1]
    assert connection.out_size < 2 << 20, "one answer beyond the bound and no more"
    assert {c.code for c in exchange(net, producer, request(V2, send_ext("T")), 1)} == {0}
    answers = exchange(net, greedy, b"", 60)
    assert sorted(c.opaque for c in answers) == list(range(60))
    assert {c.code for c in answers} == {0}


def test_many_consumers_that_take_nothing_cost_a_bounded_amount_together_and_one_that_reads_is_served(
    start_broker: StartBroker, stack: ExitStack
) -> None:
    running = start_broker(mappedFileSizeCommitLog=16 << 20)
    net = Net(stack, Turns(running.broker), out_max=4 << 20, out_total_max=6 << 20)
    port = net.listen("127.0.0.1", running.broker.new_session)
    producer = net.connect(port=port)
    body = b"m" * 60_000
    exchange(net, producer, b"".join(request(V2, send_ext("T"), body, opaque=n) for n in range(8)), 8)
    pulls = b"".join(request(RequestCode.PULL_MESSAGE, pull_ext("T"), opaque=n) for n in range(60))
    greedy = [net.connect(receive_buffer=64 << 10, port=port) for _ in range(12)]
    for each in greedy:
        each.setblocking(True)
        each.sendall(pulls)
        each.setblocking(False)
        net.idle()
    owed = [each.out_size for each in net.shell.connections.values()]
    answer = 256 << 10
    assert net.shell.budget.size == sum(owed)
    assert sum(owed) <= (6 << 20) + (4 << 20) + len(greedy) * 2 * answer, (
        "one answer of each beyond the bound"
    )
    net.shell.sweep()
    assert len(net.shell.connections) == 1 + len(greedy), "nobody is closed for that"
    reader = net.connect(port=port)
    answers = exchange(net, reader, pulls, 60)
    assert [c.code for c in answers] == [0] * 60
    for each in greedy[:-1]:
        each.close()
    net.until(lambda: len(net.shell.connections) == 3)
    assert {c.code for c in exchange(net, greedy[-1], b"", 60)} == {0}, (
        "it is read again as it takes what it is owed"
    )
    assert net.shell.budget.size == 0


def test_a_producer_that_reads_no_answers_is_not_read_beyond_the_bound(
    start_broker: StartBroker, stack: ExitStack
) -> None:
    running = start_broker(mappedFileSizeCommitLog=8 << 20)
    net = Net(stack, Turns(running.broker), out_max=100_000)
    port = net.listen("127.0.0.1", running.broker.new_session)
    client = net.connect(receive_buffer=2048, port=port)
    frames = b"".join(request(V2, send_ext("T"), opaque=n) for n in range(100))
    sent = 0
    for _ in range(2000):
        try:
            sent += client.send(frames)
        except BlockingIOError:
            break
        net.turn()
    else:
        pytest.fail("the broker went on reading")
    net.idle()
    (connection,) = net.shell.connections.values()
    assert connection.congested
    assert connection.out_size < 100_000 + (512 << 10)


def test_members_of_a_group_hear_of_a_connection_that_closed(served: Net) -> None:
    stays, leaves = served.connect(), served.connect()
    for client, name in ((stays, "a"), (leaves, "b")):
        body = heartbeat_body(client_id=name)
        assert exchange(served, client, request(RequestCode.HEART_BEAT, body=body), 1)[0].code == 0
    broker = served.turns.broker
    assert broker is not None
    broker.tick()
    served.shell.flush()
    assert exchange(served, stays, b"", 1)[0].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    leaves.close()
    served.until(lambda: len(served.shell.connections) == 1)
    broker.tick()
    served.shell.flush()
    (told,) = exchange(served, stays, b"", 1)
    assert (told.code, told.ext) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "cg"})


def test_a_tls_hello_is_hung_up_on_with_a_line_that_says_why(
    served: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    client = served.connect()
    client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    served.until(lambda: not served.shell.connections)
    assert served.is_closed(client)
    assert "TLS" in capsys.readouterr().out
