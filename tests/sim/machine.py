"""`Machine`: one simulated machine with a whole shipped broker on it, whatever group that broker belongs to.

What a broker's process does with threads and sockets is done here with callbacks at seeded moments: turns when bytes
come, the steps of each helper thread at a pace of its own, tables saved. A machine dies between two of its turns, or
at a step of its disk. Whoever inherits starts it again on what that disk holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from unittest import mock

from broker.broker import Broker
from broker.state import json_file
from ropewalk.errors import RemoteProtocolError
from ropewalk.format import fastjson
from ropewalk.format.record import decode_record
from ropewalk.format.sliced_json import finish
from store.io.disk import MappedFile
from store.io.workers import Completions, Flusher, FlushFailed, Worker
from tests.sim.disk import PowerLoss, SimDisk
from tests.sim.events import Events
from tests.sim.net import Address, End, Net

__all__ = ["CURRENT", "Machine", "MachineWorld", "machinery"]

BROKER_PORT = 10911

CURRENT: ContextVar[Machine] = ContextVar("machine")


class MachineWorld(Protocol):
    """The world that a machine is in."""

    chance: random.Random
    events: Events
    net: Net
    power_fails: bool

    def log(self, who: object, text: str) -> None:
        """Note an event."""


class Machine:
    """A machine with a broker on it: it can die."""

    broker: Broker

    def __init__(self, world: MachineWorld, number: int) -> None:
        self._world = world
        self.net = world.net
        self.number = number
        self.ip = f"10.0.0.{number + 1}"
        self.address: Address = (self.ip, BROKER_PORT)
        self.disk = SimDisk(world.chance)
        self.tables: dict[Path, bytes] = {}
        self.alive = False
        self.slow_disk = False
        self._helpers: dict[Worker | Flusher, bool] = {}
        """Each helper thread, and whether a step of it is due."""
        self._life = 0
        self._turns = 0
        self._wakes = self._saves = False
        self._saved: dict[Path, object] = {}

    def __repr__(self) -> str:
        return f"node {self.number}"

    # -- death -----------------------------------------------------------------------------------------

    def die(self, *, power: bool, reason: str = "") -> None:
        """The process is gone at this very moment, or the machine is."""
        if not self.alive:
            return
        self.alive = False
        self._world.log(self, f"dies{' with its power' if power else ''} {reason}")
        self._ended()
        self.net.reset_host(self.ip)
        self._after_death(power=power)

    def _ended(self) -> None:
        """End what runs beside the machine."""

    def _after_death(self, *, power: bool) -> None:
        old, self.disk = self.disk, self.disk.power_loss(self._world.chance) if power else self.disk.killed()
        old.crash_after = 0  # nothing that is left of that process writes any more
        self._helpers.clear()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it then, if this process still lives."""
        life = self._life

        def due() -> None:
            if self.alive and self._life == life:
                act()

        self._world.events.later(delay_s, due)

    # -- turns, as the shell makes them ----------------------------------------------------------------

    def turn(self, act: Callable[[], object]) -> None:
        def whole() -> None:
            broker = self.broker
            broker.begin_turn()
            act()
            self._turns += 1
            if self._turns % 2:
                broker.on_priority_served()  # as where others have their turn with a slave
            broker.end_turn()

        if self.alive:
            self._guarded(whole)

    def _guarded(self, act: Callable[[], object]) -> None:
        token = CURRENT.set(self)
        try:
            act()
        except (PowerLoss, FlushFailed) as exc:
            self.die(power=self._world.power_fails, reason=repr(exc))
        finally:
            CURRENT.reset(token)

    def received(self, end: End, piece: bytes) -> None:
        def act() -> None:
            try:
                if end.session is not None:
                    end.session.receive(piece)
            except RemoteProtocolError:
                end.close()

        self.turn(act)

    # -- helper threads and tables ---------------------------------------------------------------------

    def add_helper(self, helper: Worker | Flusher) -> None:
        self._helpers[helper] = False

    def helper_has_work(self, helper: Worker | Flusher) -> None:
        """Its thread runs some time after there is something to do, on its own, in small steps."""
        if self._helpers.get(helper) is not False:
            return
        self._helpers[helper] = True
        chance = self._world.chance
        pause = chance.uniform(0.02, 0.4) if self.slow_disk else chance.uniform(0, 0.002)
        self._later(pause, lambda: self._step(helper))

    def _step(self, helper: Worker | Flusher) -> None:
        if helper not in self._helpers:
            return
        self._helpers[helper] = False

        def step() -> None:
            if isinstance(helper, Flusher):
                helper.step()
            elif not helper.is_idle:
                if not helper.step():
                    del self._helpers[helper]
                elif not helper.is_idle:
                    self.helper_has_work(helper)

        self._guarded(step)

    def step_helpers(self) -> None:
        """All that is due: somebody waits for it."""
        for helper in list(self._helpers):
            if isinstance(helper, Flusher):
                helper.step()
                continue
            while not helper.is_idle:
                if not helper.step():
                    del self._helpers[helper]
                    break

    def _wake(self) -> None:
        if not self._wakes:
            self._wakes = True
            self._later(self._world.chance.uniform(0, 0.0005), self._wakened)

    def _wakened(self) -> None:
        self._wakes = False
        self.turn(lambda: self.broker.on_wakeup())  # noqa: PLW0108 - the broker is replaced

    def _save_now_and_then(self) -> None:
        self._save_tables()
        self._later(2, self._save_now_and_then)

    def _save_soon(self) -> None:
        if not self._saves:
            self._saves = True
            self._later(self._world.chance.uniform(0, 0.005), self._save_tables)

    def _save_tables(self) -> None:
        self._saves = False
        for path, (version, dump) in self.broker.dumps().items():
            if self._saved.get(path) != version:
                self._saved[path] = version
                self.tables[path] = finish(dump())

    # -- what is in it ---------------------------------------------------------------------------------

    def log_bytes(self) -> tuple[int, bytes]:
        """Where its log begins, and all of it."""
        log, end = self.broker.store.log, self.broker.store.whole_end
        pieces = [bytes(each.map[: min(each.size, end - each.base_offset)]) for each in log.segments]
        return log.min_offset, b"".join(pieces)

    def bodies(self, topic: str, known: Mapping[int, int] = MappingProxyType({})) -> dict[int, bytes]:
        """Every readable message of a topic by its place: queue id and queue offset in one number.

        `known`: by queue, how many of its messages are left out.
        """
        store, found = self.broker.store, {}
        for queue_id, queue in store.queues.get(topic, {}).items():
            for number in range(max(queue.min_offset, known.get(queue_id, 0)), queue.readable):
                offset, size, _tags = queue.read(number)
                segment = store.log.find(offset)
                assert segment is not None
                record = decode_record(segment.file.read_at(offset - segment.base_offset, size))
                found[queue_id << 40 | number] = record.body
        return found


