"""Offline tools and delayed messages: no file holds the delay table, so nothing is judged or changed by another one."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.format.names import SCHEDULE_TOPIC
from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from store.io.disk import Disk
from store.message_store import MessageStore
from store.offline.dry_run_disk import DryRunDisk
from store.offline.due_times import observed_levels
from store.offline.findings import Finding
from store.offline.layout import Layout, guess_layout
from store.offline.repair import repair
from store.offline.start_preview import recover_store
from store.offline.verify import Verification
from store.recovery.delay_levels import DEFAULT_DELAYS_MS, DelayLevels
from tests.store.worlds import HOST, put, settle
from tests.support.clocks import Clock
from tests.support.stores import config

TABLE = DelayLevels((7_000, 70_000, 700_000))
OTHER = DelayLevels((9_000, 90_000, 900_000))


def fill(root: Path, *tables: DelayLevels, kill: bool = False) -> None:
    """A broker that had these tables one after the other; 24 messages for each, of levels 1 to 3, among others."""
    clock = Clock()
    for table in tables:
        settings = replace(config(root), delay_levels=table)
        store = MessageStore(settings, Disk(), clock, lambda: None)
        store.open()
        for number in range(24):
            clock.ms += 1234
            store.begin_turn()
            level = number % 3 + 1
            queue = store.queue(SCHEDULE_TOPIC, level - 1)
            due = store.now + table.delay_ms(level)
            properties = f"DELAY\x01{level}\x02TAGS\x01x\x02".encode()
            store.put([(queue, b"later", properties, 0, 0, store.now, 0, 0, due)], HOST)
            store.publish()
            put(store, [b"now"])
        settle(store)
        if kill:
            shutil.copytree(root, root.with_name("killed"))
        store.close()


def due_times(root: Path) -> dict[tuple[str, int], int]:
    """The time of delivery of every delayed message, by queue and number."""
    found = {}
    for path in sorted((root / "consumequeue" / SCHEDULE_TOPIC).rglob("0*")):
        if not path.is_file():
            continue
        data, first = path.read_bytes(), int(path.name) // ENTRY_SIZE
        for number, (_offset, size, code) in enumerate(ENTRY.iter_unpack(data), first):
            if size:
                found[path.parent.name, number] = code
    return found


def layout_of(root: Path, levels: DelayLevels | None = None) -> Layout:
    return guess_layout(DryRunDisk(), Layout(root, root / "commitlog", delay_levels=levels))


def damages(root: Path, levels: DelayLevels | None = None) -> list[Finding]:
    verification = Verification(layout_of(root, levels), DryRunDisk())
    verification.run()
    return [finding for finding in verification.findings if finding.damage]


def drop_nothing(_root: Path) -> None:
    pass


def drop_queue_of_level_2(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / SCHEDULE_TOPIC / "1")


def zero_some_entries(root: Path) -> None:
    path = root / "consumequeue" / SCHEDULE_TOPIC / "1" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[2 * ENTRY_SIZE : 5 * ENTRY_SIZE] = bytes(3 * ENTRY_SIZE)
    path.write_bytes(data)


def test_another_table_than_the_usual_one_is_no_damage(tmp_path: Path) -> None:
    fill(tmp_path / "store", TABLE, OTHER)
    assert not damages(tmp_path / "store")


def test_a_table_that_was_given_is_judged_by(tmp_path: Path) -> None:
    fill(tmp_path / "store", TABLE)
    assert not damages(tmp_path / "store", TABLE)
    found = damages(tmp_path / "store", OTHER)
    assert found and all("time of delivery" in finding.text for finding in found)


def test_a_time_before_the_message_was_stored_is_damage_on_any_table(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, TABLE)
    path = root / "consumequeue" / SCHEDULE_TOPIC / "0" / ("0" * 20)
    path.write_bytes(path.read_bytes()[:12] + struct.pack(">q", 12345) + path.read_bytes()[20:])
    (found,) = damages(root)
    assert "time of delivery 12345, and its record says that it was stored at" in found.text


@pytest.mark.parametrize("drop", [drop_nothing, zero_some_entries])
def test_a_repair_changes_no_due_time(tmp_path: Path, drop: Callable[[Path], None]) -> None:
    root = tmp_path / "store"
    fill(root, TABLE)
    before = due_times(root)
    assert len(before) == 24
    drop(root)
    shutil.rmtree(root / "consumequeue" / "T")
    assert repair(layout_of(root), []).rebuilt
    assert due_times(root) == before
    assert not damages(root)
    assert not (root / "ropewalk" / "due-times").exists()


def test_due_times_of_two_tables_stay_as_they_were(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, TABLE, OTHER)
    before = due_times(root)
    assert repair(layout_of(root), []).rebuilt
    assert due_times(root) == before


def test_a_repair_that_is_interrupted_changes_no_due_time_when_it_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    fill(root, TABLE, OTHER)
    before = due_times(root)
    with monkeypatch.context() as broken, pytest.raises(InterruptedError):
        broken.setattr("store.offline.repair._restore_due_times", lambda _layout: _interrupt())
        repair(layout_of(root), [])
    assert due_times(root) != before
    assert repair(layout_of(root), []).rebuilt
    assert due_times(root) == before


def _interrupt() -> None:
    raise InterruptedError


def test_a_table_that_is_given_is_what_a_repair_goes_by(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, TABLE)
    wrong = due_times(root)
    assert repair(layout_of(root, OTHER), []).rebuilt
    assert all(due_times(root)[key] - wrong[key] in (2_000, 20_000, 200_000) for key in wrong)


def test_a_level_without_any_entry_gets_the_usual_delay(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, TABLE)
    before = due_times(root)
    drop_queue_of_level_2(root)
    assert repair(layout_of(root), []).rebuilt
    moved = {key: at - before[key] for key, at in due_times(root).items()}
    assert set(moved.values()) == {0, DEFAULT_DELAYS_MS[1] - 70_000}
    assert {key[0] for key, by in moved.items() if by} == {"1"}


@pytest.mark.parametrize("forget", [False, True])
def test_a_preview_or_a_start_by_hand_changes_no_due_time(tmp_path: Path, forget: bool) -> None:
    root = tmp_path / "store"
    fill(root, TABLE, kill=True)
    killed = tmp_path / "killed"
    if forget:  # then all queue files are built again
        (killed / "ropewalk" / "bound").unlink()
        (killed / "checkpoint").unlink(missing_ok=True)
    recover_store(layout_of(killed), cut=False)
    wanted = due_times(root)
    assert all(wanted[key] == at for key, at in due_times(killed).items())


def test_the_table_is_observed_level_by_level(tmp_path: Path) -> None:
    fill(tmp_path / "store", TABLE)
    seen = observed_levels(DryRunDisk(), layout_of(tmp_path / "store"))
    assert seen.delays_ms == TABLE.delays_ms + DEFAULT_DELAYS_MS[3:]
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    assert observed_levels(DryRunDisk(), layout_of(tmp_path / "empty")).delays_ms == DEFAULT_DELAYS_MS
