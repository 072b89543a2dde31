"""Lives of one store on a disk that forgets: what is appended, acknowledged, lost to a crash, and found again.

One seed draws everything: sizes of batches, which helper thread runs its next step, how time passes, where the power
goes. `live` drives the shipped store; `audit` opens what a crash left and compares it with the history. A broken
promise raises `Broken` with a sentence; a start that is refused where the rules allow it is counted, not raised.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.errors import CorruptRecord
from ropewalk.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from ropewalk.format.queue_entry import ENTRY_SIZE
from ropewalk.format.record import decode_records, encode_host
from store.append import Message
from store.config import StoreConfig
from store.io.disk import DiskFull
from store.io.workers import Completions, Flusher, FlushFailed, Helpers, Worker
from store.log.commitlog import StoreDamaged, segment_name
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus, ReadLimits
from tests.sim.disk import PowerLoss, SimDisk

ROOT = Path("/sim")
HOST = encode_host("127.0.0.1", 10911)
TOPICS = ("orders", "audit")
QUEUES = 2


class Broken(AssertionError):
    """A promise of the store does not hold."""


class SteppedHelpers(Helpers):
    """Helper threads that take a step when the seed says so."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.flushers: list[Flusher] = []

    def worker(self, name: str, completions: Completions) -> Worker:
        worker = Worker(name, completions, start=False)
        self.workers.append(worker)
        return worker

    def flusher(self, completions: Completions, on_flushed: Callable[[int], None]) -> Flusher:
        flusher = Flusher(completions, on_flushed, start=False)
        self.flushers.append(flusher)
        return flusher

    def pause(self) -> None:
        for worker in self.workers:
            if not worker.is_idle:
                worker.step()
        for flusher in self.flushers:
            flusher.step()


@dataclass
class History:
    """What was appended to each queue, in order, and how much of it was acknowledged."""

    bodies: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    times: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """When each of them was stored, ms."""
    waiting: list[tuple[int, tuple[str, int], int]] = field(default_factory=list)
    """(log offset an answer waits for, queue, messages of the queue it covers)."""
    refused_starts: int = 0
    lost_unacknowledged: int = 0


