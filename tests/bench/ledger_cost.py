"""What one message costs the members of a DLedger group, without sockets: `python -m tests.bench.ledger_cost`.

The gate of DLedger mode: a leader and a follower, 128 B messages, 4 connections with 256 in flight, so turns of 1,024.
Goals in processor time for each message: leader 4.0 us, follower 1.4 us. The exit status says whether both were met.

Every row is the best of many rounds, of this process's processor time: waiting for a disk costs nothing. Real are the
broker's way of a send (frames, judging, packing, append, queue entries, a flush that answers wait for), the entries'
heads and checksums, the core's steps, the frames and their checksums, the slave's way of records (write, dispatch by
columns, queue entries), the index entries, one flush for each turn. What is put together here
and not in a broker: records go through the plain log, whose entries have no heads; heads and index entries are written
to files beside it. Nothing is left out but the sockets.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import crc32c

from broker.broker import Broker
from broker.process.launch import monotonic_ms, now_ms
from broker.settings.config import load_config
from ha.dledger.links.frames import from_frame, to_fields
from ha.raft.node import RaftNode
from ha.raft.types import (
    NOTHING,
    Append,
    Appended,
    Applied,
    Ballot,
    Config,
    Durable,
    Effects,
    Link,
    Linked,
    Message,
    Received,
    Role,
    Run,
    Saved,
    Settings,
    Tick,
)
from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head, encode_entries, encode_index
from ropewalk.format.dledger.frame import Frames, encode_head_with
from store.config import StoreConfig
from store.io.disk import Disk
from store.message_store import MessageStore
from tests.bench.hot_path import NoWire, send_frame

if TYPE_CHECKING:
    from broker.remoting.connection import Connection

CONNECTIONS = 4
IN_FLIGHT = 256
TURN = CONNECTIONS * IN_FLIGHT
BODY = 128
ROUNDS = 40
SEGMENT = 1 << 30
LEADER_GOAL_US = 4.0
FOLLOWER_GOAL_US = 1.4

Row = tuple[str, float]


def best_us(turn: Callable[[], None], rounds: int = ROUNDS) -> tuple[float, float]:
    """Processor time for a message, in us, of this process and of the loop's thread alone: the best of the rounds."""
    best = best_of_loop = float("inf")
    for _ in range(rounds):
        began, loop_began = time.process_time(), time.thread_time()
        turn()
        best = min(best, time.process_time() - began)
        best_of_loop = min(best_of_loop, time.thread_time() - loop_began)
    return best / TURN * 1e6, best_of_loop / TURN * 1e6


class Member:
    """A core, and the bytes that it says should move. No disk, no socket."""

    def __init__(self, id: str) -> None:
        config = Config(("n0", "n1", "n2"))
        self.id = id
        self.core = RaftNode(id, config, Settings(), ballot=Ballot(0))
        self.frames = Frames()
        self.now = 0

    def step(self, event: object) -> Effects:
        return self.core.step(event)  # type: ignore[arg-type]


class Group:
    """Three cores over frames: every message is encoded, decoded, and checked."""

    def __init__(self) -> None:
        self.members = {id: Member(id) for id in ("n0", "n1", "n2")}
        self.outgoing: list[tuple[str, str, Message]] = []
        for member in self.members.values():
            for peer in self.members:
                if peer != member.id:
                    for kind in Link:
                        member.step(Linked(peer, 1, kind, True, 0))
        self.leader = self.members["n0"]
        self._elect()

    def _elect(self) -> None:
        # One follower's timer fires, all that follows is settled at once: the election is not what is measured.
        self.carry(self.leader, self.leader.step(Tick(0, 0, 0.0)))
        self.carry(self.leader, self.leader.step(Tick(1000, 0, 0.0)))
        self.settle()
        assert self.leader.core.role is Role.LEADER

    def carry(self, member: Member, effects: Effects) -> None:
        """Carry out what there is to carry out when every write is done at once."""
        for peer, message in effects.send:
            self.outgoing.append((member.id, peer, message))
        if effects.save is not None:
            self.carry(member, member.step(Saved(effects.save)))
        if effects.open_term is not None:
            end = member.core.log.end
            run = Run(end.index + 1, 1, member.core.term, end.pos, 400)
            self.carry(member, member.step(Appended(run, 1000)))
            self.carry(member, member.step(Durable(run.end, 0)))
        for run, _skip in effects.place:
            self.carry(member, member.step(Durable(run.end, 0)))
        if effects.commit is not None:
            self.carry(member, member.step(Applied(effects.commit)))

    def settle(self) -> None:
        while self.outgoing:
            sender, peer, message = self.outgoing.pop(0)
            member = self.members[peer]
            self.carry(member, member.step(Received(sender, 1, message, 1000)))


def encode(message: Message, body: bytes, checksum: int) -> bytes:
    kind, flags, count, numbers = to_fields(message)
    return encode_head_with(kind, flags, 0, count, numbers, len(body), checksum)


