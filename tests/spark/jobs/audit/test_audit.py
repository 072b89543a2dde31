"""An audit names every fault that was planted, the side it is on and the side that can mend it, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.spark.jobs.audit.job import Audit, AuditOptions, CannotCompare, audit
from ropewalk.spark.jobs.common.tasks import LocalTasks, TaskFailed
from ropewalk.spark.jobs.records.findings import Finding, Kind
from tests.spark.jobs.faults import (
    NOBODY,
    SPREAD,
    WHOLE,
    Expected,
    Fault,
    Pair,
    encoded,
    in_body,
    in_field,
    missing_entries,
    rewritten_record,
)
from tests.spark.jobs.stores import SEGMENT_SIZE, fill, overwrite, replica_of, segment


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audit") / "store"
    fill(root, 1200)
    return root


@pytest.fixture
def pair(pristine: Path, tmp_path: Path) -> Pair:
    return Pair.of(replica_of(pristine, tmp_path / "a"), replica_of(pristine, tmp_path / "b"))


def look(*roots: Path, **options: int) -> Audit:
    return audit(LocalTasks(), AuditOptions(tuple(map(str, roots)), **options))  # type: ignore[arg-type]


def summary(findings: list[Finding]) -> list[tuple[str, int, int, int]]:
    return sorted((f.kind.value, f.side, f.start, f.repair_from) for f in findings)


def wanted(expected: list[Expected]) -> list[tuple[str, int, int, int]]:
    return sorted(
        (e.kind.value, e.side, e.offset, -1 if e.repair_from is None else e.repair_from) for e in expected
    )


def test_two_equal_replicas_have_no_findings_and_everything_was_looked_at(pair: Pair) -> None:
    found = look(pair.a, pair.b)
    assert not found.findings
    assert found.records == found.entries == (1200, 1200)
    assert found.blocks == 2 * sum(-(-s.size // 4096) for s in found.stores[0].segments[:-1]) + 2 * -(
        -(found.ends[0] % SEGMENT_SIZE) // 4096
    )
    assert found.index_items > 2000


@pytest.mark.parametrize(("name", "fault"), SPREAD, ids=[name for name, _fault in SPREAD])
def test_a_planted_fault_is_found_with_its_side_and_nothing_else(pair: Pair, name: str, fault: Fault) -> None:
    expected = fault(pair, 500)
    found = look(pair.a, pair.b)
    assert summary(found.findings) == wanted([expected]), [str(f) for f in found.findings]


@pytest.mark.parametrize(("name", "fault"), WHOLE, ids=[name for name, _fault in WHOLE])
def test_a_store_changed_as_a_whole_is_found_out(
    pair: Pair, name: str, fault: Callable[[Pair], Expected]
) -> None:
    expected = fault(pair)
    found = look(pair.a, pair.b)
    damage = [finding for finding in found.findings if finding.is_damage]
    assert summary(damage) == wanted([expected]), [str(f) for f in found.findings]


@pytest.mark.parametrize("piece_size", [1 << 20, 5000])
def test_thirty_faults_at_once_are_told_apart(pair: Pair, piece_size: int) -> None:
    places = range(60, 60 + 35 * len(SPREAD), 35)
    assert len(SPREAD) == 30
    expected = [fault(pair, n) for n, (_name, fault) in zip(places, SPREAD, strict=True)]
    found = look(pair.a, pair.b, piece_size=piece_size)
    assert summary(found.findings) == wanted(expected)


@pytest.mark.parametrize("seed", range(40 if os.environ.get("ROPEWALK_LONG") == "1" else 2))
def test_thirty_faults_in_any_order_are_told_apart(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    faults = rng.sample(SPREAD, len(SPREAD))
    expected = [fault(pair, 60 + 35 * at + rng.randrange(10)) for at, (_name, fault) in enumerate(faults)]
    assert summary(look(pair.a, pair.b, piece_size=9000).findings) == wanted(expected)


def test_each_gap_of_a_queue_is_told(pair: Pair) -> None:
    first = pair.records[20]
    of_queue = [
        n for n, r in enumerate(pair.records) if (r.topic, r.queue_id) == (first.topic, first.queue_id)
    ]
    at = of_queue.index(20)
    assert pair.records[of_queue[at + 4]].offset < SEGMENT_SIZE  # all of them in one piece of work
    expected = [missing_entries(1)(pair, 20), missing_entries(2)(pair, of_queue[at + 3])]
    assert summary(look(pair.a, pair.b).findings) == wanted(expected)


def test_without_checksums_beside_the_log_what_can_be_told_is_told(pair: Pair) -> None:
    for root in (pair.a, pair.b):
        shutil.rmtree(root / "ropewalk" / "checksums")
    sure = [
        in_body(0.5, 4)(pair, 100),
        in_field(3)(pair, 200),
        in_field(27)(pair, 300),
        in_field(59)(pair, 400),
    ]
    born = in_field(45)(pair, 500)
    both = [Expected(born.kind, NOBODY, born.offset)]
    rewritten = rewritten_record(pair, 600)
    parted = [Expected(rewritten.kind, NOBODY, rewritten.offset)]
    assert summary(look(pair.a, pair.b).findings) == wanted(sure + both + parted)


def test_a_third_copy_decides_what_two_cannot(pair: Pair, pristine: Path, tmp_path: Path) -> None:
    third = replica_of(pristine, tmp_path / "c")
    for root in (pair.a, pair.b, third):
        shutil.rmtree(root / "ropewalk" / "checksums")
    expected = in_field(45)(pair, 500)
    assert summary(look(pair.a, pair.b, third).findings) == wanted([expected])
    assert summary(look(pair.b, pair.a, third).findings) == wanted(
        [Expected(expected.kind, 0, expected.offset, 1)]
    )


def test_the_same_damage_on_both_sides_is_nobodys_to_mend(pair: Pair) -> None:
    for side in (0, 1):
        in_body(0.5, 1, side)(pair, 50)
    offset = pair.records[50].offset
    found = summary(look(pair.a, pair.b).findings)
    assert found == [("bit-rot", 0, offset, -1), ("bit-rot", 1, offset, -1)]


def test_one_store_alone_is_judged_by_its_own_checksums(pair: Pair) -> None:
    in_body(0.5, 1)(pair, 50)
    in_field(45)(pair, 500)
    found = look(pair.b).findings
    assert [(f.kind, f.repair_from) for f in found] == [(Kind.BIT_ROT, -1)] * 2
    assert found[0].start == pair.records[50].offset
    assert found[1].start <= pair.records[500].offset < found[1].end
    # From within one segment to within the next but one: no piece of the log sees both ends of it.
    first, last = (next(r.offset for r in pair.records if r.offset > n * SEGMENT_SIZE + 9000) for n in (2, 4))
    pair.write(1, first, bytes(3 * SEGMENT_SIZE - first))
    pair.write(1, 3 * SEGMENT_SIZE, bytes(SEGMENT_SIZE))
    pair.write(1, 4 * SEGMENT_SIZE, bytes(last - 4 * SEGMENT_SIZE))
    shutil.rmtree(pair.b / "ropewalk" / "checksums")
    found = look(pair.b).findings[1:]
    assert [(f.kind, f.start, f.end) for f in found] == [
        (Kind.FOREIGN_BYTES, first, 4 * SEGMENT_SIZE),
        (Kind.FOREIGN_BYTES, 4 * SEGMENT_SIZE, last),
    ]


def test_a_replica_that_lags_is_behind_and_not_damaged(pristine: Path, tmp_path: Path) -> None:
    replica = replica_of(pristine, tmp_path / "b")
    ahead = replica_of(pristine, tmp_path / "a")
    fill(ahead, 80, first=1200, seed=9)
    found = look(ahead, replica)
    assert [(f.kind, f.side, f.repair_from) for f in found.findings] == [(Kind.BEHIND, 1, 0)]
    assert found.findings[0].start == found.ends[1] < found.ends[0]


def test_a_torn_tail_is_told_and_is_no_damage(pair: Pair) -> None:
    end = look(pair.a).ends[0]
    record = pair.records[-1]
    for root in (pair.a, pair.b):
        shutil.rmtree(root / "ropewalk" / "checksums")
    path, position = pair.place(1, end)
    record.offset = end
    overwrite(path, position, encoded(record, record.body)[:60])
    found = look(pair.a, pair.b).findings
    assert [(f.kind, f.side, f.start, f.is_damage) for f in found] == [(Kind.TORN_TAIL, 1, end, False)]


def test_a_killed_store_is_judged_as_far_as_its_queues_vouch(pair: Pair) -> None:
    """Records without an entry at the end of a store that was killed are not written yet, and no finding."""
    (pair.b / "abort").touch()
    last = pair.records[-1]
    pair.set_entry(1, last, bytes(20))
    found = look(pair.a, pair.b).findings
    assert [(f.kind, f.side, f.start) for f in found] == [(Kind.BEHIND, 1, last.offset)]


def test_what_is_no_store_is_refused_by_name(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match=r"no store directory.*nowhere"):
        look(pair.a, tmp_path / "nowhere")


def test_stores_without_a_common_part_are_refused(pair: Pair) -> None:
    first = segment(pair.b)
    for path in list(first.parent.iterdir()):
        path.rename(path.with_name(f"{int(path.name) + 100 * SEGMENT_SIZE:020d}"))
    with pytest.raises(CannotCompare, match="nothing in common"):
        look(pair.a, pair.b)
