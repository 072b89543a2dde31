"""Members of a group with a key-value store that are replaced under load, while others die: real processes."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from ropewalk import Kv
from ropewalk.client.blocking.admin import Admin
from tests.crash.campaign import chosen_seed
from tests.crash.kv_load import Load, are_equal, leaders_of, members_of
from tests.crash.ledger_group import LedgerGroup
from tests.support.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.slow]
BROKER = "broker-a"


class Replacement(threading.Thread):
    """An operator's command, which goes on while members die."""

    def __init__(self, admin: Admin, new: str, address: str, lost: str) -> None:
        super().__init__(name=f"{new} for {lost}", daemon=True)
        self.failure: Exception | None = None
        self._admin, self._new, self._address, self._lost = admin, new, address, lost

    def run(self) -> None:
        try:
            self._admin.add_member(BROKER, self._new, self._address, replacing=self._lost, wait_s=60.0)
        except Exception as exc:
            self.failure = exc


def test_dead_members_are_replaced_in_all_regions_under_load_while_others_are_killed(
    tmp_path: Path, long_run: bool
) -> None:
    seed = chosen_seed()
    print(f"seed {seed}")
    draw = random.Random(seed)
    with (
        LedgerGroup(tmp_path, settings={"ropewalkKvRegions": "k3;"}) as group,
        Admin(group.name_server) as admin,
    ):
        leaders_of(group, group.members, 2)
        load = Load(group, seed)
        load.start()
        alive = list(group.members)
        for number in range(3, 8 if long_run else 4):
            lost = draw.choice(alive)
            lost.kill()
            alive.remove(lost)
            new, address = group.newcomer(number)
            command = Replacement(admin, new.id, address, lost.id)
            command.start()
            time.sleep(draw.uniform(0, 1.0))
            victim = draw.choice(alive)
            victim.kill()
            time.sleep(draw.uniform(0, 0.5))
            victim.start()
            command.join(180)
            assert not command.is_alive() and command.failure is None, command.failure
            alive.append(new)
            leaders_of(group, alive, 2)
        time.sleep(0.5)
        load.stop()
        until(
            lambda: are_equal(group), lambda: str(members_of(group.name_server)), patience_s=60.0, pause_s=0.1
        )
        for each in members_of(group.name_server):
            assert each.values["members"] == sorted(member.id for member in alive), each
        with Kv(group.name_server) as kv:
            kv.put("at the end", "1")
            alive[0].kill()
            assert kv.get("at the end") == b"1", "two of the three are enough, the new one among them"
    load.judge()
