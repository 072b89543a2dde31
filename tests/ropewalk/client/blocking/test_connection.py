import socket
import struct
import threading
import time
from contextlib import closing, suppress

import pytest

from ropewalk.client.blocking.connection import Connection, receive_any
from ropewalk.client.core.connection import Unreachable
from ropewalk.codes import RequestCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.remoting import Command, FrameBuffer, encode_frame
from tests.ropewalk.client.fake_cluster import FakeCluster
from tests.support.long_run import ROOM_S
from tests.support.ports import free_port

ROUTE = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})


def test_a_call_returns_the_answer_whatever_its_code(cluster: FakeCluster) -> None:
    with Connection(cluster.address) as connection:
        assert connection.call(ROUTE).code == 17
        cluster.create_topic("T")
        assert connection.call(ROUTE).code == 0


def test_nobody_there_is_unreachable_and_says_why() -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:\d+: Connection refused"):
        Connection(f"127.0.0.1:{free_port()}")


def test_no_answer_in_time_is_an_unknown_outcome_and_the_late_answer_is_dropped(cluster: FakeCluster) -> None:
    release = threading.Event()

    def slow(request: Command) -> Command:
        release.wait(5)
        return request.reply(0)

    cluster.answers[RequestCode.SEND_MESSAGE_V2] = slow
    with Connection(cluster.address) as connection:
        with pytest.raises(OutcomeUnknown, match="within"):
            connection.call(Command(RequestCode.SEND_MESSAGE_V2), timeout=0.05)
        release.set()
        assert connection.call(ROUTE).code == 17
        assert connection.ignored_count == 1


def test_many_requests_can_be_under_way_and_be_taken_in_any_order(cluster: FakeCluster) -> None:
    cluster.create_topic("T")
    with Connection(cluster.address) as connection:
        opaques = [connection.start(ROUTE) for _ in range(100)]
        assert {connection.wait(opaque).code for opaque in reversed(opaques)} == {0}


def test_a_peer_that_hangs_up_leaves_every_outcome_unknown(cluster: FakeCluster) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: None
    with Connection(cluster.address) as connection:
        opaque = connection.start(Command(RequestCode.SEND_MESSAGE_V2))
        cluster.wait_for_request(RequestCode.SEND_MESSAGE_V2)
        cluster.hang_up()
        with pytest.raises(OutcomeUnknown, match="closed"):
            connection.wait(opaque)
        with pytest.raises(Unreachable):
            connection.start(ROUTE)


def test_bytes_that_are_no_frame_close_the_connection() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Connection(address) as connection:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                with pytest.raises(OutcomeUnknown, match="broke the protocol"):
                    connection.call(ROUTE, timeout=5)


def test_a_peers_request_is_answered_and_its_oneway_is_not(cluster: FakeCluster) -> None:
    asked: list[int] = []

    def offer(request: Command) -> Command:
        asked.append(request.code)
        return request.reply(0)

    with Connection(cluster.address, on_request=offer) as connection:
        connection.call(ROUTE)
        cluster.push(Command(40, flag=2))
        cluster.push(Command(307))
        deadline = time.monotonic() + 30
        while len(asked) < 2 and time.monotonic() < deadline:
            connection.receive(0.1)
    assert asked == [40, 307]


def test_a_peer_that_answers_before_it_takes_more_does_not_deadlock_us() -> None:
    """Both ends write more than the sockets hold: whoever does not read while it writes stops them both."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                asked = FrameBuffer()
                payloads: list[bytes] = []
                while len(payloads) < 16:
                    payloads += asked.feed(peer.recv(1 << 12))
                for opaque in range(16):
                    peer.sendall(encode_frame(Command(0, flag=1, opaque=opaque, body=bytes(1 << 20))))
                while peer.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Connection(f"127.0.0.1:{listener.getsockname()[1]}", timeout=10) as connection:
            opaques = [connection.start(ROUTE) for _ in range(16)]
            for _ in range(16):
                connection.oneway(Command(10, body=bytes(1 << 20)))
            assert {len(connection.wait(opaque).body) for opaque in opaques} == {1 << 20}
        thread.join(10)
        assert not thread.is_alive()


def test_a_peer_that_takes_nothing_breaks_the_connection_in_time() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        Connection(f"127.0.0.1:{listener.getsockname()[1]}", timeout=0.2) as connection,
    ):
        with pytest.raises(OutcomeUnknown, match="did not take"):
            for _ in range(100):
                connection.start(Command(10, body=bytes(4 << 20)))
        assert connection.closed


def test_waiting_for_any_of_several_returns_when_one_has_something(cluster: FakeCluster) -> None:
    with Connection(cluster.address) as quiet, Connection(cluster.address) as busy:
        opaque = busy.start(ROUTE)
        receive_any([quiet, busy], 5)
        answer = busy.poll_answer(opaque)
        assert answer is not None
        assert answer.code == 17
        started = time.monotonic()
        receive_any([quiet, busy], 0.05)
        assert time.monotonic() - started < 2 + ROOM_S


def test_a_peer_that_asks_and_hangs_up_is_no_exception_of_whoever_receives() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Connection(address) as connection:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(encode_frame(Command(40)) * 300)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            deadline = time.monotonic() + 30
            while not connection.closed and time.monotonic() < deadline:
                receive_any([connection], 0.1)
            assert connection.closed
            with pytest.raises(Unreachable):
                connection.call(ROUTE)


def test_a_peer_that_asks_without_end_and_reads_nothing_loses_the_connection() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def flood() -> None:
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                while True:
                    peer.sendall(encode_frame(Command(307)) * 100)

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        with (
            Connection(address, timeout=30) as connection,
            pytest.raises(OutcomeUnknown, match=r"broke the protocol.*more than 1000 requests"),
        ):
            connection.call(ROUTE)
        thread.join(30)
        assert not thread.is_alive()
