"""Compare Ropewalk and Apache RocketMQ under the same load, on the same machine, in one alternating run.

A round starts one server on an empty store, measures it and throws it away; rounds alternate (original,
ropewalk, original, ropewalk ...), so that a machine that gets slower in the course of the run gets slower
for both. Only one server runs at a time. Absolute figures are this machine's; the ratio is the result.

    start     until the first acknowledged message; the original needs its name server first, and a master its slave
    idle      resident memory (RssAnon + RssFile) of the broker, of a group the master, a moment later
    warm      the same load for both, long enough for the original's compiler
    far       backlogs that are to be read from far behind the end of the log, and what stands behind them
    rows      tests/bench/peers/rocketmq/rows.py; every other backlog is written just before it is read

A server is one broker, with `--role SYNC_MASTER` a master that acknowledges what its one slave has too, with
`--role DLEDGER` the leader of three.
`make bench-rocketmq` runs it with the defaults, `--quick` gives a first impression in two minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tests.bench.flush_probe import flush_ms
from tests.bench.peers.rocketmq.original import VERSION
from tests.bench.peers.rocketmq.rows import (
    FAR_BYTES,
    LEDGER_ROLE,
    ORIGINAL,
    ROPEWALK,
    SETS,
    SHAPES,
    DrainShape,
    Load,
    Mode,
    PullShape,
    Round,
    Row,
    Shape,
    build_rows,
)
from tests.bench.peers.rocketmq.servers import FAILURES, Running, Starter, start_original, start_ropewalk
from tools.bench import prepare, server
from tools.bench.link import LoadFailed
from tools.bench.runner import run_load
from tools.bench.spec import Outcome, ProduceSpec, PullSpec, RawSpec

TOPIC = "bench"
ROWS_TOPIC = "bench-rows"
FILLER_TOPIC = "bench-filler"
FILLER_BODY = 64 << 10
QUEUES = 4
WARM_SHAPE = SHAPES[3]
IDLE_WAIT_S = 3.0
ROLES = ("ASYNC_MASTER", "SYNC_MASTER", LEDGER_ROLE)
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long everything takes. Seconds."""

    rounds: int
    warm_s: float
    row_warm_s: float
    row_s: float
    idle_wait_s: float = IDLE_WAIT_S


THOROUGH = Plan(rounds=3, warm_s=20.0, row_warm_s=2.0, row_s=5.0)
QUICK = Plan(rounds=1, warm_s=20.0, row_warm_s=1.0, row_s=3.0)