@contextmanager
def machinery() -> Iterator[None]:
    """Threads take steps, and config files are in memory, each on the machine whose turn it is."""
    make_worker, submit = Worker.__init__, Worker.submit
    make_flusher, request, sync_cut = Flusher.__init__, Flusher.request, Flusher.sync_cut
    owners: dict[Worker | Flusher, Machine] = {}

    def own(helper: Worker | Flusher) -> None:
        machine = owners[helper] = CURRENT.get()
        machine.add_helper(helper)

    def worker(self: Worker, name: str, completions: Completions, *, start: bool = True) -> None:
        make_worker(self, name, completions, start=False)
        own(self)

    def flusher(
        self: Flusher, completions: Completions, on_flushed: Callable[[int], None], *, start: bool = True
    ) -> None:
        make_flusher(self, completions, on_flushed, start=False)
        own(self)

    def submitted(self: Worker, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        submit(self, job, done)
        owners[self].helper_has_work(self)

    def requested(self: Flusher, target: int, files: list[MappedFile]) -> None:
        request(self, target, files)
        owners[self].helper_has_work(self)

    def cut(self: Flusher, file: MappedFile, done: Callable[[], None]) -> None:
        sync_cut(self, file, done)
        owners[self].helper_has_work(self)

    def load(path: Path, crc_file: Path | None = None) -> tuple[dict[str, Any] | None, list[str]]:
        text = CURRENT.get().tables.get(path)
        return (None if text is None else fastjson.loads(text)), []

    def save(path: Path, data: bytes, crc_file: Path | None = None) -> None:
        CURRENT.get().tables[path] = data

    with (
        mock.patch.object(Worker, "__init__", worker),
        mock.patch.object(Worker, "submit", submitted),
        mock.patch.object(Flusher, "__init__", flusher),
        mock.patch.object(Flusher, "request", requested),
        mock.patch.object(Flusher, "sync_cut", cut),
        mock.patch.object(json_file, "load", load),
        mock.patch.object(json_file, "save", save),
        mock.patch("store.io.workers.Helpers.pause", lambda self: CURRENT.get().step_helpers()),
    ):
        yield
