"""Ropewalk's client library beside the official Java client: the same broker, the same box, one process each.

    python -m tests.bench.peers.rocketmq.clients      under four minutes; --duration 2 --rounds 1 for an impression

A Ropewalk broker is started for those that produce, and another one with a backlog for those that consume. Each of the
five loads of `bench --client` is carried out by our library and by the Java client 5.5.0 in turn, round after round,
and the messages a second of all rounds together are printed side by side, with those of the slowest and the fastest
round. A warm-up begins with the first message that came through; what a consumer needs to start over is not
counted for either side. Last come the times of the pytest fixture. Absolute figures are this machine's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ropewalk.client.core.addresses import parse_address
from ropewalk.testing import BrokerProcess
from tests.bench.fixture_times import FixtureTimes, fixture_times
from tests.bench.peers.rocketmq.artifacts import classpath, compiled, program
from tests.bench.peers.rocketmq.original import POM
from tools.bench import prepare
from tools.bench.runner import run_load
from tools.bench.spec import CONSUMING, PRODUCING, ClientMode, ClientSpec

SOURCES = [Path(__file__).with_name("java") / "ClientLoad.java"]
MODES: tuple[ClientMode, ...] = (*PRODUCING, *CONSUMING)
TOPIC = "clients"
QUEUES = 4
HEAP = "512m"
GRACE_S = 60.0
WHO = ("ours", "java")
LABELS: dict[ClientMode, str] = {
    "sync": "send, 1 in flight",
    "async": "send, {} in flight",
    "batched": "send, auto-batched",
    "pull": "poll",
    "push": "push",
}


@dataclass(frozen=True)
class Plan:
    """How long and how much."""

    warm_up_s: float = 3.0
    duration_s: float = 5.0
    rounds: int = 2
    body_size: int = 1024
    in_flight: int = 32
    backlog: int = 200_000


@dataclass(frozen=True)
class Load:
    """What one client did in the measured time of one load, or why that is void."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    void: str = ""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Rates:
    """The rounds of one load: ours and Java's."""

    mode: ClientMode
    ours: tuple[Load, ...]
    java: tuple[Load, ...]


def compare(plan: Plan, modes: tuple[ClientMode, ...] = MODES) -> list[Rates]:
    """Carry out the loads. Raises `JavaUnavailable` where there is no Java."""
    jars = classpath(POM)
    classes = compiled(SOURCES, jars)
    done: dict[tuple[ClientMode, str], list[Load]] = {(mode, who): [] for mode in modes for who in WHO}
    with tempfile.TemporaryDirectory() as home:
        command = _java_command(jars, classes, Path(home))
        # A broker for each kind: what producers leave behind would push the backlog out of the broker's warm end.
        for kind in (PRODUCING, CONSUMING):
            wanted = [mode for mode in modes if mode in kind]
            if not wanted:
                continue
            with BrokerProcess({}) as broker:
                backlog = _prepared(broker, plan, wanted[0])
                for number in range(plan.rounds):
                    # Who comes second finds another machine: each round that is the other one.
                    order = WHO if number % 2 == 0 else WHO[::-1]
                    for mode, who in product(wanted, order):
                        if who == "ours":
                            load = _ours(plan, broker.namesrv, mode, backlog)
                        else:
                            load = _java(plan, command, broker.namesrv, mode, backlog)
                        done[mode, who].append(load)
    return [Rates(mode, tuple(done[mode, "ours"]), tuple(done[mode, "java"])) for mode in modes]


def _prepared(broker: BrokerProcess, plan: Plan, mode: ClientMode) -> int:
    """Make the topic; how many messages lie in it to be consumed."""
    address = parse_address(broker.broker)
    if mode in PRODUCING:
        prepare.create_topic(address, TOPIC, QUEUES)
        return 0
    begin, end = prepare.ensure_backlog(address, TOPIC, QUEUES, plan.backlog, plan.body_size)
    return sum(end) - sum(begin)


