"""Members that come and go under load, with members that are killed: real processes, and a producer that counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from tests.crash.ledger_group import LedgerGroup, Member
from tests.crash.ledger_load import Sender, read
from tests.crash.test_dledger import wait_until
from tools.drill.reading import compare_logs

pytestmark = [pytest.mark.crash, pytest.mark.slow]
BROKER = "broker-a"


class Load:
    """A thread that sends in order to whichever member leads."""

    def __init__(self, group: LedgerGroup) -> None:
        self.sender = Sender(group)
        self._group = group
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            leaders = [each.id for each in self._group.status() if each.leads]
            for member in self._group.members:
                if member.id in leaders:
                    self.sender.send(member, time.monotonic() + 0.3)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send until the block ends, in which it has to have been acknowledged something."""
        before = len(self.sender.acknowledged)
        self._thread.start()
        try:
            yield
            self.await_more("the end")
        finally:
            self._is_over.set()
            self._thread.join(60)
        assert len(self.sender.acknowledged) > before

    def await_more(self, what: str) -> None:
        """Wait until more is acknowledged."""
        count = len(self.sender.acknowledged) + 5
        wait_until(lambda: len(self.sender.acknowledged) >= count, f"acknowledgements after {what}")


def judge(group: LedgerGroup, load: Load, members: list[Member]) -> None:
    """Nothing that was acknowledged is lost, and the members hold the same bytes."""
    leader = group.leader(members)
    found = read(leader)
    first = list(dict.fromkeys(found))
    assert first == sorted(first), "a queue is in order of its producer, but for what was sent again"
    lost = set(load.sender.acknowledged) - set(found)
    assert not lost, f"{len(lost)} of {len(load.sender.acknowledged)} are lost: {sorted(lost)[:5]}"

    def ends() -> set[int]:
        alive = {member.id for member in members}
        return {each.durable for each in group.status() if each.id in alive}

    wait_until(lambda: len(ends()) == 1, "equally long logs")
    for member in members:
        member.kill()
    one, *others = members
    for other in others:
        compared = compare_logs(one.store, other.store)
        assert compared.equal, f"{one.id} and {other.id}: {compared.text}"


def test_a_group_grows_to_five_under_load_and_loses_two_of_the_five(tmp_path: Path, long_run: bool) -> None:
    with LedgerGroup(tmp_path) as group, Admin(group.name_server) as admin:
        load = Load(group)
        group.leader()
        with load.running():
            load.await_more("the start")
            for number in (3, 4):
                new, address = group.newcomer(number)
                members = admin.add_member(BROKER, new.id, address)
                assert new.id in members.voters
                load.await_more(f"{new.id} was added")
            for _ in range(5 if long_run else 1):
                leader = group.leader()
                other = next(member for member in group.members[:3] if member is not leader)
                for member in (leader, other):
                    member.kill()
                group.leader([member for member in group.members if member not in (leader, other)])
                load.await_more("two of five were killed")
                for member in (leader, other):
                    member.start()
        judge(group, load, group.members)


def test_a_dead_member_is_replaced_under_load_while_a_leader_is_killed(
    tmp_path: Path, long_run: bool
) -> None:
    with LedgerGroup(tmp_path) as group, Admin(group.name_server) as admin:
        load = Load(group)
        alive = list(group.members)
        with load.running():
            for number in range(3, 8 if long_run else 4):
                load.await_more("the start")
                leader = group.leader(alive)
                lost = next(member for member in alive if member is not leader)
                lost.kill()
                alive.remove(lost)
                new, address = group.newcomer(number)
                members = admin.add_member(BROKER, new.id, address, replacing=lost.id)
                assert new.id in members.voters and lost.id not in members.voters
                alive.append(new)
                leader = group.leader(alive)
                leader.kill()
                group.leader([member for member in alive if member is not leader])
                load.await_more("the new member is needed")
                leader.start()
        judge(group, load, alive)
