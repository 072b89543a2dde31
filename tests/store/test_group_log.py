"""The log of a store in DLedger mode: how much of it counts as flushed, and what a lagging member is sent of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.format.dledger.snapshot import decode_member_snapshot
from store.io.disk import Disk
from store.message_store import MessageStore
from tests.support.clocks import Clock
from tests.support.stores import config, fill_ledger

COMMITTED = 20


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    fill_ledger(tmp_path, committed=COMMITTED)
    wanted = replace(
        config(tmp_path), log_directory=tmp_path / "dledger-n0" / "data", ledger=tmp_path / "dledger-n0"
    )
    store = MessageStore(wanted, Disk(), Clock(), lambda: None)
    store.open()
    return store


def test_it_counts_as_flushed_only_as_far_as_it_is_shown(store: MessageStore) -> None:
    group, entries, replica = store.group_log, store.entry_log, store.replica
    assert group is not None and entries is not None and replica is not None
    assert group.host.flushed_offset == store.log.end_offset > entries.commit[2] == store.log.flushed_offset
    while replica.show_through(*entries.end) != entries.end:
        pass
    assert store.log.flushed_offset == store.log.end_offset == store.readable_offset
    store.close()


def test_what_was_counted_as_flushed_is_never_taken_back(store: MessageStore) -> None:
    group = store.group_log
    assert group is not None
    before = store.log.flushed_offset
    group.claim_flushed(before - 1)
    assert store.log.flushed_offset == before
    store.close()


def test_a_snapshot_has_the_first_entry_and_the_tables(store: MessageStore) -> None:
    group = store.group_log
    assert group is not None
    made = group.make_snapshot(COMMITTED, b"tables")
    assert made is not None
    point, data = made
    found = decode_member_snapshot(data)
    assert point[0] == 0 and found.state_index == COMMITTED and found.state == b"tables"
    assert found.entry == bytes(store.log.segments[0].map[: point[2]]) and not found.queues
    store.close()
