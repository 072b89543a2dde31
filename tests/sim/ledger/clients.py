"""Clients of the simulated DLedger group: they append, commit offsets and read, at any member, and note each call.

    ("end", queue)       appends, and reads of the queue's end (code 30) at any member            LOG
    ("offset", key)      commits of an offset, answered (15) or oneway, and reads of it (14)      REGISTER

One of them, in some lives, sends to a topic of its own and deletes it (215); it is created again by the next message.

The offset that is written changes every half second: a history is cheap to judge where few calls meet on one key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.properties import encode_properties
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.linear.history import UNKNOWN, Call

if TYPE_CHECKING:
    from tests.sim.ledger.node import LedgerNode
    from tests.sim.ledger.world import World
    from tests.sim.net import End

TOPIC, DELAYED, GROUP = "orders", "later", "g"
QUEUES = 2
PATIENCE_S = 1.0
_READS = ("query", "end")
_KINDS = ("append", "append", "commit", "commit", *_READS, *_READS, "rare")
_NOTHING_STORED = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)


class Client:
    """One client: a call at a time, and no call twice."""

    has_backlog = False

    def __init__(self, world: World, number: int) -> None:
        world.callers.append(self)
        self.name = f"client {number}"
        self._world = world
        self._is_loyal = number == 0
        """Whether it reads only, and stays with the leader that it found, also when that one leads no more."""
        self._ip = f"10.0.1.{number}"
        self._end: End | None = None
        self._node: LedgerNode = world.nodes[0]
        self._frames = FrameBuffer()
        self._opaque = 0
        self._hear: Callable[[Command | None], None] | None = None
        """Takes the answer to the call that is under way, or None where none will come."""
        self._soon()

    @property
    def waits(self) -> bool:
        """Return whether a call is under way."""
        return self._hear is not None

    def _soon(self) -> None:
        chance = self._world.chance
        self._world.events.later(chance.choice((0.001, 0.005, 0.02, 0.05)), self._go_on)

    def _go_on(self) -> None:
        world, chance = self._world, self._world.chance
        if world.quiet:
            return
        kind = chance.choice(_READS if self._is_loyal else _KINDS)
        at_leader = self._is_loyal or chance.random() < (0.4 if kind in _READS else 0.9)
        node = world.supposed_leader() if at_leader else chance.choice(world.nodes)
        if self._is_loyal and self._end is not None:
            node = self._node
        if not self._connect(node):
            self._soon()
            return
        if kind == "append":
            self._append(chance.randrange(QUEUES))
        elif kind == "commit":
            self._commit(world.offset_key(), oneway=chance.random() < 0.3)
        elif kind == "query":
            self._read(("offset", world.offset_key()))
        elif kind == "end":
            self._read(("end", chance.randrange(QUEUES)))
        elif chance.random() < 0.5:
            self._append_delayed()
        else:
            self._append_to_new_topic()

    # -- calls -------------------------------------------------------------------------------------------

    def _append(self, queue_id: int) -> None:
        world = self._world
        body = world.next_body()
        call = world.recorder.begin(self.name, ("end", queue_id), ("append",))

        def hear(answer: Command | None) -> None:
            if answer is None:
                return
            if answer.code == ResponseCode.SUCCESS:
                place = int(answer.ext["queueOffset"])
                world.recorder.end(call, place)
                world.acknowledged(queue_id, place, body)
            elif answer.code in _NOTHING_STORED:
                world.recorder.forget(call)

        self._ask(_send(TOPIC, queue_id, body, world.now_ms()), hear)

    def _append_delayed(self) -> None:
        world = self._world
        body = world.next_body()

        def hear(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                world.delayed.append(body)

        self._ask(_send(DELAYED, 0, body, world.now_ms(), DELAY="1"), hear)

    def _append_to_new_topic(self) -> None:
        world = self._world
        body = world.next_body()
        topic = f"t{body[:12].decode().replace(':', '_').strip()}"

        def hear(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                world.topics.append(topic)

        self._ask(_send(topic, 0, body, world.now_ms()), hear)

    def _commit(self, key: int, *, oneway: bool) -> None:
        world = self._world
        offset = world.next_number()
        call = world.recorder.begin(self.name, ("offset", key), ("write", offset))
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(key), "commitOffset": str(offset)}
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        if oneway:
            command.flag |= 2
            self._send(command)
            self._soon()
            return

        def hear(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                world.recorder.end(call, None)

        self._ask(command, hear)

    def _read(self, key: tuple[str, int]) -> None:
        world = self._world
        call = world.recorder.begin(f"{self.name} at {self._node}", key, ("read",))
        ext = {"topic": TOPIC, "queueId": str(key[1])}
        if key[0] == "offset":
            ext |= {"consumerGroup": GROUP, "setZeroIfNotFound": "false"}
            command = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        else:
            command = Command(RequestCode.GET_MAX_OFFSET, ext)

        def hear(answer: Command | None) -> None:
            self._heard_read(call, answer)

        self._ask(command, hear)

    def _heard_read(self, call: Call, answer: Command | None) -> None:
        recorder = self._world.recorder
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            recorder.end(call, int(answer.ext["offset"]))
            self._world.reads += 1
        elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            recorder.end(call, None)
        else:
            assert call.result is UNKNOWN
            recorder.forget(call)

    # -- the connection ----------------------------------------------------------------------------------

    def _connect(self, node: LedgerNode) -> bool:
        if self._end is not None and self._node is node:
            return True
        if self._end is not None:
            end, self._end = self._end, None
            end.session = None
            end.close()
        try:
            self._end = self._world.net.connect(self._ip, None, node.address)
        except OSError:
            return False
        self._end.session, self._node, self._frames = self, node, FrameBuffer()
        return True

    def _send(self, command: Command) -> None:
        self._opaque += 1
        command.opaque = self._opaque
        assert self._end is not None
        self._end.send(encode_frame(command))

    def _ask(self, command: Command, hear: Callable[[Command | None], None]) -> None:
        self._hear = hear
        self._send(command)
        opaque = self._opaque

        def too_late() -> None:
            if self._hear is not None and self._opaque == opaque and self._end is not None:
                self._end.close()

        self._world.events.later(PATIENCE_S, too_late)

    def receive(self, data: bytes) -> None:
        """Hear the answer of a broker."""
        for payload in self._frames.feed(data):
            answer = decode_frame(payload)
            if answer.is_response and answer.opaque == self._opaque and self._hear is not None:
                hear, self._hear = self._hear, None
                hear(answer)
                self._soon()

    def closed(self) -> None:
        """Note that the connection is gone."""
        self._end = None
        if self._hear is not None:
            hear, self._hear = self._hear, None
            hear(None)
            self._soon()


class Recreator(Client):
    """The one client that sends to a topic and deletes it, again and again."""

    def _go_on(self) -> None:
        world, chance = self._world, self._world.chance
        if world.quiet:
            return
        if not self._connect(world.supposed_leader()):
            self._soon()
        elif world.recreated and chance.random() < 0.25:
            self._delete()
        else:
            self._send_again()

    def _send_again(self) -> None:
        world = self._world
        body = world.next_body()

        def hear(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                world.recreated.append(body)

        self._ask(_send(world.recreated_topic, 0, body, world.now_ms()), hear)

    def _delete(self) -> None:
        world = self._world
        topic = world.recreated_topic
        world.recreated.clear()

        def hear(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                world.deletions += 1
            else:
                world.recreated_topic = (
                    f"again{world.next_number()}"  # nobody knows when it is deleted, if ever
                )

        self._ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}), hear)


def _send(topic: str, queue_id: int, body: bytes, now_ms: int, **properties: str) -> Command:
    key = f"7F0000010ABC18B4AAC2{int(body.split(b':')[1]):012X}"
    text = encode_properties({"UNIQ_KEY": key, "WAIT": "true", **properties}).decode()
    ext = {
        "a": "p", "b": topic, "c": "TBW102", "d": "2", "e": str(queue_id), "f": "0", "g": str(now_ms), "h": "0",
        "i": text, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, ext, body)
