"""Who talks to the simulated group over remoting: producers, the operator, name server, and the members themselves.

The name server and the handovers are shipped cores; producers are the load, and remember what they were told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from broker.namesrv.server import NameServer
from ha.group.handover import Answer, Handover, HandoverKind, Member, Phase, Question, QuestionKind
from ha.group.hello import EpochRequest, MemberStatusMessage, RangesRequest, decode_untrusted, encode
from ha.group.roles import SLAVE
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from ropewalk.member_proof import NONCE_SIZE, Asker
from tests.sim.net import End

if TYPE_CHECKING:
    from tests.sim.group import World
    from tests.sim.group_node import Node

OPERATOR = "10.0.2.1"
ASKS = {
    QuestionKind.MEMBER_STATUS: RequestCode.ROPEWALK_MEMBER_STATUS,
    QuestionKind.ACCEPT: RequestCode.ROPEWALK_ACCEPT_EPOCH,
    QuestionKind.RELEASE: RequestCode.ROPEWALK_RELEASE_EPOCH,
    QuestionKind.PROMOTE: RequestCode.ROPEWALK_PROMOTE,
    QuestionKind.FOLLOW: RequestCode.ROPEWALK_FOLLOW,
}
SEND_S = 3.0
"""How long a producer waits for an answer."""


class Caller:
    """A client's connection: requests, and answers by opaque."""

    def __init__(self, end: End, address: str) -> None:
        self.address = address
        self.remote_address = ":".join(map(str, end.peer))
        self._end = end
        self._waiting: dict[int, tuple[trio.Event, list[Command]]] = {}
        self._opaque = 0
        end.session = _Answers(self._waiting)

    @property
    def closed(self) -> bool:
        return not self._end.is_open

    async def call(self, command: Command, timeout: float | None = None) -> Command:
        if not self._end.is_open:
            raise OutcomeUnknown(f"{self.address}: the connection is gone")
        self._opaque += 1
        command.opaque = self._opaque
        event, found = self._waiting[command.opaque] = trio.Event(), []
        self._end.send(encode_frame(command))
        with trio.move_on_after(timeout or SEND_S):
            await event.wait()
        del self._waiting[command.opaque]
        if not found:
            raise OutcomeUnknown(f"{self.address}: no answer")
        return found[0]

    def close(self) -> None:
        self._end.close()