class Turns:
    """One turn of a leader and of a follower, for the entries of 1,024 records."""

    def __init__(self, records: list[bytes], folder: Path) -> None:
        self.records = records
        self.sizes = [HEAD_SIZE + len(record) for record in records]
        self.group = Group()
        self.follower = self.group.members["n1"]
        self.others = [member for member in self.group.members.values() if member is not self.group.leader]
        self.data = os.open(folder / "data", os.O_RDWR | os.O_CREAT)
        self.index = os.open(folder / "index", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self.data, 0, 64 << 20)
        os.posix_fallocate(self.index, 0, 8 << 20)
        self.written = 0
        self.frame = b""
        self.arrived = b""
        self.answers: list[bytes] = []
        self.joined = b""

    # -- the leader's rows -------------------------------------------------------------------------------

    def heads(self) -> None:
        """Heads and checksums of the entries, joined."""
        end = self.group.leader.core.log.end
        self.joined = encode_entries(end.index + 1, self.group.leader.core.term, end.pos, self.records)

    def write_heads(self) -> None:
        self.write(self.joined[: HEAD_SIZE * TURN])

    def write(self, data: bytes) -> None:
        os.pwrite(self.data, data, self.written)
        self.written = (self.written + len(data)) % (32 << 20)

    def appended(self) -> None:
        """The leader hears of its append: a frame for each follower, whose bytes are one object."""
        leader = self.group.leader.core
        end = leader.log.end
        run = Run(end.index + 1, TURN, leader.term, end.pos, len(self.joined))
        effects = leader.step(Appended(run, 1000))
        checksum = crc32c.crc32c(self.joined)
        heads = [encode(message, self.joined, checksum) for _, message in effects.send]
        assert len(heads) == 2, effects
        self.frame = heads[0]

    def answered(self) -> None:
        """Its own flush and two answers: one commit, which is applied."""
        leader = self.group.leader
        leader.step(Durable(leader.core.log.end, 0))
        for member, data in zip(self.others, self.answers, strict=True):
            for frame in member.frames.feed(data):
                effects = leader.step(Received(member.id, 1, from_frame(frame, SEGMENT), 1000))
                if effects.commit is not None:
                    leader.step(Applied(effects.commit))

    def index_entries(self) -> None:
        os.pwrite(self.index, encode_index(0, 1, 0, self.sizes), 0)

    # -- the follower's rows -----------------------------------------------------------------------------

    def arrive(self) -> None:
        """What a socket would have handed over, unmeasured."""
        self.arrived = self.frame + self.joined

    def received(self) -> None:
        """Frame and checksum, head of the first entry, the core's step."""
        follower = self.follower
        (frame,) = follower.frames.feed(self.arrived)
        head = decode_head(frame.body)
        message = from_frame(frame, SEGMENT)
        assert isinstance(message, Append) and message.run is not None
        assert (head.index, head.pos) == (message.run.first, message.run.pos)
        effects = follower.step(Received("n0", 1, message, 1000))
        assert effects.place, effects

    def confirmed(self) -> None:
        """The flush is reported: one answer."""
        effects = self.follower.step(Durable(self.follower.core.log.end, 0))
        self.answers = [encode(message, b"", 0) for _, message in effects.send]

    def other_follower(self) -> None:
        """The third member answers too, unmeasured."""
        third = self.others[1]
        (frame,) = third.frames.feed(self.arrived)
        third.step(Received("n0", 1, from_frame(frame, SEGMENT), 1000))
        effects = third.step(Durable(third.core.log.end, 0))
        self.answers.append(encode(effects.send[0][1], b"", 0))


def best_of_turns(turns: Turns) -> tuple[list[Row], list[Row]]:
    """Play rounds of whole turns, and keep the best time of each part."""
    parts: list[tuple[str, str, Callable[[], None]]] = [
        ("leader", "entry heads and CRC-32, joined", turns.heads),
        ("leader", "write of the heads; the flush is the other row's", turns.write_heads),
        ("leader", "Appended, CRC32C, two frames", turns.appended),
        ("", "", turns.arrive),
        ("follower", "frame, CRC32C, Append", turns.received),
        ("follower", "write of the heads; the flush is the other row's", turns.write_heads),
        ("follower", "Durable, answer", turns.confirmed),
        ("", "", turns.other_follower),
        ("leader", "Durable, two answers, commit", turns.answered),
        ("leader", "index entries", turns.index_entries),
        ("follower", "index entries", turns.index_entries),
    ]
    best = [float("inf")] * len(parts)
    for _ in range(ROUNDS):
        for number, (_, _, part) in enumerate(parts):
            began = time.process_time()
            part()
            best[number] = min(best[number], time.process_time() - began)
        turns.group.carry(
            turns.group.leader, turns.group.leader.step(Tick(turns.group.leader.core.now, 0, 0.5))
        )
        turns.group.outgoing.clear()
    rows = [(who, (what, took / TURN * 1e6)) for (who, what, _), took in zip(parts, best, strict=True)]
    return [row for who, row in rows if who == "leader"], [row for who, row in rows if who == "follower"]


