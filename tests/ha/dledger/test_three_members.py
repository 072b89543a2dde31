"""Three shells in one process, over real sockets, with their logs in memory: elections, replication, broken links."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from ha.dledger.status import PeerView
from ha.raft.types import Link, Role, Settings
from tests.support.ledgers import MemoryDisk, Node, leader_of
from tests.support.long_run import ROOM_S
from tests.support.ports import free_ports
from tests.support.waiting import until_async


class Group:
    """The members n0, n1, n2, each with a disk that outlives it."""

    def __init__(self, nursery: trio.Nursery, settings: Settings | None = None) -> None:
        ids = ("n0", "n1", "n2")
        ports = free_ports(3, neighbours=(0,))
        self.addresses = {id: ("127.0.0.1", port) for id, port in zip(ids, ports, strict=True)}
        self.disks = {id: MemoryDisk(incarnation=id.encode() * 8) for id in ids}
        self.nodes: dict[str, Node] = {}
        self._nursery = nursery
        self._settings = settings
        for id in ids:
            self.start(id)

    def start(self, id: str) -> Node:
        node = Node(id, self.addresses, self.disks[id], settings=self._settings, seed=len(self.nodes))
        self.nodes[id] = node
        self._nursery.start_soon(node.run)
        return node

    def kill(self, node: Node) -> list[Node]:
        """Stop a member; return the others."""
        node.stop()
        return [each for each in self.nodes.values() if each is not node]

    @property
    def all(self) -> list[Node]:
        return list(self.nodes.values())

    async def agree(self, payloads: list[bytes], nodes: list[Node] | None = None) -> None:
        """Wait until each member shows exactly these payloads."""
        await until_async(
            lambda: all(node.payloads == payloads for node in nodes or self.all),
            f"{len(payloads)} payloads everywhere",
        )


@contextlib.asynccontextmanager
async def group(settings: Settings | None = None) -> AsyncIterator[Group]:
    async with trio.open_nursery() as nursery:
        members = Group(nursery, settings)
        try:
            yield members
        finally:
            for node in members.all:
                node.stop()


def in_trio(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        trio.run(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def part(one: Node, others: list[Node]) -> None:
    """Have `one` and the others refuse each other's links."""
    for here, there in [(one, each) for each in others] + [(each, one) for each in others]:
        here.ledger.peers.members -= {there.id}
        for kind in Link:
            if (link := here.ledger.peers.link(there.id, kind)) is not None:
                link.hang_up("the test parts them")


def join(one: Node, others: list[Node]) -> None:
    """Undo `part`."""
    for here, there in [(one, each) for each in others] + [(each, one) for each in others]:
        here.ledger.peers.members |= {there.id}


async def shown(node: Node, index: int) -> None:
    await until_async(lambda: node.ledger.shown.end.index >= index, f"entry {index} shown")


@in_trio
async def test_a_leader_is_elected_and_its_entries_reach_all_logs_in_order() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        payloads = [b"%05d" % number * 40 for number in range(2000)]
        for payload in payloads:
            leader.append(payload)
        await members.agree(payloads)
        logs = [node.disk.entries for node in members.all]
        assert logs[0] == logs[1] == logs[2]
        assert leader.storage.end[2] > leader.disk.segment_size, "more than one segment"


@in_trio
async def test_the_leader_dies_and_nothing_that_was_shown_is_lost() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        first = [b"a%d" % number for number in range(50)]
        for payload in first:
            index = leader.append(payload)
        await shown(leader, index)
        others = members.kill(leader)
        began = trio.current_time()
        successor = await leader_of(others)
        assert trio.current_time() - began < 1.0 + ROOM_S, "a broken link is noticed at once"
        second = [b"b%d" % number for number in range(50)]
        for payload in second:
            successor.append(payload)
        await members.agree(first + second, others)
        members.start(leader.id)
        await leader_of(members.all)
        await members.agree(first + second)


@in_trio
async def test_a_leader_without_links_loses_its_lead_and_its_tail_is_cut() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        await shown(leader, leader.append(b"before"))
        others = [node for node in members.all if node is not leader]
        part(leader, others)
        for _ in range(100):
            leader.append(b"lost")
        successor = await leader_of(others)
        await shown(successor, successor.append(b"after"))
        await until_async(lambda: leader.ledger.standing.role is not Role.LEADER, "the old leader steps down")
        assert b"lost" not in leader.payloads, "what no quorum has is not shown"
        assert leader.storage.leads is None
        join(leader, others)
        await members.agree([b"before", b"after"])


