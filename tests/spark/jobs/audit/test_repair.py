"""A repaired copy is the store as it was before somebody damaged it, and the damaged one is left as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.spark.jobs.audit.job import Audit, AuditOptions, audit
from ropewalk.spark.jobs.audit.repair import CannotRepair, Repaired, repair
from ropewalk.spark.jobs.common.tasks import LocalTasks, TaskFailed
from tests.spark.jobs.faults import SPREAD, WHOLE, Expected, Pair, in_body
from tests.spark.jobs.stores import fill, replica_of


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repair") / "store"
    fill(root, 1200)
    return root


@pytest.fixture
def pair(pristine: Path, tmp_path: Path) -> Pair:
    return Pair.of(replica_of(pristine, tmp_path / "a"), replica_of(pristine, tmp_path / "b"))


def look(*roots: Path) -> Audit:
    return audit(LocalTasks(), AuditOptions(tuple(map(str, roots))))


def mended(pair: Pair, out: Path) -> list[Repaired]:
    return repair(LocalTasks(), look(pair.a, pair.b), str(out))


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.name != "lock"
    }


def test_thirty_faults_are_mended_to_the_byte(pair: Pair, pristine: Path, tmp_path: Path) -> None:
    for at, (_name, fault) in enumerate(SPREAD):
        fault(pair, 60 + 35 * at)
    before = contents(pair.a), contents(pair.b)
    done = mended(pair, tmp_path / "out")
    assert [each.side for each in done] == [0, 1]
    assert all(contents(Path(each.path)) == contents(pristine) for each in done)
    assert not look(*(Path(each.path) for each in done)).findings
    assert (contents(pair.a), contents(pair.b)) == before


@pytest.mark.parametrize(("name", "fault"), WHOLE, ids=[name for name, _fault in WHOLE])
def test_a_store_changed_as_a_whole_is_mended(
    pair: Pair, pristine: Path, tmp_path: Path, name: str, fault: Callable[[Pair], Expected]
) -> None:
    fault(pair)
    (done,) = mended(pair, tmp_path / "out")
    mended_files, wanted = contents(Path(done.path)), contents(pristine)
    assert {n: d for n, d in mended_files.items() if not n.startswith("ropewalk/")} == {
        n: d for n, d in wanted.items() if not n.startswith("ropewalk/")
    }
    assert not look(pair.a, Path(done.path)).findings


def test_nothing_is_copied_where_nothing_can_be_mended(pair: Pair, tmp_path: Path) -> None:
    assert mended(pair, tmp_path / "out") == []
    for side in (0, 1):
        in_body(0.5, 1, side)(pair, 50)
    assert mended(pair, tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_a_source_is_never_written_to(pair: Pair, tmp_path: Path) -> None:
    in_body(0.5, 1)(pair, 50)
    with pytest.raises(CannotRepair, match="never writes into a store"):
        mended(pair, pair.a / "inside")
    target = tmp_path / "out" / "copy-1-of-b"
    target.mkdir(parents=True)
    (target / "something").touch()
    with pytest.raises(TaskFailed, match="not empty"):
        mended(pair, tmp_path / "out")