def measure(
    start: Starter, parent: Path, plan: Plan, shapes: Sequence[Load], say: Callable[[str], None]
) -> Round:
    """One round of one server, from an empty folder to no folder."""
    done = Round(flush_before_ms=flush_ms(parent))
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        _fill(done, start, folder, plan, shapes, say)
    except FAILURES as exc:
        # A server that breaks has no figures from here on; those of the other one are still worth having.
        done.failure = str(exc)
        say(f"failed: {exc}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    done.flush_after_ms = flush_ms(parent)
    return done


def _fill(
    done: Round, start: Starter, folder: Path, plan: Plan, shapes: Sequence[Load], say: Callable[[str], None]
) -> None:
    started = time.monotonic()
    with start(folder) as running:
        prepare.create_topic(running.broker, TOPIC, 1)
        done.first_ack_s = time.monotonic() - started
        say(f"first acknowledged message after {done.first_ack_s:.2f} s")
        prepare.create_topic(running.broker, ROWS_TOPIC, QUEUES)
        time.sleep(plan.idle_wait_s)
        resident = server.memory(running.pid)
        done.idle_mb = sum(resident) / 1e6 if resident else None
        warm = run_load(_spec(running, WARM_SHAPE, 0.0, plan.warm_s))
        if warm.error:
            raise LoadFailed(f"while it was warmed: {warm.error}")
        _lay_far_backlogs(running, shapes)
        for shape in shapes:
            if isinstance(shape, DrainShape):
                outcome = _drain(done, running, shape, plan)
            else:
                outcome = run_load(_spec(running, shape, plan.row_warm_s, plan.row_s))
            done.outcomes[shape.name] = outcome
            if outcome.error:
                raise LoadFailed(f"{shape.name}: {outcome.error}")
            say(f"{shape.name}: {outcome.rate:,.0f} msg/s {outcome.why_void() or ''}".rstrip())


def _drain(done: Round, running: Running, shape: DrainShape, plan: Plan) -> Outcome:
    """Measure sends alone, then beside the drain; what the pulls reached goes into the round as well."""
    sends = _spec(running, shape.sends, plan.row_warm_s, plan.row_s)
    done.outcomes[shape.alone] = run_load(sends)
    lead_s = 0.5
    pulls = _spec(running, shape.pulls, lead_s, plan.row_warm_s + plan.row_s + lead_s)
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(run_load, pulls)
        time.sleep(lead_s)
        outcome = run_load(sends)
        done.outcomes[shape.drain] = drained.result()
    return outcome


def _lay_far_backlogs(running: Running, shapes: Sequence[Load]) -> None:
    """Store the backlogs that are to be read from far behind, and behind all of them messages of no interest."""
    pulls = [shape.pulls if isinstance(shape, DrainShape) else shape for shape in shapes]
    far = [shape for shape in pulls if isinstance(shape, PullShape) and shape.is_far]
    for shape in far:
        _backlog_of(running, shape)
    if far:
        prepare.create_topic(running.broker, FILLER_TOPIC, 1)
        prepare.fill(running.broker, FILLER_TOPIC, 1, FAR_BYTES // FILLER_BODY, FILLER_BODY)


def _backlog_of(running: Running, shape: PullShape) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return topic, first and next offsets of a shape's backlog, which is stored now if it is not there."""
    topic = f"{ROWS_TOPIC}-{shape.body_size}-{shape.queues}{'-far' if shape.is_far else ''}"
    return topic, *prepare.ensure_backlog(running.broker, topic, shape.queues, shape.backlog, shape.body_size)


def compare(
    starters: Mapping[str, Starter],
    parent: Path,
    plan: Plan,
    shapes: Sequence[Load],
    say: Callable[[str], None],
) -> dict[str, list[Round]]:
    """All rounds, alternating between the servers in the order given."""
    rounds: dict[str, list[Round]] = {name: [] for name in starters}
    for number in range(1, plan.rounds + 1):
        for name, start in starters.items():
            heading = f"{name}, round {number} of {plan.rounds}: "
            done = measure(start, parent, plan, shapes, partial(_say_under, heading, say))
            rounds[name].append(done)
    return rounds


def _say_under(heading: str, say: Callable[[str], None], text: str) -> None:
    say(heading + text)


def _spec(running: Running, shape: Shape | PullShape, warm_up_s: float, duration_s: float) -> RawSpec:
    if isinstance(shape, PullShape):
        topic, begin, end = _backlog_of(running, shape)
        return PullSpec(
            host=running.broker.host,
            port=running.broker.port,
            topic=topic,
            begin=begin,
            end=end,
            connections=shape.connections,
            max_messages=shape.max_messages,
            warm_up_s=warm_up_s,
            duration_s=duration_s,
            server_pid=running.pid,
        )
    return ProduceSpec(
        host=running.broker.host,
        port=running.broker.port,
        topic=ROWS_TOPIC,
        queues=QUEUES,
        connections=shape.connections,
        in_flight=shape.in_flight,
        body_size=shape.body_size,
        batch=shape.batch,
        rate=shape.rate,
        warm_up_s=warm_up_s,
        duration_s=duration_s,
        server_pid=running.pid,
    )


def as_table(rows: Sequence[Row], rounds: Mapping[str, Sequence[Round]], mode: Mode, plan: Plan) -> Table:
    probes = [
        f"{name} {one.flush_before_ms:.2f}/{one.flush_after_ms:.2f}"
        for name, done in rounds.items()
        for one in done
    ]
    table = Table(
        title=f"class {mode.safe_class} ({mode.role}, {mode.flush}), JSON headers, raw sender, "
        f"{os.cpu_count()} cores, median of {plan.rounds}",
        caption=f"fdatasync of 4 KiB before/after each round, ms: {', '.join(probes)}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("connections x in flight, body")
    table.add_column("unit")
    table.add_column(f"RocketMQ {VERSION}", justify="right")
    table.add_column("Ropewalk", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("target", justify="right")
    table.add_column("met")
    table.add_column("note", overflow="fold")
    for row in rows:
        met = {True: "yes", False: "NO", None: ""}[row.met]
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        note = row.note.replace("[", "\\[")
        table.add_row(
            row.name,
            row.unit,
            _figure(row.original),
            _figure(row.ropewalk),
            ratio,
            str(row.target),
            met,
            note,
        )
    return table


def as_document(
    rows: Sequence[Row], rounds: Mapping[str, Sequence[Round]], mode: Mode, plan: Plan
) -> dict[str, Any]:
    return {
        "class": mode.safe_class,
        "role": mode.role,
        "flush": mode.flush,
        "cores": os.cpu_count(),
        "plan": msgspec.to_builtins(plan),
        "rows": [
            {
                "name": row.name,
                "unit": row.unit,
                "original": row.original,
                "ropewalk": row.ropewalk,
                "ratio": row.ratio,
                "target": str(row.target),
                "met": row.met,
                "note": row.note,
            }
            for row in rows
        ],
        "rounds": {name: [msgspec.to_builtins(one) for one in done] for name, done in rounds.items()},
    }


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def choose(names: str | None) -> list[Load]:
    """The shapes of the sets that are named, and those whose names hold one of the other words, blanks aside.

    `names` is separated by commas; None are the spine's. Raises BadParameter for a word that means no row.
    """
    found: dict[Load, None] = {}
    for name in ("spine" if names is None else names).split(","):
        word = name.replace(" ", "")
        meant = SETS.get(word) or [
            shape
            for shapes in SETS.values()
            for shape in shapes
            if word and word in shape.name.replace(" ", "")
        ]
        if not meant:
            known = ", ".join([*SETS, *(shape.name for shapes in SETS.values() for shape in shapes)])
            raise typer.BadParameter(f"--rows {name!r} is in no row's name; there are {known}")
        found.update(dict.fromkeys(meant))
    return list(found)


def main(
    flush: Annotated[
        str,
        typer.Option(help="ASYNC_FLUSH (class A0, A1) or SYNC_FLUSH (class A2, A3: the slave flushes too)."),
    ] = "ASYNC_FLUSH",
    role: Annotated[
        str, typer.Option(help="ASYNC_MASTER (alone) or SYNC_MASTER (with a slave, inSyncReplicas=2).")
    ] = "ASYNC_MASTER",
    quick: Annotated[bool, typer.Option("--quick", help="One round with shorter rows.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds per server.")] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help='Only these rows, as in "1x1,4x32,fixed"; "spine" (the default), "store" and "backlog" are many.'
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(help="original or ropewalk: leave the other one out.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the stores go: on the disk that is to be measured.")
    ] = None,
    ropewalk_set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="More configuration for Ropewalk's broker.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
) -> None:
    """Compare Ropewalk with Apache RocketMQ. Exit status 1 when a target is missed or a server failed."""
    for value, known in ((flush, FLUSHES), (role, ROLES)):
        if value not in known:
            raise typer.BadParameter(f"{value} is none of {', '.join(known)}")
    if only not in (None, ORIGINAL, ROPEWALK):
        raise typer.BadParameter(f"{only} is neither {ORIGINAL} nor {ROPEWALK}")
    plan = QUICK if quick else THOROUGH
    if rounds is not None:
        plan = Plan(rounds, plan.warm_s, plan.row_warm_s, plan.row_s)
    shapes = choose(rows)
    mode = Mode(role, flush)
    starters = {ORIGINAL: start_original(mode), ROPEWALK: start_ropewalk(mode, ropewalk_set or ())}
    if only is not None:
        starters = {only: starters[only]}
    progress = Console(stderr=True, highlight=False)
    if os.getloadavg()[0] > 0.5:
        progress.print(f"this machine is already busy (load {os.getloadavg()[0]:.1f}): figures will be low")
    with tempfile.TemporaryDirectory(prefix="bench-rocketmq-", dir=data_dir) as parent:
        measured = compare(
            starters, Path(parent), plan, shapes, lambda text: progress.print(text, markup=False)
        )
    table = build_rows(measured, shapes, mode)
    if as_json:
        json.dump(as_document(table, measured, mode, plan), sys.stdout)
        sys.stdout.write("\n")
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(as_table(table, measured, mode, plan))
    failed = any(one.failure for done in measured.values() for one in done)
    if failed or any(row.met is False for row in table):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
