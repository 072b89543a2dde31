"""The thread that sends what `send_async` gathers: nobody waits for it in vain, whatever becomes of it."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Thread

import pytest

from ropewalk.client.blocking.links import ConversationPool
from ropewalk.client.blocking.producer import Producer
from ropewalk.client.core.messages import Message, SendResult
from ropewalk.codes import RequestCode
from ropewalk.errors import LocalProtocolError, OutcomeUnknown
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.ropewalk.client.fake_cluster import FakeCluster, route_body

PATIENCE_S = 30.0


class ResettingBroker:
    """A name server and broker that asks 300 requests of its own at each send, and resets the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameBuffer()
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                for request in map(decode_frame, frames.feed(data)):
                    if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                        body = route_body("b", self.address, 1)
                        connection.sendall(encode_frame(request.reply(0, body=body)))
                    elif request.code == RequestCode.SEND_MESSAGE_V2:
                        connection.sendall(encode_frame(Command(40)) * 300)
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return
                    elif not request.is_oneway:
                        connection.sendall(encode_frame(request.reply(0)))


def close_in_time(producer: Producer) -> None:
    closer = Thread(target=producer.close, daemon=True)
    closer.start()
    closer.join(PATIENCE_S)
    assert not closer.is_alive(), "close did not return"


def test_a_broker_that_asks_and_hangs_up_costs_the_messages_and_not_the_producer() -> None:
    with closing(ResettingBroker()) as broker:
        producer = Producer(broker.address, group="g", linger=0.001, retries=0)
        for _ in range(10):
            with pytest.raises(OutcomeUnknown):
                producer.send_async("T", b"x").result(PATIENCE_S)
        assert producer.flush(PATIENCE_S) and producer.counts.pending == 0
        close_in_time(producer)


def test_what_ends_the_thread_that_sends_is_the_outcome_of_everything_pending(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("T")

    def fail(self: object, timeout: float) -> None:
        raise RuntimeError("a bug")

    producer = Producer(cluster.address, group="g", linger=0.001)
    with monkeypatch.context() as broken:
        broken.setattr(ConversationPool, "wait", fail)
        futures = [producer.send_async("T", b"x") for _ in range(3)]
        for future in futures:
            with pytest.raises(OutcomeUnknown, match="RuntimeError: a bug"):
                future.result(PATIENCE_S)
        assert producer.flush(PATIENCE_S)
    assert producer.send_async("T", b"again").result(PATIENCE_S).queue_offset == 0
    close_in_time(producer)
    assert producer.counts.pending == 0


def test_threads_that_come_and_go_leave_no_connections_behind(cluster: FakeCluster) -> None:
    with Producer(cluster.address) as producer:
        for number in range(100):
            sender = Thread(target=producer.send, args=("T", Message(b"%d" % number)))
            sender.start()
            sender.join()
        assert sum(map(len, (queue.records for queue in cluster.topics["T"]))) == 100
        assert len(cluster._connections) <= 2


def test_threads_that_send_at_once_share_no_connection(cluster: FakeCluster) -> None:
    with Producer(cluster.address) as producer, ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda n: producer.send("T", Message(b"%d" % n)), range(400)))
        places = {(result.queue.queue_id, result.queue_offset): n for n, result in enumerate(sent)}
        for (queue_id, offset), n in places.items():
            assert b"%d" % n in cluster.topics["T"][queue_id].records[offset]
        assert len(places) == 400 and len(cluster._connections) <= 9


def test_a_callback_may_send_more_although_all_places_are_taken(cluster: FakeCluster) -> None:
    with Producer(cluster.address, pending_max=4, linger=0) as producer:
        more: list[Future[SendResult]] = []

        def send_more(_done: Future[SendResult]) -> None:
            if len(more) < 40:
                for _ in range(2):
                    more.append(producer.send_async("T", Message(b"more")))
                    more[-1].add_done_callback(send_more)

        producer.send_async("T", Message(b"first")).add_done_callback(send_more)
        assert producer.flush(10)
        assert len(more) >= 40 and all(future.result(5).message_id for future in more)


@pytest.mark.parametrize("what", ["flush", "close"])
def test_a_callback_that_would_wait_for_itself_hears_so(cluster: FakeCluster, what: str) -> None:
    with Producer(cluster.address) as producer:
        heard: list[BaseException] = []

        def wait(_done: Future[SendResult]) -> None:
            try:
                getattr(producer, what)()
            except LocalProtocolError as exc:
                heard.append(exc)

        future = producer.send_async("T", Message(b"m"))
        future.add_done_callback(wait)
        assert producer.flush(10)
        assert producer.send_async("T", Message(b"n")).result(5).message_id
        assert len(heard) == 1 and f"{what}() in a callback" in str(heard[0])


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_a_callback_that_ends_its_thread_ends_no_sends(
    cluster: FakeCluster, kind: type[BaseException]
) -> None:
    with Producer(cluster.address) as producer:

        def leave(_done: Future[SendResult]) -> None:
            raise kind("from a callback")

        producer.send_async("T", Message(b"m")).add_done_callback(leave)
        assert producer.flush(10)
        assert producer.send_async("T", Message(b"n")).result(5).message_id
        assert producer.flush(10) and producer.counts.acknowledged == 2