def send_cost(folder: Path) -> tuple[tuple[float, float], list[bytes]]:
    """The broker's way of a send under SYNC_FLUSH: until the answers have left. And the records that it stored."""
    config = load_config(
        config_file=None,
        settings=("flushDiskType=SYNC_FLUSH",),
        named={"storePathRootDir": str(folder / "leader")},
        environ={},
    )
    woken = threading.Event()
    broker = Broker(
        config,
        address=("127.0.0.1", 10911),
        disk=Disk(),
        now_ms=now_ms,
        monotonic_ms=monotonic_ms,
        rng=random.Random(1),
        wake=woken.set,
    )
    broker.open()
    link = NoWire()
    sessions = [broker.new_session(cast("Connection", link)) for _ in range(CONNECTIONS)]
    frames = b"".join(send_frame(number, b"x" * BODY) for number in range(IN_FLIGHT))

    def turn() -> None:
        broker.begin_turn()
        for session in sessions:
            session.receive(frames)
        broker.end_turn()
        while len(broker.acks):
            woken.wait(5)
            woken.clear()
            broker.begin_turn()
            broker.on_wakeup()
            broker.end_turn()
        broker.tick()

    try:
        turn()
        assert link.sent > TURN, "the first turn was not answered"
        gc.freeze()
        cost = best_us(turn, ROUNDS * 2)
        segment = broker.store.log.segments[0]
        end = broker.store.log.end_offset
        records: list[bytes] = []
        at = 0
        while at < end and len(records) < TURN:
            size = int.from_bytes(segment.map[at : at + 4])
            records.append(bytes(segment.map[at : at + size]))
            at += size
        return cost, records
    finally:
        broker.close()


def take_cost(folder: Path, records: list[bytes]) -> float:
    """A slave's way of these records: write, look, dispatch by columns, queue entries, one flush."""
    woken = threading.Event()
    config = StoreConfig(
        root=folder / "follower",
        log_directory=folder / "follower" / "commitlog",
        store_host=bytes(8),
        sync_flush=True,
    )
    store = MessageStore(config, Disk(), now_ms, woken.set)
    store.open()
    try:
        follower = store.follow()
        offset = 0

        def turn() -> None:
            nonlocal offset
            store.begin_turn()
            taken = 0
            while taken < len(data):
                took = follower.append(offset + taken, data[taken:] if taken else data)
                taken += took
                if not took:  # the first segment is not ready yet
                    time.sleep(0.001)
                    store.run_completions()
                    store.tick()
            store.publish()
            while store.log.flushed_offset < follower.boundary:
                woken.wait(5)
                woken.clear()
                store.run_completions()
            store.tick()
            offset += len(data)

        best = float("inf")
        for number in range(ROUNDS):
            data = b"".join(_stamped(records, offset, number))
            began = time.process_time()
            turn()
            best = min(best, time.process_time() - began)
        return best / TURN * 1e6
    finally:
        store.close()


def _stamped(records: list[bytes], offset: int, number: int) -> list[bytes]:
    """The records as they would stand at this offset: their own offset and queue offset set, the rest as it is."""
    found = []
    counts: dict[bytes, int] = {}
    for record in records:
        queue = record[12:16]
        queue_offset = counts.get(queue, number * TURN // CONNECTIONS)
        counts[queue] = queue_offset + 1
        found.append(record[:20] + queue_offset.to_bytes(8) + offset.to_bytes(8) + record[36:])
        offset += len(record)
    return found


def main() -> int:
    gc.set_threshold(50_000, 20, 20)
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as name:
        folder = Path(name)
        (send, send_loop), records = send_cost(folder)
        assert len(records) == TURN and NOTHING.index == -1, len(records)
        leader, follower = best_of_turns(Turns(records, folder))
        take = take_cost(folder, records)
    leader.insert(0, ("send under SYNC_FLUSH: judge, pack, append, answer", send))
    follower.append(("a slave's records: write, dispatch, queue entries, flush", take))
    ok = True
    size = sum(map(len, records)) / TURN
    print(
        f"{BODY} B messages, records of {size:.0f} B, turns of {TURN}; us of processor time for each message"
    )
    print(f"of the first row, {send_loop:.2f} are of the loop's thread; the rest is the flush and its thread")
    for who, rows, goal in (("leader", leader, LEADER_GOAL_US), ("follower", follower, FOLLOWER_GOAL_US)):
        for what, cost in rows:
            print(f"{who:9} {what:58} {cost:6.2f}")
        total = sum(cost for _, cost in rows)
        ok = ok and total <= goal
        print(f"{who:9} {'in all':58} {total:6.2f}   goal {goal}: {'met' if total <= goal else 'MISSED'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
