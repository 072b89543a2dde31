"""A stranger among the callers of a simulated group that has a secret: it speaks every code, and knows no secret.

It registers at the name server as a member, answers whoever dials it (with lies, or by passing all on to a member),
sends members every code between them, with proofs that it overheard, and serves a log of its own. It changes nothing:
no role, no epoch, no byte of a log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from ha.group.hello import EpochRequest, Hello, MemberStatusMessage, RangesRequest, Welcome
from ha.group.metadata import Seen, SyncRequest, SyncResponse
from ha.group.roles import QuorumPolicy
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.ha import encode_header
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from ropewalk.member_proof import Challenge
from tests.sim.events import Events
from tests.sim.group import History, World, run
from tests.sim.group_node import CLUSTER, HA_PORT, NAME, NAME_SERVER, TOPIC, Broken
from tests.sim.machine import BROKER_PORT
from tests.sim.net import End

SECRET = "a secret that the stranger does not know"
IP = "10.0.3.1"
ADDRESS = f"{IP}:{BROKER_PORT}"
CLAIMED = 500
"""The epoch that it says it leads: within reach of a member's, and above all that operators come to."""
CODES = (*range(30000, 30012), *range(30040, 30047))
POLICY = QuorumPolicy("SYNC_MASTER", 2, 900, {"1": ADDRESS, "2": ADDRESS})


class StrangeWorld(World):
    """A group with a secret, and a stranger."""

    def __init__(self, seed: int, safe_class: str, events: Events) -> None:
        super().__init__(seed, safe_class, events)
        self.settings |= {"ropewalkSecret": SECRET, "registerNameServerPeriod": "10000"}
        for node in self.nodes:
            node.configure(self.settings)
        self.stranger = Stranger(self)
        self.net.hosts[IP] = self.stranger

    def begin_load(self) -> None:
        super().begin_load()
        self.stranger.act()

    async def until_done(self, master: Any) -> None:
        for node in self.nodes:
            if not node.alive:
                continue
            record = node.broker.member.record
            if IP in str(record) or record.promised_epoch >= CLAIMED:
                raise Broken(f"{node} took a role by the word of a stranger: {record}")
        if any(not body.startswith(f"{self.seed}:".encode()) for body in master.bodies(TOPIC).values()):
            raise Broken(f"the log of {master} has a message of a stranger")


def live(seed: int, safe_class: str) -> History:
    """One life of such a group. Raises `Broken`."""
    return run(seed, safe_class, make=StrangeWorld)


