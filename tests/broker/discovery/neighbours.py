"""A name server on a socket, and a broker's topics to register with it."""

from typing import Any

import trio

from broker.namesrv.server import NameServer
from broker.state.topics import TopicConfig, TopicTable
from ropewalk.codes import RequestCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame

NOW_MS = 1_700_000_000_000


IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "haServerAddr": "127.0.0.1:10912",
    "brokerId": "0",
}


class Neighbour:
    """A name server on a real socket; `seen` is what it was asked."""

    def __init__(self, answer: int | None = None) -> None:
        self.server = NameServer(lambda: NOW_MS)
        self.seen: list[int] = []
        self.answer = answer
        self.port = 0

    async def serve(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        await trio.serve_listeners(self._talk, listeners, task_status=task_status)

    async def _talk(self, stream: trio.SocketStream) -> None:
        frames = FrameBuffer()
        try:
            async for data in stream:
                for payload in frames.feed(data):
                    request = decode_frame(payload)
                    self.seen.append(request.code)
                    answer = (
                        self.server.handle(request, self)
                        if self.answer is None
                        else request.reply(self.answer)
                    )
                    assert answer is not None
                    await stream.send_all(encode_frame(answer))
        except (trio.BrokenResourceError, RemoteProtocolError):
            pass

    def knows(self, topic: str) -> bool:
        answer = self.server.handle(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}), self)
        return answer is not None and answer.code == 0


def table(*topics: str) -> TopicTable:
    topics_ = TopicTable()
    topics_.create_system_topics(NOW_MS)
    for topic in topics:
        topics_.update(TopicConfig(topic), NOW_MS)
    return topics_