class World:
    def __init__(self, seed: int, sync_flush: bool) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.disk = SimDisk(self.chance)
        self.history = History()
        self.clock = 1_700_000_000_000
        self.config = StoreConfig(
            root=ROOT,
            log_directory=ROOT / "commitlog",
            store_host=HOST,
            segment_size=self.chance.choice((8192, 16384, 65536)),
            queue_file_size=self.chance.choice((200, 400, 2000)),
            sync_flush=sync_flush,
            warm_window=1 << 20,
            fill_window=8192,
            # In one life of four the end of the log is under checksums, and looked at again at each start.
            checksum_block=512 if seed % 4 == 3 else 0,
            check_at_start=1 << 20 if seed % 4 == 3 else 0,
            fill_idle=4096,
        )
        self.helpers = SteppedHelpers()
        self.number = 0
        self._checkpoint: bytes | None = None

    def now_ms(self) -> int:
        return self.clock

    # -- one life --------------------------------------------------------------------------------------

    def open(self) -> MessageStore | None:
        """Start on what the disk holds; None if the start is refused."""
        self.helpers = SteppedHelpers()
        store = MessageStore(self.config, self.disk, self.now_ms, lambda: None, self.helpers)
        try:
            store.open()
        except StoreDamaged as refusal:
            if not self.config.sync_flush:
                raise Broken(f"an ASYNC_FLUSH store did not start after a crash: {refusal}") from refusal
            if "log offset" not in str(refusal) or "ropewalk store" not in str(refusal):
                raise Broken(f"a refusal that names no offset or no command: {refusal}") from refusal
            self.history.refused_starts += 1
            return None
        return store

    def live(self, store: MessageStore, operations: int) -> None:
        """Append, let helpers run and time pass, in the order the seed draws."""
        chance = self.chance
        for _ in range(operations):
            self.clock += chance.choice((0, 0, 1, 3, 20, 120, 700, 4000))
            kind = chance.random()
            if kind < 0.5:
                self._put(store)
            elif kind < 0.75:
                self._step_helpers(store)
            else:
                store.tick()
            self._acknowledge(store)
            self._check_checkpoint(store)

    def _put(self, store: MessageStore) -> None:
        chance = self.chance
        store.begin_turn()
        batch: list[Message] = []
        keys: list[tuple[str, int]] = []
        for _ in range(chance.randint(1, 6)):
            topic, queue_id = chance.choice(TOPICS), chance.randrange(QUEUES)
            self.number += 1
            body = f"{self.seed}:{self.number}:".encode() + chance.randbytes(
                chance.choice((0, 10, 200, 1500))
            )
            queue = store.queue(topic, queue_id)
            batch.append((queue, body, b"TAGS\x01t\x02", 0, 0, self.clock, 0, 0, 116))
            keys.append((topic, queue_id))
        try:
            stored = store.put(batch, HOST)
        except DiskFull:
            stored = []
        except (PowerLoss, FlushFailed):
            # It can have got as far as it likes, in this order; nobody was promised anything.
            for key, message in zip(keys, batch, strict=True):
                self.history.bodies.setdefault(key, []).append(message[1])
                self.history.times.setdefault(key, []).append(store.now)
            raise
        for (_offset, queue_offset), key, message in zip(stored, keys, batch, strict=False):
            bodies = self.history.bodies.setdefault(key, [])
            if queue_offset != len(bodies):
                raise Broken(f"{key} gave the queue offset {queue_offset} to message number {len(bodies)}")
            bodies.append(message[1])
            self.history.times.setdefault(key, []).append(store.now)
        store.publish()
        for key in set(keys):
            self.history.waiting.append((store.log.end_offset, key, len(self.history.bodies.get(key, ()))))

    def _step_helpers(self, store: MessageStore) -> None:
        busy = [worker for worker in self.helpers.workers if not worker.is_idle]
        if busy and self.chance.random() < 0.6:
            self.chance.choice(busy).step()
        else:
            self.helpers.flushers[-1].step()
        if self.chance.random() < 0.8:
            store.run_completions()

    def _acknowledge(self, store: MessageStore) -> None:
        """The broker's rule: SYNC_FLUSH answers from the flushed offset on, ASYNC_FLUSH at once."""
        through = store.log.flushed_offset if self.config.sync_flush else store.log.end_offset
        still = []
        for end, key, count in self.history.waiting:
            if end <= through:
                self.history.acknowledged[key] = max(self.history.acknowledged.get(key, 0), count)
            else:
                still.append((end, key, count))
        self.history.waiting = still
        for (topic, queue_id), bodies in self.history.bodies.items():
            queue = store.find_queue(topic, queue_id)
            if queue is not None and self.config.sync_flush:
                readable = self.history.acknowledged.get((topic, queue_id), 0)
                undecided = [count for end, key, count in still if key == (topic, queue_id)]
                if undecided and queue.readable > max(readable, min(undecided)):
                    raise Broken(
                        f"{topic}-{queue_id}: message {queue.readable - 1} is readable before its answer"
                    )
            if queue is not None and self._entry_in(queue, queue.readable, platter=False):
                raise Broken(
                    f"{topic}-{queue_id}: entry {queue.readable} is in its file before its record is readable"
                )
            if queue is not None and queue.next_offset != len(bodies):
                raise Broken(
                    f"{topic}-{queue_id} counts {queue.next_offset} messages, {len(bodies)} were appended"
                )

    def _entry_in(self, queue: ConsumeQueue, queue_offset: int, *, platter: bool) -> bool:
        """Whether the queue's file, or the platter under it, holds an entry of this number."""
        logical = queue_offset * ENTRY_SIZE
        position = logical % queue.file_size
        file = self.disk.files.get(queue.directory / segment_name(logical - position))
        data = b"" if file is None else file.platter if platter else file.data
        return any(data[position : position + ENTRY_SIZE])

    def _check_checkpoint(self, store: MessageStore) -> None:
        """What RocketMQ's checkpoint claims to be on disk is there: all that was stored before its time."""
        data = self.disk.read_file(ROOT / "checkpoint")
        if data is None or len(data) < CHECKPOINT_SIZE or data == self._checkpoint:
            return
        self._checkpoint = data
        point = Checkpoint.decode(data)
        claimed = min(point.physic_msg_timestamp, point.logics_msg_timestamp)
        for key, times in self.history.times.items():
            count = bisect_left(times, claimed)
            queue = store.find_queue(*key)
            if count and queue is not None and not self._entry_in(queue, count - 1, platter=True):
                raise Broken(f"{key}: the checkpoint claims entry {count - 1}, which a power loss would take")

    # -- after a crash ---------------------------------------------------------------------------------

    def crash(self, *, power: bool) -> None:
        self.disk = self.disk.power_loss(self.chance) if power else self.disk.killed()
        self._checkpoint = None
        self.history.waiting.clear()

    def audit(self, store: MessageStore, *, power: bool) -> None:
        """Everything that survived is a prefix of what was appended, and covers what was promised."""
        reader = Reader(store.log, ReadLimits(), store.completions, threads=1, helpers=self.helpers)
        for key in [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]:
            topic, queue_id = key
            appended = self.history.bodies.setdefault(key, [])
            promised = self.history.acknowledged.get(key, 0)
            if not self.config.sync_flush and power:
                promised = 0  # ASYNC_FLUSH promises nothing about a power loss
            found = self._read_all(reader, store, topic, queue_id)
            if found != appended[: len(found)]:
                wrong = next(
                    (n for n, (a, b) in enumerate(zip(found, appended, strict=False)) if a != b),
                    len(appended),
                )
                raise Broken(f"{topic}-{queue_id}: message {wrong} is not the one that was appended there")
            if len(found) < promised:
                raise Broken(
                    f"{topic}-{queue_id}: {promised} messages were acknowledged, {len(found)} are left"
                )
            self.history.lost_unacknowledged += len(appended) - len(found)
            del appended[len(found) :]
            del self.history.times.setdefault(key, [])[len(found) :]
            self.history.acknowledged[key] = min(self.history.acknowledged.get(key, 0), len(found))

    def _read_all(self, reader: Reader, store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
        queue = store.find_queue(topic, queue_id)
        bodies: list[bytes] = []
        while queue is not None and len(bodies) < queue.readable:
            answers: list[GetResult | None] = []
            reader.get(queue, len(bodies), 32, 1 << 20, None, answers.append)
            while not answers:
                for worker in self.helpers.workers:
                    if not worker.is_idle:
                        worker.step()
                store.run_completions()
            result = answers[0]
            assert result is not None
            if result.status is not GetStatus.FOUND:
                raise Broken(f"{topic}-{queue_id}: reading message {len(bodies)} gives {result.status.value}")
            try:
                records = decode_records(b"".join(result.records))
            except CorruptRecord as damage:
                raise Broken(f"{topic}-{queue_id}: serves damaged bytes at message {len(bodies)}") from damage
            for record in records:
                if (record.topic, record.queue_id, record.queue_offset) != (topic, queue_id, len(bodies)):
                    raise Broken(f"{topic}-{queue_id}: offset {len(bodies)} serves a record of another place")
                bodies.append(record.body)
        return bodies


def run(seed: int, *, sync_flush: bool, lives: int = 4) -> History:
    """Several lives of one store, each ended by a power loss, a kill, a full disk, a failed flush or a clean stop."""
    world = World(seed, sync_flush)
    chance = world.chance
    store = world.open()
    assert store is not None
    for _ in range(lives):
        end = chance.choice(("power", "power", "power", "kill", "stop", "full", "flush"))
        power = end in ("power", "flush")
        try:
            if end in ("power", "kill"):
                world.disk.crash_after = world.disk.steps + chance.randint(1, 120)
            elif end == "full":
                world.disk.room = chance.randint(0, 3) * world.config.segment_size
            world.live(store, chance.randint(5, 60))
            if end == "flush":
                world.disk.fail_syncs = 1
                world.live(store, 40)
            elif end == "stop":
                _stop(world, store)
        except (PowerLoss, FlushFailed):
            pass
        world.crash(power=power)
        world.disk.room = 1 << 40
        for _attempt in range(3):
            # A crash can also come while the start repairs what the last one left.
            if chance.random() < 0.2:
                world.disk.crash_after = world.disk.steps + chance.randint(1, 15)
            try:
                store = world.open()
                world.disk.crash_after = 1 << 60
                break
            except PowerLoss:
                world.crash(power=chance.random() < 0.5 and power)
        else:
            world.disk.crash_after = 1 << 60
            store = world.open()
        if store is None:
            return world.history
        world.audit(store, power=power)
    return world.history


def _stop(world: World, store: MessageStore) -> None:
    """A stop in good order: what was appended is all there afterwards."""
    store.close()
    for key, bodies in world.history.bodies.items():
        world.history.acknowledged[key] = len(bodies)
    world.history.waiting.clear()
