"""The comparison judges what it measured: medians, voided rounds, targets, and who waits for the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import typer
from rich.console import Console

from ropewalk.client.core.addresses import Address
from tests.bench import responder
from tests.bench.flush_probe import flush_ms
from tests.bench.peers.rocketmq.compare import (
    FLUSHES,
    ROLES,
    Plan,
    as_document,
    as_table,
    choose,
    compare,
)
from tests.bench.peers.rocketmq.rows import (
    LEDGER_ROLE,
    SHAPES,
    STORE_SHAPES,
    DrainShape,
    Load,
    Mode,
    PullShape,
    Round,
    Row,
    Shape,
    Target,
    build_rows,
)
from tests.bench.peers.rocketmq.servers import Running, start_ropewalk
from tools.bench.spec import Latency, Outcome

BULK = Shape("4 x 32, 1 KiB", 4, 32, 1024)
FIXED = Shape("fixed 10k/s, 1 KiB", 4, 1, 1024, 10_000.0)
ASYNC = Mode()


def outcome(rate: float = 1000.0, p99_us: int = 900, refused: int = 0) -> Outcome:
    return Outcome(
        messages=int(rate),
        seconds=1.0,
        refused={"2": refused} if refused else {},
        latency=Latency(p50=p99_us // 3, p99=p99_us, p999=p99_us, max=p99_us),
    )


def rounds(*outcomes: Outcome, shape: Load = BULK, probe_ms: float = 0.0) -> list[Round]:
    return [
        Round(0.5, 60.0, {shape.name: one}, flush_before_ms=probe_ms, flush_after_ms=probe_ms)
        for one in outcomes
    ]


def named(rows: list[Row], name: str) -> Row:
    return next(row for row in rows if row.name == name)


def test_a_figure_is_the_median_of_its_valid_rounds() -> None:
    measured = {
        "original": rounds(outcome(30_000), outcome(90_000, refused=7), outcome(40_000)),
        "ropewalk": rounds(outcome(150_000), outcome(110_000), outcome(120_000)),
    }
    row = named(build_rows(measured, [BULK], ASYNC), BULK.name)
    assert (row.original, row.ropewalk) == (35_000, 120_000)
    assert row.ratio == pytest.approx(120 / 35)
    assert row.met is True
    assert row.note == "original: 1 of 3 void: 7 replies with code 2"


def test_a_row_of_void_rounds_has_no_figure_and_meets_nothing() -> None:
    measured = {"original": rounds(outcome()), "ropewalk": rounds(outcome(900_000, refused=1))}
    row = named(build_rows(measured, [BULK], ASYNC), BULK.name)
    assert (row.ropewalk, row.ratio, row.met) == (None, None, False)


def test_twice_the_rate_is_not_enough_without_the_figure() -> None:
    measured = {"original": rounds(outcome(1_000)), "ropewalk": rounds(outcome(9_000))}
    row = named(build_rows(measured, [BULK], ASYNC), BULK.name)
    assert str(row.target) == ">= 3x, >= 100,000"
    assert row.met is False


def test_a_lower_latency_is_the_better_one() -> None:
    measured = {
        "original": rounds(outcome(p99_us=20_000), shape=FIXED),
        "ropewalk": rounds(outcome(p99_us=5_000), shape=FIXED),
    }
    rows = build_rows(measured, [FIXED], ASYNC)
    p99 = named(rows, "fixed 10k/s, 1 KiB: p99")
    assert (p99.original, p99.ropewalk, p99.met) == (20.0, 5.0, True)
    assert named(rows, "fixed 10k/s, 1 KiB: p50").met is None
    assert named(rows, "start to first acknowledged").met is True
    assert named(rows, "idle memory").met is True


def test_an_unasked_target_is_neither_met_nor_missed() -> None:
    assert Target().is_met(9.0, 9.0) is None
    assert str(Target()) == "-"
    assert Target(figure=1.0, more_is_better=False).is_met(None, None) is False


def test_a_row_whose_median_is_mostly_the_disk_says_so_under_sync_flush_only() -> None:
    slow_disk = {"ropewalk": rounds(outcome(p99_us=3000), probe_ms=0.7)}
    assert (
        named(build_rows(slow_disk, [BULK], Mode(flush="SYNC_FLUSH")), BULK.name).note
        == "ropewalk flush-bound"
    )
    assert named(build_rows(slow_disk, [BULK], ASYNC), BULK.name).note == ""
    quick_disk = {"ropewalk": rounds(outcome(p99_us=3000), probe_ms=0.5)}
    assert named(build_rows(quick_disk, [BULK], Mode(flush="SYNC_FLUSH")), BULK.name).note == ""


def test_every_target_belongs_to_a_row() -> None:
    rows = build_rows({"original": [], "ropewalk": []}, SHAPES, ASYNC)
    assert len([row for row in rows if str(row.target) != "-"]) == 8
    replicated = build_rows({"original": [], "ropewalk": []}, SHAPES, Mode("SYNC_MASTER"))
    assert {row.name: str(row.target) for row in replicated if row.met is not None} == {
        "1 x 1, 128 B": ">= 2x",
        "1 x 64, 128 B": ">= 3x",
        "32 x 1, 1 KiB": ">= 2x",
        "4 x 256, 128 B": ">= 3x",
    }


def test_the_rows_of_the_store_are_judged_by_class() -> None:
    asked = {
        flush: {
            row.name: str(row.target)
            for row in build_rows(
                {"original": [], "ropewalk": []}, choose("1x1,32x1,256,store"), Mode(flush=flush)
            )
            if row.met is not None
        }
        for flush in FLUSHES
    }
    assert asked["SYNC_FLUSH"] == {
        "1 x 1, 128 B": ">= 2x",
        "32 x 1, 1 KiB": ">= 2x",
        "4 x 256, 128 B": ">= 3x, >= 110,000",
        "4 x 256, 1 KiB": ">= 3x",
        "4 x 8, batches of 32 x 128 B": ">= 1x",
        "4 pulls of 32, 1 KiB": ">= 1.3x",
        "4 pulls of 32, 128 B": ">= 1.3x",
    }
    assert {name: target for name, target in asked["ASYNC_FLUSH"].items() if target == ">= 1.3x"}.keys() == {
        "4 pulls of 32, 1 KiB",
        "4 pulls of 32, 128 B",
        "4 x 8, 64 KiB",
    }


def test_large_bodies_are_told_in_bytes() -> None:
    shape = Shape("4 x 8, 64 KiB", 4, 8, 65_536, in_bytes=True)
    done = Outcome(messages=5000, seconds=2.0, body_bytes=5000 * 65_536)
    measured = {"original": rounds(done, shape=shape), "ropewalk": rounds(done, outcome(), shape=shape)}
    row = named(build_rows(measured, [shape], Mode(flush="SYNC_FLUSH")), shape.name)
    assert row.unit == "MB/s"
    assert row.original == pytest.approx(163.84)


def test_rows_are_chosen_by_set_or_by_part_of_their_name() -> None:
    assert choose(None) == choose("spine") == list(SHAPES)
    assert choose("store") == list(STORE_SHAPES)
    assert [shape.name for shape in choose("4x256,pulls,4x256")] == [
        "4 x 256, 128 B",
        "4 x 256, 1 KiB",
        "4 pulls of 32, 1 KiB",
        "4 pulls of 32, 128 B",
    ]
    for unknown in ("5x5", "spine,", "stores"):
        with pytest.raises(typer.BadParameter, match="4 x 32, 1 KiB"):
            choose(unknown)


def test_batches_and_pulls_are_loads_like_any_other(tmp_path: Path) -> None:
    shapes: list[Load] = [Shape("batches", 2, 2, 128, batch=8), PullShape("pulls", 2, 4, 100, 30)]
    plan = Plan(rounds=1, warm_s=0.05, row_warm_s=0.05, row_s=0.2, idle_wait_s=0.0)
    told: list[str] = []
    measured = compare({"ropewalk": start_ropewalk(Mode())}, tmp_path, plan, shapes, told.append)
    assert measured["ropewalk"][0].failure is None, told
    done = measured["ropewalk"][0].outcomes
    assert done["batches"].messages == 8 * done["batches"].replies
    assert 1 < done["pulls"].messages / done["pulls"].replies <= 4
    assert all(row.ropewalk for row in build_rows(measured, shapes, ASYNC))


def test_a_backlog_is_read_in_the_window_and_far_behind_it_and_beside_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.peers.rocketmq.compare.FAR_BYTES", 1 << 20)
    far = PullShape("far", 2, 4, 100, 30, queues=3, is_far=True)
    drain = DrainShape("drain", Shape("sends", 2, 2, 128), far)
    shapes: list[Load] = [far, PullShape("near", 2, 4, 100, 30, queues=8), drain]
    plan = Plan(rounds=1, warm_s=0.05, row_warm_s=0.05, row_s=0.2, idle_wait_s=0.0)
    told: list[str] = []
    measured = compare({"ropewalk": start_ropewalk(Mode())}, tmp_path, plan, shapes, told.append)
    assert measured["ropewalk"][0].failure is None, told
    rows = build_rows(measured, shapes, ASYNC)
    assert [row.name for row in rows[:4]] == ["far", "near", "drain: kept", "drain: drained"]
    assert all(row.ropewalk for row in rows)


def test_the_rows_of_a_backlog_are_judged_each() -> None:
    rows = build_rows({"original": [], "ropewalk": []}, choose("backlog"), ASYNC)
    targets = {row.name: str(row.target) for row in rows if row.met is not None}
    assert len([name for name, target in targets.items() if target == ">= 1.5x"]) == 8
    assert targets["backlog in 8 queues, 1 KiB, far behind"] == ">= 1.5x"
    assert targets["sends beside a drain, 1 KiB: kept"] == ">= 80"


def test_what_sends_keep_beside_a_drain_is_told_in_percent_of_what_they_have_alone() -> None:
    shape = DrainShape("drain", BULK, PullShape("far", 2, 4, 100, 30, is_far=True))
    names = {shape.alone: outcome(2000), shape.name: outcome(1500), shape.drain: outcome(70_000)}
    rows = build_rows({"ropewalk": [Round(0.5, 60.0, names)]}, [shape], ASYNC)
    assert named(rows, "drain: kept").ropewalk == 75.0
    assert named(rows, "drain: drained").ropewalk == 70_000


def test_a_mode_names_the_class_of_its_promise() -> None:
    modes = [Mode(role, flush) for flush in FLUSHES for role in ROLES if role != LEDGER_ROLE]
    assert [mode.safe_class for mode in modes] == ["A0", "A1", "A2", "A3"]
    assert {Mode(LEDGER_ROLE, flush).safe_class for flush in FLUSHES} == {"D"}


def test_one_server_alone_is_not_judged() -> None:
    rows = build_rows({"original": rounds(outcome())}, SHAPES, ASYNC)
    assert {row.met for row in rows} == {None}


@contextmanager
def trivial_server(folder: Path) -> Iterator[Running]:
    with subprocess.Popen(
        [sys.executable, responder.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield Running(Address("127.0.0.1", int(process.stdout.readline())), process.pid)
        process.stdin.close()


def test_servers_take_turns_and_leave_nothing_behind(tmp_path: Path) -> None:
    shapes = [Shape("1 x 1, 128 B", 1, 1, 128), Shape("fixed 10k/s, 1 KiB", 2, 1, 1024, 200.0)]
    plan = Plan(rounds=2, warm_s=0.05, row_warm_s=0.05, row_s=0.1, idle_wait_s=0.0)
    told: list[str] = []
    starters = {"original": trivial_server, "ropewalk": trivial_server}
    measured = compare(starters, tmp_path, plan, shapes, told.append)
    assert [line.split(":")[0] for line in told if "first acknowledged" in line] == [
        "original, round 1 of 2",
        "ropewalk, round 1 of 2",
        "original, round 2 of 2",
        "ropewalk, round 2 of 2",
    ]
    rows = build_rows(measured, shapes, ASYNC)
    assert all(row.original and row.ropewalk for row in rows)
    assert not list(tmp_path.iterdir())
    document = json.loads(json.dumps(as_document(rows, measured, ASYNC, plan)))
    assert document["class"] == "A0"
    assert len(document["rounds"]["ropewalk"]) == 2
    console = Console(width=160)
    with console.capture() as printed:
        console.print(as_table(rows, measured, ASYNC, plan))
    assert "start to first acknowledged" in printed.get()


def test_a_server_that_fails_costs_the_other_one_nothing(tmp_path: Path) -> None:
    def broken_server(folder: Path) -> AbstractContextManager[Running]:
        raise AssertionError("no ready line")

    told: list[str] = []
    plan = Plan(rounds=1, warm_s=0.05, row_warm_s=0.0, row_s=0.1, idle_wait_s=0.0)
    starters = {"original": trivial_server, "ropewalk": broken_server}
    measured = compare(starters, tmp_path, plan, [BULK], told.append)
    assert measured["ropewalk"][0].failure == "no ready line"
    row = named(build_rows(measured, [BULK], ASYNC), BULK.name)
    assert row.original
    assert (row.ropewalk, row.met) == (None, False)


def test_the_flush_probe_takes_a_time(tmp_path: Path) -> None:
    assert flush_ms(tmp_path, count=3) > 0