class _Answers:
    """The receiving side of a client's connection."""

    has_backlog = False

    def __init__(self, waiting: dict[int, tuple[trio.Event, list[Command]]]) -> None:
        self._frames = FrameBuffer()
        self._waiting = waiting

    def receive(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            command = decode_frame(payload)
            waiting = self._waiting.get(command.opaque)
            if command.is_response and waiting is not None:
                waiting[1].append(command)
                waiting[0].set()

    def closed(self) -> None:
        for event, _found in self._waiting.values():
            event.set()


def dialled_by(who: Callable[[], tuple[str, World]]) -> Callable[..., AbstractAsyncContextManager[Caller]]:
    """`open_connection` for the tasks of a machine, which `who` names by its IP."""

    @asynccontextmanager
    async def dialled(address: str, *, timeout: float = 3.0) -> AsyncIterator[Caller]:
        ip, world = who()
        host, _, port = str(address).rpartition(":")
        await trio.sleep(world.chance.uniform(0.0001, 0.002))
        try:
            end = world.net.connect(ip, None, (host, int(port)))
        except OSError as exc:
            await trio.sleep(timeout if isinstance(exc, TimeoutError) else 0.001)
            raise RopewalkError(f"cannot connect to {address}: {exc}") from exc
        caller = Caller(end, str(address))
        try:
            yield caller
        finally:
            caller.close()

    return dialled


class NameServerHost:
    """The shipped name server on a machine of its own, which never dies."""

    alive = True

    def __init__(self, monotonic_ms: Callable[[], int], changed: Callable[[], None]) -> None:
        """`changed` is told whenever something may be different."""
        self.server = NameServer(monotonic_ms)
        self._changed = changed

    def accept(self, end: End) -> None:
        end.session = _NameServerSession(self.server, end, self._changed)

    def received(self, end: End, piece: bytes) -> None:
        end.session.receive(piece)

    def turn(self, act: Callable[[], object]) -> None:
        act()


class _NameServerSession:
    has_backlog = False

    def __init__(self, server: NameServer, end: End, changed: Callable[[], None]) -> None:
        self._server = server
        self._end = end
        self._changed = changed
        self._frames = FrameBuffer()

    def receive(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            answer = self._server.handle(decode_frame(payload), self)
            self._changed()
            if answer is not None:
                self._end.send(encode_frame(answer))

    def closed(self) -> None:
        self._server.closed(self)
        self._changed()


class Producer:
    """Sends one message after the other to whoever takes them, and notes what it is told."""

    has_backlog = False

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._ip = f"10.0.1.{number}"
        self._end: End | None = None
        self._frames = FrameBuffer()
        self._node = world.nodes[0]
        self._opaque = 0
        self._open: tuple[float, bytes] | None = None
        """When the message was sent that has no answer yet, and its body."""
        self._soon(0.0)
        self._watch()

    def _soon(self, delay_s: float) -> None:
        self._world.events.later(delay_s, self._send)

    def _watch(self) -> None:
        if (
            self._open is not None
            and self._world.events.now - self._open[0] > SEND_S
            and self._end is not None
        ):
            self._end.close()
        if not self._world.quiet:
            self._world.events.later(1.0, self._watch)

    def _send(self) -> None:
        world, chance = self._world, self._world.chance
        if world.quiet:
            return
        if self._end is None:
            self._node = chance.choice(world.nodes) if chance.random() < 0.2 else world.supposed_master()
            try:
                self._end = world.net.connect(self._ip, None, self._node.address)
            except OSError:
                self._soon(0.05)
                return
            self._end.session = self
            self._frames = FrameBuffer()
        self._opaque += 1
        command, body = world.next_message()
        command.opaque = self._opaque
        self._open = world.events.now, body
        self._end.send(encode_frame(command))

    def receive(self, data: bytes) -> None:
        world = self._world
        for payload in self._frames.feed(data):
            answer = decode_frame(payload)
            if self._open is None or answer.opaque != self._opaque:
                continue
            body, self._open = self._open[1], None
            if answer.code == ResponseCode.SUCCESS:
                world.acknowledged(
                    self._node, int(answer.ext["queueId"]), int(answer.ext["queueOffset"]), body
                )
                self._soon(world.chance.choice((0.001, 0.01, 0.05, 0.1)))
            else:
                world.history.unknown += 1
                assert self._end is not None
                self._end.close()

    def closed(self) -> None:
        self._end = None
        if self._open is not None:
            self._open = None
            self._world.history.unknown += 1
        self._soon(self._world.chance.choice((0.001, 0.01, 0.05, 0.2)))


class Operator:
    """Carries out handovers, as `tools.admin.handover` does; there can be several at a time, each with a name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = 0

    async def hand_over(
        self,
        kind: HandoverKind,
        *,
        unseen: Collection[Node] = (),
        target: Node | None = None,
        closest: bool = False,
        on_phase: Callable[[Phase], None] = lambda phase: None,
        dies_after_s: float = float("inf"),
    ) -> bool:
        """One handover; whether it came to its end. `unseen`: whom the operator cannot see when it looks around.

        A switch goes to `target`, to the slave that has most, or to any.

        An operator that dies in the middle of it sets nobody free.
        """
        world = self._world
        self._asked += 1
        by = f"operator {self._asked}"
        hidden = {_address(node) for node in unseen}
        done = False
        with trio.move_on_after(dies_after_s) as life:
            statuses = await self._find_newest_master(hidden)
            newest = max((each.leader_epoch for each in statuses.values()), default=0)
            master = next(
                (each for each in statuses.values() if each.role != SLAVE and each.leader_epoch == newest),
                None,
            )
            wanted = ""
            if kind is HandoverKind.SWITCH:
                slaves = [each.address for each in statuses.values() if each.role == SLAVE]
                if master is None or not slaves:
                    return False
                wanted = _address(target) if target is not None else world.chance.choice(slaves)
                if closest:
                    wanted = max(slaves, key=lambda each: statuses[each].status().rank)
                old = master.address
            else:
                if master is not None:
                    return False
                old = next((each.master for each in statuses.values() if each.master not in statuses), "")
            epoch = 1 + max((each.promised_epoch for each in statuses.values()), default=0)
            members = [Member(_address(node), 0) for node in world.nodes]
            world.log(by, f"{kind.value} to epoch {epoch}")
            handover = Handover(kind, members, epoch, by, master=old, target=wanted)
            await self._apply_decision(handover, on_phase)
            done = handover.phase is Phase.DONE
            winner = handover.winner.address if handover.winner else handover.reason
            world.log(by, f"{handover.phase.value}: {winner}")
        if life.cancelled_caught:
            world.log(by, "dies in the middle of it")
        world.history.handovers += done
        world.history.failed_handovers += not done
        return done

    async def _apply_decision(self, handover: Handover, on_phase: Callable[[Phase], None]) -> None:
        async with trio.open_nursery() as nursery:
            phase = handover.phase
            until = trio.current_time() + 3
            on_phase(phase)

            def post(questions: list[Question]) -> None:
                nonlocal phase, until
                if handover.phase is not phase:
                    phase, until = handover.phase, trio.current_time() + 3
                    on_phase(phase)
                for question in questions:
                    nursery.start_soon(carry, question)

            async def carry(question: Question) -> None:
                if question.kind is QuestionKind.MEMBER_STATUS:
                    await trio.sleep(0.01)
                answer = await self._ask(question)
                if not handover.is_over:
                    post(handover.on_answer(question.address, question.kind, answer))

            post(handover.start())
            while not handover.is_over:
                await trio.sleep(0.02)
                if trio.current_time() > until:
                    until = trio.current_time() + 3
                    post(handover.on_timeout())
            nursery.cancel_scope.cancel()

    async def _ask(self, question: Question) -> Answer:
        message: Any = (
            RangesRequest([])
            if question.kind is QuestionKind.MEMBER_STATUS
            else EpochRequest(
                "DefaultCluster",
                "b",
                question.epoch,
                question.operator,
                question.broker_id,
                question.master,
                question.policy,
            )
        )
        try:
            answer = await self._call(question.address, Command(ASKS[question.kind], {}, encode(message)))
        except (RopewalkError, OSError):
            await trio.sleep(0.01)
            return Answer()
        if answer.code != ResponseCode.SUCCESS:
            return Answer(refusal=answer.remark or f"code {answer.code}")
        return Answer(decode_untrusted(MemberStatusMessage, answer.body).status())

    async def _call(self, address: str, command: Command) -> Command:
        host, _, port = address.rpartition(":")
        caller = Caller(self._world.net.connect(OPERATOR, None, (host, int(port))), address)
        secret = self._world.settings.get("ropewalkSecret", "")
        try:
            if not secret:
                return await caller.call(command, 1.0)
            asker = Asker(secret, address, caller.remote_address, self._world.chance.randbytes(NONCE_SIZE))
            asker.challenged((await caller.call(asker.question(), 1.0)).body)
            question = asker.prove(command)
            answer = await caller.call(question, 1.0)
            asker.check(question, answer)
            return answer
        finally:
            caller.close()

    async def _find_newest_master(self, hidden: Collection[str]) -> dict[str, MemberStatusMessage]:
        found: dict[str, MemberStatusMessage] = {}
        for node in self._world.nodes:
            address = _address(node)
            if address in hidden:
                continue
            try:
                answer = await self._call(
                    address, Command(RequestCode.ROPEWALK_MEMBER_STATUS, {}, encode(RangesRequest([])))
                )
            except (RopewalkError, OSError):
                continue
            if answer.code == ResponseCode.SUCCESS:
                found[address] = decode_untrusted(MemberStatusMessage, answer.body)
        return found


def _address(node: Node) -> str:
    return f"{node.address[0]}:{node.address[1]}"
