"""Copies that are compared by digests: every place that differs is in a block that is named, and no other block is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ropewalk.spark.jobs.audit import digest
from ropewalk.spark.jobs.audit.digest import (
    BadDigests,
    Digests,
    compare_digests,
    comparison_report,
    compute_digests,
    digests_report,
)
from ropewalk.spark.jobs.audit.job import CannotCompare
from ropewalk.spark.jobs.common.tasks import LocalTasks
from ropewalk.spark.jobs.records.log_files import open_store
from tests.spark.jobs.stores import SEGMENT_SIZE, fill, flip, replica_of

TASKS = LocalTasks()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "BLOCK", 4096)
    monkeypatch.setattr(digest, "_AT_ONCE", 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("digest") / "store"
    fill(root, 600)
    return root


def digests_of(root: Path) -> Digests:
    """As they arrive on the other machine."""
    return Digests.decode(compute_digests(TASKS, str(root)).encode(), "a.json")


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def test_every_flipped_bit_is_in_a_block_that_is_named(store: Path, tmp_path: Path) -> None:
    made = digests_of(store)
    assert (len(made.filled) > 3, made.begin, made.end) == (True, 0, made.filled[-1][1])
    assert digests_report(made, "a.json").summary["bytes"] == sum(end - base for base, end in made.filled)
    rng = random.Random(5)
    for number in range(12):
        copy = replica_of(store, tmp_path / str(number))
        # Not of a size, which would move where the segment's records end.
        base, end = rng.choice(made.filled)
        place = rng.randrange(base + 100, end)
        flip(segments(copy)[base // SEGMENT_SIZE], place - base)
        done = compare_digests(TASKS, str(copy), made)
        assert done.compared == len(made.digests)
        assert [each.start <= place < each.end for each in done.differences] == [True]
        assert max(each.end - each.start for each in done.differences) <= 4096
        assert comparison_report(done).exit_code == 1


def test_what_lies_behind_the_last_record_of_a_segment_is_every_copys_own(
    store: Path, tmp_path: Path
) -> None:
    made, copy = digests_of(store), replica_of(store, tmp_path / "copy")
    base, end = made.filled[0]
    assert end + 9 < SEGMENT_SIZE
    flip(segments(copy)[0], end - base + 8)
    report = comparison_report(compare_digests(TASKS, str(copy), made))
    assert (report.exit_code, report.summary["behind"]) == (0, None)


def test_the_copy_that_ends_early_is_named_whichever_side_it_is(store: Path, tmp_path: Path) -> None:
    longer = replica_of(store, tmp_path / "longer")
    fill(longer, 60, first=600)
    short, long_ = digests_of(store), digests_of(longer)
    for root, other in ((longer, short), (store, long_)):
        done = compare_digests(TASKS, str(root), other)
        assert not done.differences
        report = comparison_report(done)
        assert (report.exit_code, report.summary["behind"]) == (1, str(store))
        assert report.summary["behind_bytes"] == long_.end - short.end
        (finding,) = report.tables[1].rows
        assert finding[:3] == ("behind", short.end, long_.end)
    # Behind in a block: what both have of it cannot be told from the digest of all of it.
    assert 0 <= compare_digests(TASKS, str(store), long_).unchecked < 4096
    assert compare_digests(TASKS, str(longer), short).unchecked == 0


def test_a_segment_whose_records_end_elsewhere_differs_though_the_rest_is_equal(
    store: Path, tmp_path: Path
) -> None:
    made, copy = digests_of(store), replica_of(store, tmp_path / "copy")
    base, end = made.filled[1]
    shorter = Digests(
        made.store, made.segment_size, made.begin, made.end,
        tuple((first, last - 200 if first == base else last) for first, last in made.filled), (),
    )  # fmt: skip
    hashed = digest._hashed(TASKS, open_store(str(store)), shorter.blocks)
    other = Digests("other", made.segment_size, 0, made.end, shorter.filled, tuple(hashed))
    done = compare_digests(TASKS, str(copy), other)
    assert [(each.start, each.end) for each in done.differences] == [(end - 200, end)]
    assert done.differences[0].text == f"records that only {copy} has"


def test_segments_that_retention_took_on_one_side_are_not_compared(store: Path, tmp_path: Path) -> None:
    copy = replica_of(store, tmp_path / "copy")
    segments(copy)[0].unlink()
    done = compare_digests(TASKS, str(copy), digests_of(store))
    assert (done.own[1], done.differences) == (SEGMENT_SIZE, [])
    assert not compare_digests(TASKS, str(store), digests_of(copy)).differences


def test_what_holds_no_digests_of_a_copy_is_refused_by_name(store: Path, tmp_path: Path) -> None:
    made = digests_of(store)
    for data, text in (
        (b"{", "that `audit --digest` wrote"),
        (b"[]", "that `audit --digest` wrote"),
        (made.encode().replace(b'"v": 1', b'"v": 2'), "another version"),
        (made.encode().replace(made.digests[3].encode(), b"").replace(b'"", ', b""), "is cut short"),
    ):
        with pytest.raises(BadDigests, match=text):
            Digests.decode(data, "a.json")
    with pytest.raises(CannotCompare, match="not copies of one log"):
        compare_digests(TASKS, str(store), Digests("x", 1 << 20, 0, made.end, (), ()))
    with pytest.raises(CannotCompare, match="no part of the log is in both"):
        compare_digests(TASKS, str(store), Digests("x", SEGMENT_SIZE, 1 << 40, 1 << 41, (), ()))