@in_trio
async def test_a_member_whose_disk_hangs_holds_nobody_up_and_catches_up() -> None:
    async with group(
        Settings(window_frames=4, window_bytes=64 << 10, frame_bytes_max=16 << 10, fetch_bytes_max=32 << 10)
    ) as members:
        leader = await leader_of(members.all)
        slow = next(node for node in members.all if node is not leader)
        slow.storage.is_held = True
        payloads = [b"%04d" % number + bytes(900) for number in range(1000)]
        for payload in payloads:
            index = leader.append(payload)
        await shown(leader, index)
        frames, size, last = leader.ledger.core.dispatchers[slow.id].in_flight
        assert frames <= 4 and size <= (64 << 10) + last, "what is under way to it is bounded"
        assert slow.ledger.core.log.durable < leader.ledger.core.log.durable
        slow.storage.is_held = False
        slow.storage.work()
        await members.agree(payloads)


@in_trio
async def test_a_leader_whose_disk_hangs_answers_nobody_though_others_have_it() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        leader.storage.is_held = True
        index = leader.append(b"x")
        await until_async(lambda: leader.ledger.core.log.commit.index >= index, "a quorum without the leader")
        assert leader.ledger.shown.end.index < index
        assert leader.disk.commit[0] < index, "no file is ahead of this disk"
        leader.storage.is_held = False
        leader.storage.work()
        await shown(leader, index)


@in_trio
async def test_a_data_link_that_breaks_under_load_loses_and_repeats_nothing() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        payloads = []
        for number in range(600):
            payloads.append(b"%04d" % number)
            leader.append(payloads[-1])
            if number % 60 == 30:
                for peer in leader.ledger.members.configurations.addresses:
                    if (link := leader.ledger.peers.link(peer, Link.DATA)) is not None:
                        link.hang_up("a test")
                await trio.sleep(0.005)
        await members.agree(payloads)
        assert leader.ledger.roles.elections == 1 and leader.is_leader


@in_trio
async def test_a_member_that_was_away_for_long_is_caught_up_from_the_log() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        away = next(node for node in members.all if node is not leader)
        members.kill(away)
        payloads = [b"%05d" % number + bytes(1200) for number in range(18_000)]
        for start in range(0, len(payloads), 500):
            for payload in payloads[start : start + 500]:
                index = leader.append(payload)
            await trio.lowlevel.checkpoint()
        await shown(leader, index)
        assert leader.storage.end[2] > 20 << 20, "more than is kept in memory"
        members.start(away.id)
        await members.agree(payloads)


@in_trio
async def test_a_leader_opens_a_part_in_each_turn_and_a_follower_shows_a_part_in_each_turn() -> None:
    async with group() as members:
        for node in members.all:
            node.storage.turns_to_lead = 5
            node.storage.show_at_most = 3
        leader = await leader_of(members.all)
        assert leader.storage.turns_to_lead == 0
        payloads = [b"%d" % number for number in range(50)]
        for payload in payloads:
            leader.append(payload)
        await members.agree(payloads)


@in_trio
async def test_a_full_disk_of_a_follower_stops_nobody() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        full = next(node for node in members.all if node is not leader)
        full.storage.is_full = full.storage.is_held = True
        payloads = [b"%d" % number for number in range(50)]
        for payload in payloads:
            index = leader.append(payload)
            await trio.sleep(0.001)
        await shown(leader, index)
        await until_async(lambda: bool(full.ledger.core.election.stuck), "it is stuck")
        full.storage.is_full = full.storage.is_held = False
        full.storage.work()
        await members.agree(payloads)
        assert not full.ledger.core.election.stuck


@in_trio
async def test_a_late_loop_neither_campaigns_nor_loses_the_lead() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        roles = [node.ledger.roles.changes for node in members.all]
        leader.ledger.tick(1500)
        for node in members.all:
            node.ledger.tick(1500)
        await shown(leader, leader.append(b"x"))
        assert [node.ledger.roles.changes for node in members.all] == roles


@in_trio
async def test_status_tells_who_is_linked_and_how_far_each_peer_is() -> None:
    async with group() as members:
        leader = await leader_of(members.all)
        await shown(leader, leader.append(b"x"))

        def is_up_to_date(view: PeerView) -> bool:
            is_linked = view.control and view.data and view.state == "REPLICATE"
            return is_linked and view.heard_ms < 500 and view.match >= leader.ledger.core.log.commit.index

        await until_async(lambda: all(map(is_up_to_date, leader.ledger.status().peers)), "all have it")
        status = leader.ledger.status()
        assert status.standing.role is Role.LEADER and status.elections == 1
        follower = next(node for node in members.all if node is not leader)
        assert {view.match for view in follower.ledger.status().peers} == {-1}
        members.kill(follower)
        await until_async(
            lambda: not any(view.control for view in leader.ledger.status().peers if view.id == follower.id),
            "its links are down",
        )
