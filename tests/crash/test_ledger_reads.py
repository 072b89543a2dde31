"""Codes 14 and 30 of three real brokers under kills and pauses: the history of all calls is linearizable."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.crash.campaign import chosen_seed
from tests.crash.ledger_group import LedgerGroup, Member
from tests.crash.readers import Reader, make_group
from tests.linear.checker import check
from tests.linear.history import UNKNOWN, Recorder
from tests.linear.models import LOG, REGISTER

pytestmark = [pytest.mark.crash, pytest.mark.slow]
CLIENTS = 4


def test_reads_at_any_member_are_linearizable_through_kills_and_pauses(
    tmp_path: Path, long_run: bool
) -> None:
    seed = chosen_seed()
    draw = random.Random(seed)
    began = time.monotonic()
    recorder = Recorder(lambda: time.monotonic() - began)
    with LedgerGroup(tmp_path) as group:
        make_group(group.leader())
        clients = [Reader(group, recorder, number, seed) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for number in range(20 if long_run else 2):
            time.sleep(draw.uniform(0.5, 1.0))
            victim = group.leader() if draw.random() < 0.7 else draw.choice(group.members)
            disturb(group, victim, draw, kill=number % 2 == 0)
        time.sleep(0.5)
        for client in clients:
            client.is_over.set()
        for client in clients:
            client.join(30)
            assert not client.is_alive(), f"{client.name} hangs"
            assert not client.troubles, client.troubles
    known = [call for call in recorder.calls if call.result is not UNKNOWN]
    reads = [call for call in known if call.operation == ("read",)]
    print(f"seed {seed}: {len(recorder.calls)} calls, {len(reads)} reads, {len(known) - len(reads)} writes")
    assert len(reads) > 50
    assert {call.client.split(" at ")[1] for call in reads} == {member.id for member in group.members}
    check([call for call in recorder.calls if call.key[0] == "end"], LOG)  # type: ignore[index]
    check([call for call in recorder.calls if call.key[0] == "offset"], REGISTER)  # type: ignore[index]


def disturb(group: LedgerGroup, victim: Member, draw: random.Random, *, kill: bool) -> None:
    """Kill a member, or stop it for a while, until the group has a leader again."""
    others = [member for member in group.members if member is not victim]
    if kill:
        victim.kill()
        group.leader(others)
        victim.start()
    else:
        victim.signal(signal.SIGSTOP)
        group.leader(others)
        time.sleep(draw.uniform(0, 0.3))
        victim.signal(signal.SIGCONT)
