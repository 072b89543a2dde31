"""Three real brokers of a DLedger group, killed and traced: no SEND_OK before a quorum has synced, and none lost."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from tests.crash.campaign import chosen_seed
from tests.crash.ledger_group import SEGMENT_SIZE, LedgerGroup
from tests.crash.ledger_load import Sender, read
from tests.crash.ledger_losses import lose_leaders
from tests.crash.load import Ledger, Producer
from tests.crash.quorum_trace import judge_quorum
from tests.crash.trace import STRACE_OPTIONS, read_calls
from tests.crash.tracing import wait_for_tracer
from tests.support import waiting
from tools.drill.testbed import damage
from tools.drill.testbed.group import CannotRun

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def test_no_send_ok_leaves_before_the_leaders_sync_and_a_followers_answer(
    tmp_path: Path, need_program: Callable[[str], str], long_run: bool
) -> None:
    trace, requests = tmp_path / "trace.txt", 1_000 if long_run else 100
    tracer = [need_program("strace"), *STRACE_OPTIONS, "-o", str(trace)]
    ledger = Ledger()
    with LedgerGroup(tmp_path, tracer=tracer, settings={"preferredLeaderId": "n0"}) as group:
        traced = group.members[0]
        if group.leader() is not traced:  # it was late: let it have its turn
            for member in group.members[1:]:
                member.kill()
                member.start()
            group.leader([traced])
        topics = ["traced-0", "traced-1"]
        producers = [
            Producer(traced.address, ledger, f"T{window}", topics, window, window=window, limit=requests)
            for window in (1, 4, 16)
        ]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join(90)
            assert not producer.is_alive(), f"{producer.name} hangs"
        traced.signal(signal.SIGTERM)
        traced.process.wait(30)
    wait_for_tracer(trace, traced.process.pid)
    assert not ledger.troubles, ledger.troubles
    with trace.open() as lines:
        verdict = judge_quorum(list(read_calls(lines)), SEGMENT_SIZE)
    assert not verdict.early, verdict.early[:5]
    assert not verdict.own_disk.early, verdict.own_disk.early[:5]
    assert verdict.replies == verdict.own_disk.replies == 3 * requests
    assert verdict.answers > 50 and verdict.own_disk.flushes > 50


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something has come true."""
    waiting.until(condition, what, pause_s=0.1)


def test_leader_after_leader_is_killed_or_stopped_and_no_acknowledged_message_is_lost_or_differs(
    tmp_path: Path, long_run: bool
) -> None:
    kills, stops = (100, 50) if long_run else (2, 2)
    with LedgerGroup(tmp_path) as group:
        verdict = lose_leaders(group, kills, stops, random.Random(chosen_seed()), lambda words: None)
    assert not verdict.faults, verdict
    assert verdict.acknowledged > 50, verdict


def test_all_members_are_killed_at_once_and_no_acknowledged_message_is_lost(tmp_path: Path) -> None:
    with LedgerGroup(tmp_path) as group:
        sender = Sender(group)
        sender.send(group.leader(), time.monotonic() + 1.0)
        for member in group.members:
            member.kill()
        for member in group.members:
            member.launch()
        for member in group.members:
            member.wait()
        leader = group.leader()
        assert set(sender.acknowledged) <= set(read(leader))
        sender.send(leader, time.monotonic() + 0.3)
        assert sender.acknowledged[-1] in read(leader)


