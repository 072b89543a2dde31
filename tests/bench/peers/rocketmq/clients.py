"""Ropewalk's client library beside the official Java client: the same broker, the same box, one process each.

    python -m tests.bench.peers.rocketmq.clients            about three minutes; --duration 3 for a first impression

A Ropewalk broker is started with one topic and a backlog in it. Then each of the five loads of `bench --client` is
carried out by our library and by the Java client 5.5.0 in turn, and the messages a second are printed side by side. A
warm-up begins with the first message that came through. Absolute figures are this machine's.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ropewalk.client.addresses import parse_address
from ropewalk.testing import BrokerProcess
from tests.bench.peers.rocketmq.artifacts import classpath, compiled, program
from tests.bench.peers.rocketmq.original import POM
from tools.bench import prepare
from tools.bench.runner import run_load
from tools.bench.spec import CONSUMING, PRODUCING, ClientMode, ClientSpec

SOURCES = [Path(__file__).with_name("java") / "ClientLoad.java"]
MODES: tuple[ClientMode, ...] = (*PRODUCING, *CONSUMING)
BACKLOG_TOPIC, SEND_TOPIC = "clients-backlog", "clients-send"
QUEUES = 4
HEAP = "512m"
GRACE_S = 60.0


@dataclass(frozen=True)
class Plan:
    """How long and how much."""

    warm_up_s: float = 5.0
    duration_s: float = 10.0
    body_size: int = 1024
    in_flight: int = 32
    backlog: int = 300_000


@dataclass(frozen=True)
class Rates:
    """Messages a second of one load, or None where it was void, and why."""

    mode: ClientMode
    ours: float | None
    java: float | None
    note: str = ""


def compare(plan: Plan, modes: tuple[ClientMode, ...] = MODES) -> list[Rates]:
    """Carry out the loads. Raises `JavaUnavailable` where there is no Java."""
    jars = classpath(POM)
    classes = compiled(SOURCES, jars)
    with BrokerProcess({}) as broker, tempfile.TemporaryDirectory() as home:
        address = parse_address(broker.broker)
        prepare.create_topic(address, SEND_TOPIC, QUEUES)
        begin, end = prepare.ensure_backlog(address, BACKLOG_TOPIC, QUEUES, plan.backlog, plan.body_size)
        backlog = sum(end) - sum(begin)
        rates = []
        for mode in modes:
            topic = SEND_TOPIC if mode in PRODUCING else BACKLOG_TOPIC
            ours, why_ours = _ours(plan, broker.namesrv, topic, mode, backlog)
            command = _java_command(jars, classes, Path(home))
            java, why_java = _java(plan, command, broker.namesrv, topic, mode, backlog)
            rates.append(Rates(mode, ours, java, "; ".join(filter(None, (why_ours, why_java)))))
        return rates


def _ours(plan: Plan, namesrv: str, topic: str, mode: ClientMode, backlog: int) -> tuple[float | None, str]:
    spec = ClientSpec(
        name_servers=namesrv,
        topic=topic,
        mode=mode,
        body_size=plan.body_size,
        in_flight=plan.in_flight,
        backlog=backlog,
        warm_up_s=plan.warm_up_s,
        duration_s=plan.duration_s,
    )
    outcome = run_load(spec)
    void = outcome.why_void()
    return (None, f"ours: {void}") if void else (outcome.rate, "")


def _java_command(jars: str, classes: Path, home: Path) -> list[str]:
    options = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", f"-Duser.home={home}", "-Drocketmq.client.logLevel=ERROR"]
    options += [f"-Drocketmq.client.logRoot={home / 'logs'}"]
    return [program("java"), *options, "-cp", f"{classes}:{jars}", "ClientLoad"]


def _java(
    plan: Plan, command: list[str], namesrv: str, topic: str, mode: ClientMode, backlog: int
) -> tuple[float | None, str]:
    numbers = (
        plan.body_size,
        plan.in_flight,
        int(plan.warm_up_s * 1000),
        int(plan.duration_s * 1000),
        backlog,
    )
    done = subprocess.run(
        [*command, namesrv, topic, mode, *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=plan.warm_up_s + plan.duration_s + GRACE_S,
        check=False,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith('{"messages"')), None)
    if line is None:
        return (
            None,
            f"java: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'it said nothing'}",
        )
    outcome = json.loads(line)
    if outcome["failed"] or not outcome["messages"]:
        return None, f"java: {outcome['failed']} failed, {outcome['messages']} counted"
    return outcome["messages"] / outcome["seconds"], ""


def as_table(rates: list[Rates], plan: Plan) -> Table:
    table = Table(title=f"messages / s of one process, {plan.body_size} B", title_justify="left")
    for heading in ("load", "ropewalk", "java 5.5.0", "ours / java", "note"):
        table.add_column(heading, justify="left" if heading in ("load", "note") else "right")
    for one in rates:
        ratio = f"{one.ours / one.java:.2f}" if one.ours and one.java else ""
        table.add_row(one.mode, _shown(one.ours), _shown(one.java), ratio, one.note)
    return table


def _shown(rate: float | None) -> str:
    return "void" if rate is None else f"{rate:,.0f}"


def main(
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds to measure each load.")] = 10.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of load before.")] = 5.0,
    body_size: Annotated[int, typer.Option(min=1)] = 1024,
    in_flight: Annotated[int, typer.Option(min=1, help="Of the async load.")] = 32,
    backlog: Annotated[int, typer.Option(min=1, help="Messages to consume.")] = 300_000,
) -> None:
    """Measure our client library and the Java client, one after the other, at the same broker."""
    plan = Plan(warm_up, duration, body_size, in_flight, backlog)
    Console().print(as_table(compare(plan), plan))


if __name__ == "__main__":
    typer.run(main)
