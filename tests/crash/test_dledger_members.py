"""Members that come and go under load, with members that are killed: real processes, and a producer that counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from tests.crash.ledger_group import LedgerGroup, Member
from tests.crash.ledger_load import Sender, SteadySender, read
from tests.support import waiting
from tools.drill.reading import compare_logs

pytestmark = [pytest.mark.crash, pytest.mark.slow]
BROKER = "broker-a"


def await_more(sender: Sender, what: str) -> None:
    """Wait until more is acknowledged."""
    count = len(sender.acknowledged) + 5
    waiting.until(lambda: len(sender.acknowledged) >= count, f"acknowledgements after {what}")


def judge(group: LedgerGroup, sender: Sender, members: list[Member]) -> None:
    """Nothing that was acknowledged is lost, and the members hold the same bytes."""
    leader = group.leader(members)
    found = read(leader)
    first = list(dict.fromkeys(found))
    assert first == sorted(first), "a queue is in order of its producer, but for what was sent again"
    lost = set(sender.acknowledged) - set(found)
    assert not lost, f"{len(lost)} of {len(sender.acknowledged)} are lost: {sorted(lost)[:5]}"

    def ends() -> set[int]:
        alive = {member.id for member in members}
        return {each.durable for each in group.status() if each.id in alive}

    waiting.until(lambda: len(ends()) == 1, "equally long logs")
    for member in members:
        member.kill()
    one, *others = members
    for other in others:
        compared = compare_logs(one.store, other.store)
        assert compared.equal, f"{one.id} and {other.id}: {compared.text}"


def test_a_group_grows_to_five_under_load_and_loses_two_of_the_five(tmp_path: Path, long_run: bool) -> None:
    with LedgerGroup(tmp_path) as group, Admin(group.name_server) as admin:
        group.leader()
        with SteadySender(group, 0) as sender:
            await_more(sender, "the start")
            for number in (3, 4):
                new, address = group.newcomer(number)
                members = admin.add_member(BROKER, new.id, address)
                assert new.id in members.voters
                await_more(sender, f"{new.id} was added")
            for _ in range(5 if long_run else 1):
                leader = group.leader()
                other = next(member for member in group.members[:3] if member is not leader)
                for member in (leader, other):
                    member.kill()
                group.leader([member for member in group.members if member not in (leader, other)])
                await_more(sender, "two of five were killed")
                for member in (leader, other):
                    member.start()
        judge(group, sender, group.members)


def test_a_dead_member_is_replaced_under_load_while_a_leader_is_killed(
    tmp_path: Path, long_run: bool
) -> None:
    with LedgerGroup(tmp_path) as group, Admin(group.name_server) as admin:
        alive = list(group.members)
        with SteadySender(group, 0) as sender:
            for number in range(3, 8 if long_run else 4):
                await_more(sender, "the start")
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
                await_more(sender, "the new member is needed")
                leader.start()
        judge(group, sender, alive)
