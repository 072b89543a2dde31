"""Lives of one DLedger group beside a stranger, who reaches both ports of every member and lacks the group's secret.

It knows addresses, ids, the group and its cluster. On the remoting port it says every code of `admin dledger` and of
members of other groups, with wrong proofs and none; on the port of the group it introduces itself as any member, with
wrong proofs, with what it was sent before, and goes on with votes and heartbeats of a high term as if it were in.

Beside what the world checks: no such code is answered 0, no link is up that no member has, the group keeps its three
voters, its terms are those of its own elections, and every record is a client's of this world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ha.dledger.links.address_book import Membership
from ha.dledger.links.hello import CHALLENGE_SIZE, Identity, IntroductionFrames, Step, introduction_of, prove
from ha.dledger.links.hello import encode as encode_step
from ha.group.hello import EpochRequest, encode
from ha.raft.types import Link
from ropewalk.codes import RequestCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.frame import Kind, encode_head
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.sim.ledger import world
from tests.sim.ledger.clients import TOPIC
from tests.sim.ledger.node import RAFT_PORT, SIZE, Broken, LedgerNode
from tests.sim.machine import BROKER_PORT
from tests.sim.net import End

__all__ = ["Broken", "World", "run"]

SECRET: Final = "known to the members alone"
IP: Final = "10.9.9.9"
TERMS_MAX: Final = 300
"""More terms than a life of some seconds has."""
CODES: Final = (
    *range(RequestCode.ROPEWALK_SLAVE_HELLO, RequestCode.ROPEWALK_LOG_BLOCK + 1),
    *range(RequestCode.ROPEWALK_LEDGER_STATUS, RequestCode.ROPEWALK_LEDGER_TRUST + 1),
)


class Stranger:
    """The attempts of one life."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self.tried = 0
        self.kept: list[bytes] = []
        """Proofs and challenges that were sent here."""
        self._later()

    def _later(self) -> None:
        self._world.events.later(self._chance.uniform(0.005, 0.1), self._act)

    def _act(self) -> None:
        if self._world.quiet:
            return
        self.tried += 1
        node = self._chance.choice(list(self._world.nodes))
        port, begin = self._chance.choice(((BROKER_PORT, self._speak), (RAFT_PORT, self._introduce)))
        try:
            end = self._world.net.connect(IP, None, (node.ip, port))
        except OSError:
            pass
        else:
            begin(node, end)
        self._world.check()
        self._later()

    def _speak(self, node: LedgerNode, end: End) -> None:
        """Say every code, with a number as the proof of each."""
        end.session = _Answers(self._world, node)
        challenge = Command(RequestCode.ROPEWALK_CHALLENGE)
        if self._chance.random() < 0.5:
            address = f"{node.ip}:{BROKER_PORT}"
            challenge.ext = {"nonce2": "00" * 32, "dialed2": address, "socket2": address}
        body = encode(EpochRequest("DefaultCluster", "b", 1, "a stranger", 1, f"{IP}:{BROKER_PORT}"))
        member = f"n{self._chance.randrange(SIZE)}"
        ext = {
            "to": self._chance.choice(("", member)), "id": member, "change": self._chance.choice(("remove", "add")),
            "address": f"{IP}:1", "proof": self._chance.choice(("", "0" * 64)), "proof2": "0" * 64, "counter2": "1",
        }  # fmt: skip
        for number, command in enumerate((challenge, *(Command(code, ext, body) for code in CODES))):
            command.opaque = number
            end.send(encode_frame(command))
        self._world.events.later(0.5, end.close)

    def _introduce(self, node: LedgerNode, end: End) -> None:
        """Be another member of the group."""
        end.session = _Newcomer(self, node, end)

    def as_a_member(self, node: LedgerNode, challenge: bytes) -> bytes:
        """Return an introduction, and votes behind it."""
        chance = self._chance
        me = Identity(
            "DefaultCluster", "b", chance.choice([f"n{number}" for number in range(SIZE + 1)]), chance.randbytes(16),
            int(node.config.mapped_file_size_commit_log), "", "",
        )  # fmt: skip
        term = chance.choice((1, 9, 500_000))
        newest = chance.choice((Membership(-1, {}), Membership(1 << 40, {me.id: f"{IP}:1"})))
        introduction = introduction_of(
            me, node.id, chance.choice(list(Link)), chance.randbytes(CHALLENGE_SIZE), newest, {0: term}
        )
        said = prove(Step.HELLO, introduction, chance.choice(("", "a guess")), challenge)
        frames = b"".join(
            encode_head(kind, 0, 0, 1, (term, 1 << 30, term, 0, 0, 0))
            for kind in (Kind.VOTE, Kind.HEARTBEAT, Kind.TAKE_LEAD)
        )
        return said + frames


class _Answers:
    """The session of a connection to the remoting port."""

    has_backlog = False

    def __init__(self, world: World, node: LedgerNode) -> None:
        self._world = world
        self._node = node
        self._frames = FrameBuffer()

    def receive(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            answer = decode_frame(payload)
            if answer.code == 0 and answer.opaque > 0:
                self._world.broken(f"{self._node} answered a stranger's {CODES[answer.opaque - 1]}")

    def closed(self) -> None: ...


class _Newcomer:
    """The session of a connection to the group's own port."""

    has_backlog = False

    def __init__(self, stranger: Stranger, node: LedgerNode, end: End) -> None:
        self._stranger = stranger
        self._node = node
        self._end = end
        self._frames = IntroductionFrames()

    def receive(self, data: bytes) -> None:
        try:
            self._frames.feed(data)
            while (message := self._frames.next_message()) is not None:
                step, body = message
                if step is Step.CHALLENGE:
                    for kept in self._stranger.kept[-2:]:
                        self._end.send(encode_step(Step.REFUSED, kept[:100]))
                    self._end.send(self._stranger.as_a_member(self._node, body))
                elif step is Step.WELCOME:
                    self._stranger._world.broken(f"{self._node} welcomed a stranger")
                self._stranger.kept.append(body)
        except RemoteProtocolError:
            pass

    def closed(self) -> None: ...


class World(world.World):
    """The world of a group with a stranger in it."""

    def _make_nodes(self, settings: dict[str, str]) -> Sequence[LedgerNode]:
        return super()._make_nodes({**settings, "ropewalkSecret": SECRET})

    def _begin(self) -> None:
        super()._begin()
        self.stranger = Stranger(self)

    def broken(self, why: str) -> None:
        """End the life, though whoever is on the stack may catch what a handler raises."""

        def end() -> None:
            raise Broken(why)

        self.events.later(0, end)

    def check(self) -> None:
        """Raise `Broken` where something is so by the stranger."""
        voters = tuple(f"n{number}" for number in range(SIZE))
        for node in self.nodes:
            if not node.alive:
                continue
            core = node.member.ledger.core
            if core.config.voters != voters or core.config.old or core.config.learners:
                raise Broken(f"{node} has the members {core.config}")
            if core.term > TERMS_MAX:
                raise Broken(f"{node} is in term {core.term}")

    def _judge_messages(self, node: LedgerNode) -> None:
        super()._judge_messages(node)
        self.check()
        for body in node.bodies(TOPIC).values():
            if not body.startswith(b"%d:" % self.seed):
                raise Broken(f"{node} has a record that nobody sent here: {body[:30]!r}")


def run(seed: int) -> World:
    """Live one life beside a stranger, and return it. Raises `Broken`."""
    return world.live(seed, World)