def _ours(plan: Plan, namesrv: str, mode: ClientMode, backlog: int) -> Load:
    spec = ClientSpec(
        name_servers=namesrv,
        topic=TOPIC,
        mode=mode,
        body_size=plan.body_size,
        in_flight=plan.in_flight,
        backlog=backlog,
        warm_up_s=plan.warm_up_s,
        duration_s=plan.duration_s,
    )
    outcome = run_load(spec)
    void = outcome.why_void()
    if void:
        return Load(void=f"ours: {void}")
    return Load(outcome.messages, outcome.seconds, outcome.load_cpu_s)


def _java_command(jars: str, classes: Path, home: Path) -> list[str]:
    options = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", f"-Duser.home={home}", "-Drocketmq.client.logLevel=ERROR"]
    options += [f"-Drocketmq.client.logRoot={home / 'logs'}"]
    return [program("java"), *options, "-cp", f"{classes}:{jars}", "ClientLoad"]


def _java(plan: Plan, command: list[str], namesrv: str, mode: ClientMode, backlog: int) -> Load:
    numbers = (
        plan.body_size,
        plan.in_flight,
        int(plan.warm_up_s * 1000),
        int(plan.duration_s * 1000),
        backlog,
    )
    done = subprocess.run(
        [*command, namesrv, TOPIC, mode, *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=plan.warm_up_s + plan.duration_s + GRACE_S,
        check=False,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith('{"messages"')), None)
    if line is None:
        said = done.stderr.strip().splitlines()
        return Load(void=f"java: {said[-1] if said else 'it said nothing'}")
    outcome = json.loads(line)
    if outcome["failed"] or not outcome["messages"]:
        return Load(void=f"java: {outcome['failed']} failed, {outcome['messages']} counted")
    return Load(outcome["messages"], outcome["seconds"], outcome["cpu"])


def as_table(rates: list[Rates], plan: Plan) -> Table:
    table = Table(
        title=f"messages / s of one process, {plan.body_size} B, {plan.rounds} x {plan.duration_s:g} s",
        title_justify="left",
    )
    headings = ("load", "ropewalk", "java 5.5.0", "ours / java", "our CPU us", "its CPU us", "note")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("load", "note") else "right")
    for one in rates:
        ours, java = _together(one.ours), _together(one.java)
        ratio = f"{ours.rate / java.rate:.2f}" if not ours.void and not java.void else ""
        table.add_row(
            LABELS[one.mode].format(plan.in_flight),
            _shown(ours, one.ours),
            _shown(java, one.java),
            ratio,
            _cpu(ours),
            _cpu(java),
            "; ".join(filter(None, (ours.void, java.void))),
        )
    return table


def _together(loads: tuple[Load, ...]) -> Load:
    """All rounds as one, void if any is."""
    return Load(
        sum(load.messages for load in loads),
        sum(load.seconds for load in loads),
        sum(load.cpu_s for load in loads),
        next((load.void for load in loads if load.void), ""),
    )


def _shown(together: Load, loads: tuple[Load, ...]) -> str:
    if together.void:
        return "void"
    low, high = min(load.rate for load in loads), max(load.rate for load in loads)
    return f"{together.rate:,.0f}" + (f" ({low:,.0f}-{high:,.0f})" if len(loads) > 1 else "")


def _cpu(load: Load) -> str:
    """Microseconds of CPU that the client spent on a message."""
    return "" if load.void or not load.messages else f"{load.cpu_s / load.messages * 1e6:.1f}"


def as_lines(times: FixtureTimes) -> str:
    return (
        f"fixture: start {times.start_s:.2f} s (worst of {times.starts}: {times.worst_start_s:.2f}), "
        f"reset {times.reset_s * 1000:.1f} ms (worst of {times.resets}: {times.worst_reset_s * 1000:.1f})"
    )


def main(
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds to measure each load, a round.")] = 5.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of load before.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each load is carried out.")] = 2,
    body_size: Annotated[int, typer.Option(min=1)] = 1024,
    in_flight: Annotated[int, typer.Option(min=1, help="Of the async load.")] = 32,
    backlog: Annotated[int, typer.Option(min=1, help="Messages to consume.")] = 200_000,
) -> None:
    """Measure our client library and the Java client, in turn, at the same broker, and the pytest fixture."""
    plan = Plan(warm_up, duration, rounds, body_size, in_flight, backlog)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(as_table(compare(plan), plan))
    console.print(as_lines(fixture_times()), highlight=False)


if __name__ == "__main__":
    typer.run(main)
