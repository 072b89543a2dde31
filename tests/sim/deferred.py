"""Lives of a group with messages that come later: timers and their recalls, transactions and their checks.

The same machines and the same misfortune as in `group`, with clients whose messages wait inside the broker. Clocks are
set back and forth as well, and in some lives the files of timers find no room on their disk, or lose a unit. The
promises that are checked besides the group's own, in the last master's log:

    a timer is never early             no copy is there before the clock of its master shows its time
    a timer is not lost                every one that was answered 0 is delivered, unless it was recalled
    a recall is heard                  what was taken back in time, and answered 0, is delivered by nobody
    a transaction is decided once      a committed half is in its topic exactly once, a rolled back one never
    none stays open                    whatever dies, its check reaches a producer that can answer
    a timer comes once                 in lives in which nothing dies and nobody hands over
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from unittest import mock

import trio

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.headers import CheckTransactionStateHeader, decode_header
from ropewalk.format.record import decode_record, parse_message_id
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from store.timer import timer_store, wheel
from store.timer.layout import SLOT_SIZE, UNIT_SIZE
from tests.sim.events import Events
from tests.sim.group import History, World, run
from tests.sim.group_callers import SEND_S, Producer
from tests.sim.group_node import Broken

if TYPE_CHECKING:
    from tests.sim.group_node import Node
    from tests.sim.net import End

__all__ = ["DeferredWorld", "live"]

TIMED, PAID = "timed", "paid"
GROUP = "pg"
COMMIT, ROLLBACK = 8, 12
RECALL_MARGIN_MS = 1_500
"""A recall that is answered so long before the time has to be heard."""
WATCH_S = 0.02
SHOWN_S = 1.5
"""How long after its append a message may become readable."""
FILES_FAIL = 0.4
"""In how many lives the files of timers fail."""
DONE_S = 40.0
"""How long transactions may stay open in a group at rest."""
WHEEL_SLOTS = 7168
"""Slots of the wheel: minutes instead of two weeks, because a simulated disk copies a file at each sync."""
_ONEWAY = 2


class Client(ABC):
    """A connection to the supposed master, with one request under way."""

    has_backlog = False

    def __init__(self, world: DeferredWorld, ip: str) -> None:
        self.world = world
        self._ip = ip
        self._end: End | None = None
        self._node: Node | None = None
        self._frames = FrameBuffer()
        self._opaque = 0
        self._done: Callable[[Command | None], None] | None = None
        self._soon(0.0)

    def _soon(self, delay_s: float) -> None:
        self.world.events.later(delay_s, self.act)

    @abstractmethod
    def act(self) -> None:
        """Do the next thing."""

    def ask(self, command: Command, done: Callable[[Command | None], None]) -> None:
        """Send a request to the master; `done` is called once, with the answer or None."""
        world = self.world
        node = world.supposed_master()
        if self._end is not None and self._node is not node:
            self._end.close()  # the route has another master by now
        if self._end is None:
            self._node = node
            try:
                self._end = world.net.connect(self._ip, None, node.address)
            except OSError:
                world.events.later(0.05, lambda: done(None))
                return
            self._end.session = self
            self._frames = FrameBuffer()
        self._opaque += 1
        self._done, opaque = done, self._opaque
        command.opaque = opaque
        self._end.send(encode_frame(command))
        end = self._end

        def watch() -> None:
            if self._done is done and self._opaque == opaque:
                end.close()

        world.events.later(SEND_S, watch)

    def tell(self, command: Command) -> None:
        """Send a request that nobody answers."""
        if self._end is not None:
            command.flag |= _ONEWAY
            self._end.send(encode_frame(command))

    def pushed(self, command: Command) -> None:
        """Hear a request of the broker, which sends none to a client that announced no group."""
        raise AssertionError(f"{command.code} was pushed to a client that announced no group")

    def receive(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            command = decode_frame(payload)
            if not command.is_response:
                self.pushed(command)
            elif self._done is not None and command.opaque == self._opaque:
                done, self._done = self._done, None
                if command.code != ResponseCode.SUCCESS and self._end is not None:
                    self._end.close()  # of a slave, or a master that takes nothing: look for another
                done(command)

    def closed(self) -> None:
        self._end = None
        if self._done is not None:
            done, self._done = self._done, None
            done(None)


class TimerClient(Client):
    """Sends messages with a time, and takes some of them back."""

    def __init__(self, world: DeferredWorld, ip: str) -> None:
        self._handles: dict[str, str] = {}
        super().__init__(world, ip)

    def act(self) -> None:
        world, chance = self.world, self.world.chance
        if world.quiet:
            return
        now = world.now_ms()
        open_ = [name for name in self._handles if world.due_ms[name] - now > 2 * RECALL_MARGIN_MS]
        if open_ and chance.random() < 0.25:
            self._recall(chance.choice(open_))
        else:
            self._send(now + chance.choice((-100, 300, 1_000, 2_500, 4_000, 7_000)) + chance.randrange(1000))

    def _send(self, due_ms: int) -> None:
        world = self.world
        name = world.next_name("t")
        world.due_ms[name] = due_ms

        def done(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                world.timers.add(name)
                if (handle := answer.ext.get("recallHandle")) is not None:
                    self._handles[name] = handle
            self._soon(world.chance.choice((0.01, 0.05, 0.2)))

        queue_id = world.chance.randrange(2)
        self.ask(world.send(TIMED, name, queue_id, TIMER_DELIVER_MS=str(due_ms)), done)

    def _recall(self, name: str) -> None:
        world = self.world
        ext = {"producerGroup": GROUP, "topic": TIMED, "recallHandle": self._handles.pop(name)}

        def done(answer: Command | None) -> None:
            world.maybe_recalled.add(name)
            in_time = world.now_ms() + RECALL_MARGIN_MS < world.due_ms[name] and name not in world.delivered()
            if answer is not None and answer.code == ResponseCode.SUCCESS and in_time and not world.rolls:
                world.recalled.add(name)
            self._soon(0.02)

        self.ask(Command(RequestCode.RECALL_MESSAGE, ext), done)


class Transactor(Client):
    """Sends half messages, ends some of them, and answers the checks of the others."""

    def act(self) -> None:
        world, chance = self.world, self.world.chance
        if world.quiet or chance.random() < 0.2:
            body = fastjson.dumps(
                {"clientID": "p1", "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []}
            )
            self.ask(Command(RequestCode.HEART_BEAT, {}, body), lambda _answer: self._soon(0.3))
            return
        name = world.next_name("h")
        outcome = world.outcomes[name] = chance.choice((COMMIT, COMMIT, ROLLBACK))

        def done(answer: Command | None) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                self._soon(0.05)
                return
            world.halves.add(name)
            if chance.random() < 0.5:
                self._soon(chance.choice((0.01, 0.1)))
                return
            header = {
                "tranStateTableOffset": answer.ext["queueOffset"],
                "commitLogOffset": str(parse_message_id(answer.ext["msgId"])[2]),
            }
            self.ask(self._end_of(name, outcome, header), lambda _answer: self._soon(0.02))

        queue_id = chance.randrange(2)
        self.ask(world.send(PAID, name, queue_id, sys_flag=4, TRAN_MSG="true", PGROUP=GROUP), done)

    def _end_of(
        self, name: str, outcome: int, header: Mapping[str, str], *, checked: bool = False
    ) -> Command:
        ext = {
            "producerGroup": GROUP,
            "commitOrRollback": str(outcome),
            "msgId": key_of(name),
            "transactionId": key_of(name),
            "fromTransactionCheck": "true" if checked else "false",
            **header,
        }
        return Command(RequestCode.END_TRANSACTION, ext)

    def pushed(self, command: Command) -> None:
        world = self.world
        if command.code != RequestCode.CHECK_TRANSACTION_STATE or world.chance.random() < 0.3:
            return
        asked = decode_header(CheckTransactionStateHeader, command.ext)
        name = decode_record(command.body).body.decode()
        header = {
            "tranStateTableOffset": str(asked.tran_state_table_offset),
            "commitLogOffset": str(asked.commit_log_offset),
        }
        for _answer in range(world.chance.choice((1, 1, 2))):  # some say so twice
            self.tell(self._end_of(name, world.outcomes[name], header, checked=True))


def key_of(name: str) -> str:
    """Return the unique key of a message."""
    return f"7F0000010ABC18B4AAC2{name.encode().hex().upper():0>12}"


class DeferredWorld(World):
    """A group, and clients whose messages wait inside it."""

    def __init__(self, seed: int, safe_class: str, events: Events) -> None:
        super().__init__(seed, safe_class, events)
        chance = self.chance
        self.due_ms: dict[str, int] = {}
        self.timers: set[str] = set()
        """Names that were answered 0."""
        self.recalled: set[str] = set()
        self.maybe_recalled: set[str] = set()
        self.outcomes: dict[str, int] = {}
        self.halves: set[str] = set()
        self._names = 0
        self._stepped = 0.0, 0
        """When clocks were set last, and the latest time that they showed before."""
        self._seen: dict[Node, tuple[tuple[int, int] | None, dict[int, int]]] = {}
        """By node: process and epoch in which it led at the last look, and by queue how much of it was seen."""
        self._luck = random.Random(f"timer files {seed} {safe_class}")
        self.files_fail = False
        """Whether files of timers fail. A start that finds none delivers what is due before it reads later recalls."""
        self.harmed = False
        """Whether a unit of a timer was damaged."""
        precision_ms = chance.choice((100, 1000))
        window_ms = chance.choice((3_000, 5_000, 600_000))
        self.rolls = window_ms < 10_000
        """Whether timers come back half way. A recall may miss one that did while no master was there, as in RocketMQ:
        both are late then, and each in a slot of its own."""
        self.settings |= {
            "timerPrecisionMs": str(precision_ms),
            "timerRollWindowSlot": str(window_ms // precision_ms),
            "mappedFileSizeTimerLog": "4096",
            "recallMessageEnable": "true",
            "transactionTimeOut": "400",
            "transactionCheckInterval": "300",
            "transactionCheckMax": "1000",
        }
        for node in self.nodes:
            node.configure(self.settings)

    def next_name(self, kind: str) -> str:
        """Return a name that no message had."""
        self._names += 1
        return f"{kind}{self._names}"

    def send(self, topic: str, name: str, queue_id: int, sys_flag: int = 0, **properties: str) -> Command:
        """Return the send of a message, its body its name."""
        text = "".join(
            f"{key}\x01{value}\x02"
            for key, value in {"UNIQ_KEY": key_of(name), "WAIT": "true", **properties}.items()
        )
        ext: dict[str, Any] = {"a": GROUP, "b": topic, "c": "TBW102", "d": "2", "e": str(queue_id)}
        ext |= {
            "f": str(sys_flag),
            "g": str(self.now_ms()),
            "h": "0",
            "i": text,
            "j": "0",
            "k": "false",
            "m": "false",
        }
        return Command(RequestCode.SEND_MESSAGE_V2, ext, name.encode())

    def begin_load(self) -> None:
        Producer(self, 0)
        TimerClient(self, "10.0.1.4")
        Transactor(self, "10.0.1.5")
        self._watch()
        self.events.later(self.chance.uniform(0.3, 3), self._set_clocks)
        self.files_fail = self._luck.random() < FILES_FAIL
        if self.files_fail:
            self._harm_timers()

    def _harm_timers(self) -> None:
        """Fill a machine's disk for a file of its timers, make room again, or damage a unit. It may die soon."""
        luck = self._luck
        node = self.supposed_master() if luck.random() < 0.6 else luck.choice(self.nodes)
        timer_logs = (file for path, file in node.disk.files.items() if path.parent.name == "timerlog")
        logs = [file for file in timer_logs if len(file.data) >= UNIT_SIZE]
        if self.quiet:
            for each in self.nodes:
                each.disk.full = frozenset()
            return
        if node.disk.full:
            node.disk.full = frozenset()
        elif logs and luck.random() < 0.3:
            at = luck.randrange(len(logs[0].data) // UNIT_SIZE) * UNIT_SIZE
            luck.choice(logs).data[at : at + UNIT_SIZE] = bytes(UNIT_SIZE)
            self.harmed = True
        else:
            node.disk.full = frozenset((luck.choice(("timerlog", "timerlog", "timerwheel", "timercheck")),))
        if luck.random() < 0.5:
            self.events.later(luck.uniform(0.1, 0.8), lambda: self._kill(node))
        self.log(node, f"has no room for {sorted(node.disk.full)}" if node.disk.full else "has other files")
        self.events.later(luck.uniform(0.1, 1.5), self._harm_timers)

    def _kill(self, node: Node) -> None:
        if node.alive and not self.quiet:
            self.history.deaths += 1
            node.die(power=self.power_fails and self._luck.random() < 0.5)
            self._nursery.start_soon(self.start, node, self._luck.uniform(0.05, 0.5))

    def _set_clocks(self) -> None:
        if self.quiet:
            return
        self._look()
        if self.events.now - self._stepped[0] > SHOWN_S:
            self._stepped = self.events.now, self.now_ms()
        self._stepped = self.events.now, max(self.now_ms(), self._stepped[1])
        self.step_ms += self.chance.choice((-4_000, -1_500, -300, 300, 1_500, 4_000))
        self.log("clock", f"is set to {self.step_ms} ms")
        self.events.later(self.chance.uniform(0.3, 3), self._set_clocks)

    def _is_late_truth(self, piece: bytes) -> bool:
        return True  # of messages in other topics, which the plain world does not send; it judges this

    # -- what is delivered --------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._look()
        self.events.later(WATCH_S, self._watch)

    def _look(self) -> None:
        """See what masters have delivered since the last look: it must be due by their clock.

        What a node has that was no master then is another one's: the clock may have been set since that delivered it.
        """
        now = self.now_ms()
        if self.events.now - self._stepped[0] < SHOWN_S:
            now = max(now, self._stepped[1])  # appended by that clock, and shown to consumers later
        for node in self.nodes:
            if not node.alive:
                continue
            led, known = self._seen.get(node, (None, {}))
            leads = (id(node.broker), node.led) if node.is_master else None
            if led is None or led[0] != id(node.broker):
                known = {}
            for place, body in node.bodies(TIMED, known).items():
                queue_id = place >> 40
                known[queue_id] = max(known.get(queue_id, 0), (place & 0xFFFFFFFFFF) + 1)
                if leads is not None and led == leads and self.due_ms[body.decode()] > now:
                    self._broken(
                        f"{node} delivered timer {body.decode()} {self.due_ms[body.decode()] - now} ms before its time"
                    )
            self._seen[node] = leads, known

    def delivered(self) -> set[str]:
        """Return the timers that any living member has delivered."""
        return {body.decode() for node in self.nodes if node.alive for body in node.bodies(TIMED).values()}

    async def until_done(self, master: Node) -> None:
        last_ms = max(self.due_ms.values(), default=0) + 3_000
        await trio.sleep(max(last_ms - self.now_ms(), 0) / 1000)
        until = self.events.now + DONE_S
        halves = master.broker.transactions.halves
        while halves.by_offset or not master.broker.transactions.is_idle:
            await trio.sleep(0.2)
            halves = master.broker.transactions.halves
            if self.events.now > until:
                break
        if halves.by_offset:
            left = [half.offset for half in halves.by_offset.values()][:5]
            raise Broken(f"transactions stay open at {master}: halves {left}, though their producer is there")

    def _audit(self, master: Node) -> None:
        super()._audit(master)
        is_done = not self.history.unfinished  # a fenced master delivers nothing and decides nothing any more
        came = Counter(body.decode() for body in master.bodies(TIMED).values())
        if is_done and (lost := sorted(self.timers - came.keys() - self.maybe_recalled)):
            raise Broken(f"timers {lost[:5]} were answered 0, and {master} never delivered them")
        if not self.files_fail and (heard := sorted(self.recalled & came.keys())):
            raise Broken(f"timers {heard[:5]} were recalled in time, and {master} delivered them")
        history = self.history
        calm = not (self.harmed or history.deaths or history.handovers or history.failed_handovers)
        if calm and (twice := sorted(name for name, count in came.items() if count > 1)):
            raise Broken(f"timers {twice[:5]} were delivered twice by {master}, and nothing had died")
        committed = Counter(body.decode() for body in master.bodies(PAID).values())
        for name, outcome in self.outcomes.items():
            count = committed[name]
            if count > 1:
                raise Broken(f"transaction {name} is committed {count} times at {master}")
            if count and outcome == ROLLBACK:
                raise Broken(f"transaction {name} is delivered by {master}, though it was rolled back")
            if is_done and not count and outcome == COMMIT and name in self.halves:
                raise Broken(f"transaction {name} was prepared and committed, and {master} does not have it")


def live(seed: int, safe_class: str, seconds: float | None = None) -> History:
    """One life. Raises `Broken`."""
    with (
        mock.patch.object(wheel, "WHEEL_SLOTS", WHEEL_SLOTS),
        mock.patch.object(wheel, "WHEEL_SIZE", WHEEL_SLOTS * SLOT_SIZE),
        mock.patch.object(timer_store, "SLOTS_TOTAL", WHEEL_SLOTS // 2),
    ):
        return run(seed, safe_class, seconds, DeferredWorld)