def test_a_leader_on_a_full_disk_hands_over_lives_on_and_follows_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "n0").mkdir()
    with ExitStack() as stack:
        try:
            stack.enter_context(damage.small_disk(tmp_path / "n0", damage.DISK_BYTES))
        except CannotRun as exc:
            pytest.skip(str(exc))
        settings: dict[str, str | int] = {"preferredLeaderId": "n0", "cleanFileForciblyEnable": "false"}
        group = stack.enter_context(LedgerGroup(tmp_path, settings=settings))
        full = group.members[0]
        wait_until(lambda: group.leader() is full, "n0 leads")
        sender = Sender(group, bytes(30_000))
        sender.send(full, time.monotonic() + 0.2)
        ballast = damage.fill(full.store)
        sender.send(full, time.monotonic() + 6.0)
        leader = group.leader(group.members[1:])
        before = len(sender.acknowledged)
        assert before < 6 * SEGMENT_SIZE / 30_000, "it had no room for more"
        sender.send_to_leader_while(lambda: len(sender.acknowledged) < before + 5, group.members[1:])
        assert full.process.poll() is None, full.errors.read_text()[-3000:]
        wait_until(lambda: any(each.id == "n0" and each.stuck for each in group.status()), "it says so")
        assert "no room on the disk for the log" in full.errors.read_text()
        ballast.remove()
        wait_until(lambda: read(full) == read(leader), "it catches up")
        wait_until(lambda: group.leader() is full, "it is the preferred leader, and leads again")
        assert set(sender.acknowledged) <= set(read(full))


def test_a_follower_on_a_full_disk_lives_on_and_catches_up_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "n0").mkdir()
    with ExitStack() as stack:
        try:
            stack.enter_context(damage.small_disk(tmp_path / "n0", damage.DISK_BYTES))
        except CannotRun as exc:
            pytest.skip(str(exc))
        settings: dict[str, str | int] = {"preferredLeaderId": "n1", "cleanFileForciblyEnable": "false"}
        group = stack.enter_context(LedgerGroup(tmp_path, settings=settings))
        full, leader, other = group.members
        wait_until(lambda: group.leader() is leader, "n1 leads")
        sender = Sender(group, bytes(30_000))
        ballast = damage.fill(full.store)

        def is_stuck_behind_what_it_shows() -> bool:
            found = {each.id: each for each in group.status()}
            return len(found) == 3 and bool(found["n0"].stuck) and 0 < found["n0"].shown < found["n1"].shown

        waiting.until(
            is_stuck_behind_what_it_shows, lambda: str(group.status()),
            turn=lambda: sender.send(leader, time.monotonic() + 1.0),
        )  # fmt: skip
        assert full.process.poll() is None, full.errors.read_text()[-3000:]
        leader.kill()
        ballast.remove()
        sender.send(group.leader([full, other]), time.monotonic() + 0.3)
        wait_until(lambda: read(full) == read(other), "it catches up")
        assert set(sender.acknowledged) <= set(read(full))


def test_a_wiped_member_is_refused_in_words_and_is_let_in_with_a_copy_of_another_ones_store(
    tmp_path: Path,
) -> None:
    with LedgerGroup(tmp_path, settings={"preferredLeaderId": "n0"}) as group:
        sender = Sender(group)
        sender.send(group.leader(), time.monotonic() + 0.5)
        first, second, wiped = group.members
        wiped.kill()
        shutil.rmtree(wiped.store)
        wiped.start()
        until = time.monotonic() + 60
        while "n2 came back with an empty store" not in first.errors.read_text() + second.errors.read_text():
            assert time.monotonic() < until, "nobody says why it is refused"
            time.sleep(0.1)
        sender.send(group.leader([first, second]), time.monotonic() + 0.3)
        wiped.kill()
        second.kill()
        shutil.rmtree(wiped.store)
        shutil.copytree(second.store, wiped.store)
        (wiped.store / "dledger-n1").rename(wiped.store / "dledger-n2")
        (wiped.store / "ropewalk" / "dledger" / "identity").unlink()
        second.start()
        wiped.start()
        leader = group.leader([first, second])
        with Admin(group.name_server, timeout=5.0) as admin:
            assert admin.readmit("broker-a", "n2") == {"n0": "", "n1": ""}
        sender.send(leader, time.monotonic() + 0.5)
        until = time.monotonic() + 60
        while read(wiped) != read(leader):
            assert time.monotonic() < until, "it does not catch up"
            time.sleep(0.1)
        assert set(sender.acknowledged) <= set(read(wiped))
