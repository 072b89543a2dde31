"""A DLedger group of whole brokers in one process: real stores, and links that are queues of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Self, cast

from broker.remoting.connection import Connection
from broker.replication.dledger.member import LedgerMember
from ha.dledger.links.link import PeerLink
from ha.raft.types import Link
from store.io.disk import Disk
from tests.broker.harness import InProcess, config_of
from tests.support.waiting import until

STEP_MS = 20
PATIENCE_S = 60.0


def raft_address(index: int) -> str:
    """Return the address at which the others look for a member."""
    return f"127.0.0.1:{40911 + index}"


class End:
    """One end of a link: what it sends waits in the inbox of the other."""

    stall_exempt = False

    def __init__(self, name: str) -> None:
        self.peer = (name, 1)
        self.other: End
        self.session: PeerLink
        self.inbox: deque[bytes] = deque()
        self.is_closed = False

    def send(self, data: bytes | memoryview) -> None:
        if not self.is_closed and not self.other.is_closed:
            self.other.inbox.append(bytes(data))

    def push(self) -> None: ...

    def go_first(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class Member(InProcess):
    """One broker of the group; a turn of it is a turn of all."""

    def __init__(
        self, group: LedgerBrokers, index: int, root: Path, disk: Disk | None, **settings: object
    ) -> None:
        ids = sorted({*range(group.size), index})
        super().__init__(
            config_of(
                root,
                enableDLegerCommitLog=True,
                dLegerPeers=";".join(f"n{each}-{raft_address(each)}" for each in ids),
                dLegerSelfId=f"n{index}",
                namesrvAddr="127.0.0.1:9876",
                **settings,
            ),
            disk,
        )
        self.group = group
        self.id = f"n{index}"
        self.root = root
        self.ends: list[End] = []

    @property
    def member(self) -> LedgerMember:
        assert isinstance(self.broker.group, LedgerMember)
        return self.broker.group

    @property
    def leads(self) -> bool:
        return self.member.is_leader

    def own_turn(self, ms: int) -> None:
        """A turn of this broker alone, `ms` after its last."""
        self.clock.ms += ms
        self.broker.begin_turn()
        for end in list(self.ends):
            while end.inbox and not end.is_closed:
                end.session.receive(end.inbox.popleft())
            if end.other.is_closed or end.is_closed:
                end.is_closed = True
                end.session.closed()
                self.ends.remove(end)
        self.broker.on_wakeup()
        if ms:
            self.member.ledger.tick(0)
            for ledger in list(self.member.kv.ledgers) if self.member.kv is not None else ():
                ledger.tick(0)
        self.broker.end_turn()
        if ms:
            self.broker.tick()

    def turn(self) -> None:
        self.group.turn(1)

    def cut_off(self) -> None:
        """End all links of this member."""
        for end in self.ends:
            end.is_closed = True


class LedgerBrokers:
    """One to three members, linked to each other unless they are cut off."""

    def __init__(
        self, root: Path, size: int = 3, disks: dict[int, Disk] | None = None, **settings: object
    ) -> None:
        self.root = root
        self.size = size
        self._settings = settings
        self.members: dict[int, Member] = {}
        self.apart: set[int] = set()
        """Members that nobody reaches."""
        for index in range(size):
            self.start(index, (disks or {}).get(index))

    def start(self, index: int, disk: Disk | None = None, **changes: object) -> Member:
        member = Member(self, index, self.root / f"n{index}", disk, **{**self._settings, **changes})
        member.member.ledger._rng.seed(index)
        self.members[index] = member
        return member

    def stop(self, index: int) -> None:
        """Stop a broker in good order."""
        member = self.members.pop(index)
        member.cut_off()
        member.broker.close()

    def close(self) -> None:
        for index in list(self.members):
            self.stop(index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def turn(self, ms: int = STEP_MS) -> None:
        """Link who is not linked, and give every member a turn."""
        self._link()
        for index, member in list(self.members.items()):
            member.own_turn(ms)
            if member.member.replaced.is_set():
                self.stop(index)
                self.start(index)

    def until(self, condition: Callable[[], object], what: str | Callable[[], str] = "") -> None:
        """Give turns until something has come true."""
        until(condition, what, patience_s=PATIENCE_S, pause_s=0.0005, turn=self.turn)

    def leader(self) -> Member:
        """Return the one member that leads, when there is one and all that can be reached follow it."""

        def agreed() -> bool:
            near = [member for index, member in self.members.items() if index not in self.apart]
            leaders = [member for member in near if member.leads]
            return len(leaders) == 1 and all(
                member.member.ledger.standing.leader == leaders[0].id for member in near
            )

        self.until(agreed, "one leader")
        return next(m for i, m in self.members.items() if m.leads and i not in self.apart)

    def hand_over(self, leader: Member) -> None:
        """Have another member lead; a handover for which a slow disk was too late is asked for once more."""
        ended: list[object] = ["not begun"]

        def is_over() -> bool:
            if leader.leads and ended:
                ended.clear()
                leader.member.transfer("", ended.append)
            return not leader.leads

        self.until(is_over, "another member leads")

    def followers(self) -> list[Member]:
        leader = self.leader()
        return [member for member in self.members.values() if member is not leader]

    def _link(self) -> None:
        for index, member in self.members.items():
            for other, peer in self.members.items():
                if index in self.apart or other in self.apart:
                    continue
                if peer.id not in member.member.ledger.peers.dialed_members:
                    continue
                for kind in Link:
                    if not any(e.peer == (peer.id, 1) and e.session.kind is kind for e in member.ends):
                        near, far = End(peer.id), End(member.id)
                        near.other, far.other = far, near
                        far.session = peer.member.accept(cast(Connection, far))
                        near.session = member.member.ledger.peers.dialed(near, peer.id, kind, lambda: None)
                        member.ends.append(near)
                        peer.ends.append(far)