class Stranger:
    """A host of its own."""

    alive = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(f"stranger {world.seed}")
        self.overheard: list[Command] = []
        """Questions that it was asked, with their proofs."""
        self.answered = 0
        self._registrations: list[End] = []

    def accept(self, end: End) -> None:
        end.session = _FalseLog(end) if end.local[1] == HA_PORT else _Asked(self, end)

    def received(self, end: End, piece: bytes) -> None:
        end.session.receive(piece)

    def turn(self, act: Callable[[], object]) -> None:
        act()

    def act(self) -> None:
        """Do harm, again and again until misfortune is over."""
        if self.world.quiet:
            for each in self._registrations:
                each.close()
            return
        with suppress(OSError):  # nobody listens there at the moment
            self._register() if self.chance.random() < 0.15 else self._ask()
        self.world.events.later(self.chance.uniform(0.005, 0.1), self.act)

    def connect(self, address: str) -> End:
        host, _, port = address.rpartition(":")
        return self.world.net.connect(IP, None, (host, int(port)))

    def some_member(self) -> str:
        return f"{self.chance.choice(self.world.nodes).ip}:{BROKER_PORT}"

    def _register(self) -> None:
        end = self.connect(NAME_SERVER)
        end.session = _Deaf()
        ext = {
            "brokerName": NAME,
            "clusterName": CLUSTER,
            "brokerId": str(self.chance.choice((0, 1, 2, 7))),
            "brokerAddr": ADDRESS,
            "haServerAddr": f"{IP}:{HA_PORT}",
        }
        body = self.world.nodes[0].broker.topics.register_body() if self.world.nodes[0].alive else b""
        end.send(encode_frame(Command(RequestCode.REGISTER_BROKER, ext, body, opaque=1)))
        self._registrations.append(end)
        if len(self._registrations) > 3:
            self._registrations.pop(0).close()

    def _ask(self) -> None:
        end = self.connect(self.some_member())
        end.session = _Deaf()
        end.send(encode_frame(Command(RequestCode.ROPEWALK_CHALLENGE, self.claims(), opaque=1)))
        for opaque in range(2, 6):
            if self.overheard and self.chance.random() < 0.5:
                question = self.chance.choice(self.overheard)
            else:
                code = self.chance.choice(CODES)
                proof = {"proof": "0" * 64, "proof2": "0" * 64, "counter2": str(opaque)}
                question = Command(code, self.chance.choice(({}, proof)), self._body(code))
            end.send(encode_frame(replace(question, opaque=opaque)))

    def claims(self) -> dict[str, str]:
        """The fields of a CHALLENGE: of the release before, or of this one, with a member's address."""
        if self.chance.random() < 0.5:
            return {}
        member = self.some_member()
        return {"nonce2": self.chance.randbytes(32).hex(), "dialed2": member, "socket2": member}

    def _body(self, code: int) -> bytes:
        kinds: dict[int, msgspec.Struct] = {
            RequestCode.ROPEWALK_SLAVE_HELLO: Hello(
                CLUSTER,
                NAME,
                1,
                ADDRESS,
                f"{IP}:1",
                CLAIMED,
                0,
                0,
                int(self.world.settings["mappedFileSizeCommitLog"]),
            ),
            RequestCode.ROPEWALK_LOG_SUMS: RangesRequest([(0, 10)]),
            RequestCode.ROPEWALK_LOG_BYTES: RangesRequest([(0, 10)]),
            RequestCode.ROPEWALK_SYNC: SyncRequest(1, ADDRESS, CLAIMED, Seen()),
        }
        order = EpochRequest(CLUSTER, NAME, CLAIMED, "stranger", 1, ADDRESS, POLICY)
        return msgspec.msgpack.encode(kinds.get(code, order))

    def lie(self, question: Command) -> Command | None:
        """Return an answer that would change a role, tables or a log, if it were believed."""
        chance = self.chance
        status = MemberStatusMessage(
            NAME, 0, ADDRESS, "SYNC_MASTER", CLAIMED, CLAIMED, 0, 1 << 20, CLAIMED, policy=POLICY, master=ADDRESS,
            ha_address=f"{IP}:{HA_PORT}", cluster=CLUSTER,
        )  # fmt: skip
        answers: dict[int, msgspec.Struct] = {
            RequestCode.ROPEWALK_CHALLENGE: Challenge(
                chance.choice((b"", chance.randbytes(16), chance.randbytes(100))),
                "0.1.0",
                chance.choice((b"", chance.randbytes(32))),
                CLUSTER,
                NAME,
            ),
            RequestCode.ROPEWALK_SLAVE_HELLO: Welcome(
                CLAIMED, 0, 0, [], [], POLICY, False, f"{IP}:{HA_PORT}"
            ),
            RequestCode.ROPEWALK_MEMBER_STATUS: status,
            RequestCode.ROPEWALK_SYNC: SyncResponse(
                CLAIMED,
                Seen("run", 9, 9, 9, 9),
                0,
                0,
                1,
                POLICY,
                topics={"topicConfigTable": {}, "dataVersion": {}},
            ),
        }
        found = answers.get(question.code)
        if found is None:
            return question.reply(ResponseCode.ILLEGAL_OPERATION, "no")
        return question.reply(ResponseCode.SUCCESS, body=msgspec.msgpack.encode(found))


class _Deaf:
    """The receiving side of a connection whose answers are read by nobody."""

    has_backlog = False

    def receive(self, data: bytes) -> None:
        pass

    def closed(self) -> None:
        pass


class _FalseLog(_Deaf):
    """The stranger's log, for a slave that follows it."""

    def __init__(self, end: End) -> None:
        self._end = end

    def receive(self, data: bytes) -> None:
        offset = int.from_bytes(data[-8:], "big")
        self._end.send(encode_header(offset, 100) + bytes(100))


class _Asked(_Deaf):
    """The stranger as it is asked: it lies, or passes everything on to a member and its answers back."""

    def __init__(self, stranger: Stranger, end: End) -> None:
        self._stranger = stranger
        self._end = end
        self._frames = FrameBuffer()
        self._upstream: End | None = None
        if stranger.chance.random() < 0.5:
            try:
                self._upstream = stranger.connect(stranger.some_member())
            except OSError:
                return
            self._upstream.session = _Back(end)

    def receive(self, data: bytes) -> None:
        stranger = self._stranger
        for payload in self._frames.feed(data):
            question = decode_frame(payload)
            stranger.answered += 1
            if question.ext:
                stranger.overheard = [*stranger.overheard[-50:], question]
            if self._upstream is None:
                answer = stranger.lie(question)
                if answer is not None:
                    self._end.send(encode_frame(answer))
                continue
            if question.code == RequestCode.ROPEWALK_CHALLENGE and stranger.chance.random() < 0.5:
                # As if the member had been dialed that all is passed on to.
                place = ":".join(map(str, self._upstream.peer))
                question = replace(question, ext={**question.ext, "dialed2": place, "socket2": place})
            self._upstream.send(encode_frame(question))

    def closed(self) -> None:
        if self._upstream is not None:
            self._upstream.close()


class _Back(_Deaf):
    """The answers of a member, on their way back to the member that asked the stranger."""

    def __init__(self, end: End) -> None:
        self._end = end

    def receive(self, data: bytes) -> None:
        self._end.send(data)
