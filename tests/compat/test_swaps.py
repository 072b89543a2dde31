"""One directory goes back and forth between Apache RocketMQ and Ropewalk, and their clients keep what they had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.driver import Driver
from tests.compat.swap_ledger import judge, read_queues, read_store
from tests.compat.swaps import ROPEWALK, World
from tests.crash.campaign import chosen_seed

pytestmark = [pytest.mark.compat, pytest.mark.slow]

# Seconds each broker serves before it is ended, and whether by kill -9. The original saves offsets for the first
# time ten seconds after its start: what it is told before, a kill takes, in its own hands too.
QUICK = ((7.0, False), (13.0, True))
LONG = ((7.0, False), (13.0, True), (10.0, True), (10.0, False), (10.0, False), (10.0, False))
LAST_S = 4.0


def test_a_directory_changes_hands_under_a_running_group(
    java: str, tools_classpath: str, tmp_path: Path, long_run: bool
) -> None:
    driver = Driver("5.5.0", "JSON")
    with World(tmp_path, ROPEWALK, driver, tools_classpath, chosen_seed()) as world:
        for seconds, kill in LONG if long_run else QUICK:
            world.wait(seconds)
            world.swap(kill=kill)
        world.wait(LAST_S)
        world.settle()
        stored = read_queues(world.address)
        world.end()
    ledger = world.ledger
    wrong = [*judge(ledger, stored), *read_store(world.store)]
    assert not wrong, "\n".join([f"{len(wrong)} promises broken", *wrong[:20]])
    # That there was something to break:
    assert len(ledger.acknowledged()) > 500
    for swap in ledger.swaps:
        assert ledger.pending_at(swap), swap
        assert any(sent.at > swap.ready and sent.place for sent in ledger.sent.values())
    assert all(ledger.floor((topic, 0), swap.at - 5) for topic in ("swaps-lasting",) for swap in ledger.swaps)
