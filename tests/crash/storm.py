"""A rebalance storm: members of two groups, each a process of its own, join, leave and die while messages come.

    python -m tests.crash.storm '{"namesrv": …, "topic": …, "seconds": 20, …}'

One group consumes in order, one side by side. Members leave on SIGTERM, as a deployment ends them, and die by kill -9.
They write down when they begin and when they have finished each message, into one file for each group, by the clock
that all processes of a machine share. This program only raises the storm and tells what it did, as one JSON document;
`judge` says whether it was survived.

The processes are forked from this one, which has imported everything and has no threads: a member is there in
milliseconds, and a hundred of them cost little.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio

from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.blocking.producer import Producer
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message

MEMBERS = 8
ORDERLY, CONCURRENT = "orderly", "concurrent"
SEND_PAUSE_S = 0.004
_COMMIT_S = 5.0
"""How often a consumer records its progress when it reads nothing."""
AROUND_S = _COMMIT_S + 5.0
"""Of a message that is handled again: how long ago it was finished the first time, at the most."""


@dataclass(frozen=True)
class Plan:
    namesrv: str
    topic: str
    folder: str
    seconds: float
    seed: int
    orderly_deaths: bool
    """Whether members that consume in order die too: their queues then rest until the lock has expired, a minute."""
    settle_s: float


@dataclass
class Report:
    """What was done, apart from what the members wrote down."""

    joins: int = 0
    leaves: int = 0
    deaths: int = 0
    killed: dict[str, int] = field(default_factory=dict)
    """Member (its process id as text) -> when it was killed, ns."""
    sent: int = 0
    exits: list[int] = field(default_factory=list)
    """The statuses of members that left by themselves or on demand."""


# -- the processes ---------------------------------------------------------------------------------------


def fork(run: object, *words: object) -> int:
    """A child that calls `run(*words)` and ends. SIGTERM waits until the child is ready for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid
    status = 1
    try:
        assert callable(run)
        run(*words)
        status = 0
    except BaseException as exc:
        print(f"process {os.getpid()}: {type(exc).__name__}: {exc}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(status)


def be_member(plan: Plan, group: str) -> None:
    """Consume until SIGTERM."""
    ledger = os.open(Path(plan.folder) / group, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    me = os.getpid()

    def note(what: str, message: ReceivedMessage) -> None:
        queue, offset = message.source.queue.queue_id, message.queue_offset
        line = f"{time.monotonic_ns()} {me} {what} {queue} {offset} {message.body.decode()}\n"
        os.write(ledger, line.encode())  # one short append: lines of several processes do not mix

    async def handle(message: ReceivedMessage) -> None:
        if message.topic == plan.topic:
            note("begin", message)
            await anyio.sleep(0.001)
            note("end", message)

    async def main() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            async with AsyncPushConsumer(
                f"{plan.topic}-{group}",
                {plan.topic: "*"},
                handle,
                plan.namesrv,
                client_id=f"127.0.0.1@{me}",
                orderly=group == ORDERLY,
                consume_from="first",
                pull_count=8,
                commit_interval=_COMMIT_S,
            ):
                async for _signal in signals:
                    break

    anyio.run(main, backend="trio")


def be_producer(plan: Plan) -> None:
    """Send numbers until SIGTERM, and write down the last one that was acknowledged."""
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    number = 0
    with Producer(plan.namesrv, group=f"{plan.topic}-producer") as producer:
        while not stopping:
            result = producer.send(plan.topic, Message(b"%d" % number))
            assert result.status.name == "SEND_OK", result
            number += 1
            time.sleep(SEND_PAUSE_S)
    (Path(plan.folder) / "sent").write_text(str(number))


# -- the weather -----------------------------------------------------------------------------------------


@dataclass
class _Place:
    """One of the places for members of a group: taken until some time, then free until some other."""

    group: str
    pid: int = 0
    until: float = 0.0


class Storm:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._report = Report()
        self._places = [_Place(group) for group in (ORDERLY, CONCURRENT) for _ in range(MEMBERS)]
        self._leaving: set[int] = set()

    def rage(self) -> Report:
        """Raise the storm, let it calm down, and wait until everything is handled or the time for that is over."""
        plan = self._plan
        producer = fork(be_producer, plan)
        over = time.monotonic() + plan.seconds
        while time.monotonic() < over:
            for place in self._places:
                if time.monotonic() >= place.until:
                    self._turn(place)
            self._reap()
            time.sleep(0.01)
        os.kill(producer, signal.SIGTERM)
        os.waitpid(producer, 0)
        sent = Path(plan.folder) / "sent"
        self._report.sent = int(sent.read_text()) if sent.exists() else -1
        for place in self._places:
            if not place.pid:
                self._turn(place)
        until = time.monotonic() + plan.settle_s
        while time.monotonic() < until and not self._all_handled():
            self._reap()
            time.sleep(0.5)
        for place in self._places:
            self._end(place, signal.SIGTERM)
        while self._leaving:
            self._reap()
            time.sleep(0.01)
        return self._report

    def _turn(self, place: _Place) -> None:
        """A member comes to a free place, or the one that is there goes, this way or that."""
        if not place.pid:
            place.pid = fork(be_member, self._plan, place.group)
            place.until = time.monotonic() + self._chance.uniform(0.5, 8.0)
            self._report.joins += 1
            return
        may_die = place.group == CONCURRENT or self._plan.orderly_deaths
        if may_die and self._chance.random() < 0.4:
            self._report.deaths += 1
            self._report.killed[str(place.pid)] = time.monotonic_ns()
            self._end(place, signal.SIGKILL)
        else:
            self._report.leaves += 1
            self._end(place, signal.SIGTERM)
        place.until = time.monotonic() + self._chance.uniform(0.1, 1.5)

    def _end(self, place: _Place, how: signal.Signals) -> None:
        if place.pid:
            self._leaving.add(place.pid)
            os.kill(place.pid, how)
            place.pid = 0

    def _reap(self) -> None:
        for pid in list(self._leaving):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._leaving.discard(pid)
                if str(pid) not in self._report.killed:
                    self._report.exits.append(os.waitstatus_to_exitcode(status))

    def _all_handled(self) -> bool:
        return all(
            len({line.number for line in read(self._plan.folder, group) if line.what == "end"})
            >= self._report.sent
            for group in (ORDERLY, CONCURRENT)
        )


# -- the verdict -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    at_ns: int
    member: str
    what: str
    queue: int
    offset: int
    number: int


def read(folder: str | Path, group: str) -> list[Line]:
    path = Path(folder) / group
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        at, member, what, queue, offset, number = text.split()
        lines.append(Line(int(at), member, what, int(queue), int(offset), int(number)))
    return sorted(lines, key=lambda line: line.at_ns)


@dataclass
class Verdict:
    """What went wrong, a sentence each, and how often messages were handled again."""

    wrong: list[str]
    again: int


def judge(lines: list[Line], sent: int, killed: dict[str, int], *, orderly: bool) -> Verdict:
    """Whether one group lost nothing, kept its order, and saw again only what a change explains."""
    handled = Counter(line.number for line in lines if line.what == "end")
    wrong = []
    lost = sorted(set(range(sent)) - handled.keys())
    if lost:
        wrong.append(f"{len(lost)} of {sent} messages were never handled, the first of them {lost[:5]}")
    wrong += _disorder(lines, killed) if orderly else _unexplained(lines, killed)
    return Verdict(wrong, sum(count - 1 for count in handled.values()))


def _disorder(lines: list[Line], killed: dict[str, int]) -> list[str]:
    """Of a group that consumes in order: one member at a time, one step at a time, back only behind a death."""
    wrong = []
    by_queue: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        by_queue[line.queue].append(line)
    for queue, seen in by_queue.items():
        finished, begun, busy, before = -1, -1, "", ""
        for line in seen:
            if line.what == "end":
                finished, busy = max(finished, line.offset), ""
                continue
            here, who = f"queue {queue}: {line.member}", before
            if busy and killed.get(busy, line.at_ns) >= line.at_ns:
                wrong.append(f"{here} began {line.offset} while {busy} was at work")
            if line.offset > finished + 1:
                wrong.append(f"{here} began {line.offset} after {finished}")
            elif line.member == before and line.offset != begun + 1:
                wrong.append(f"{here} began {line.offset} after its own {begun}")
            elif line.member != before and line.offset <= finished and who not in killed:
                wrong.append(f"{here} began {line.offset} again after {finished}, and {who} had not died")
            begun, busy, before = line.offset, line.member, line.member
    return wrong


def _unexplained(lines: list[Line], killed: dict[str, int]) -> list[str]:
    """Of a group that consumes side by side: messages that came again long after they were handled."""
    wrong = []
    first: dict[int, Line] = {}
    for line in lines:
        if line.what == "end":
            first.setdefault(line.number, line)
        elif line.number in first:
            earlier = first[line.number]
            since = max(earlier.at_ns, killed.get(earlier.member, 0))
            if line.at_ns - since > AROUND_S * 1e9:
                ago = (line.at_ns - earlier.at_ns) / 1e9
                wrong.append(f"message {line.number} came again {ago:.1f} s after it was handled")
    return wrong


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(Storm(plan).rage())))


if __name__ == "__main__":
    main()
