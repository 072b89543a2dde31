"""One directory goes back and forth between Apache RocketMQ and Ropewalk, and their clients keep what they had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.driver import Driver
from tests.compat.swap_ledger import COMMIT_AGE_S, LATER, PROMPT, judge, read_queues, read_store
from tests.compat.swaps import ROCKETMQ, ROPEWALK, World
from tests.crash.campaign import chosen_seed
from tests.support.long_run import LONG

pytestmark = [pytest.mark.compat, pytest.mark.slow]

# Whether each swap is by kill -9: two swaps of one directory in `make test`, six in the long run. The original dies
# by the first kill and Ropewalk by the second, or the other way round, as the first broker is the one or the other.
KILLS = (False, True, True, False, False, False) if LONG else (False, True)
SETUPS = [("5.5.0", ROPEWALK, "ASYNC_FLUSH"), ("4.9.8", ROCKETMQ, "SYNC_FLUSH")]


@pytest.mark.parametrize(("client", "first", "flush"), SETUPS if LONG else SETUPS[:1])
def test_a_directory_changes_hands_under_a_running_group(
    client: str, first: str, flush: str, java: str, tools_classpath: str, tmp_path: Path
) -> None:
    driver, settings = Driver(client, "JSON"), {"flushDiskType": flush}
    with World(tmp_path, first, driver, tools_classpath, chosen_seed(), settings) as world:
        for kill in KILLS:
            world.swap(kill=kill)
        world.serve()
        world.settle()
        stored = read_queues(world.address)
        world.end()
    ledger = world.ledger
    wrong = [*judge(ledger, stored), *read_store(world.store)]
    assert not wrong, "\n".join([f"{len(wrong)} promises broken", *wrong[:20]])
    assert not world.verify()
    # There was something to break at each swap.
    assert [swap.kill for swap in ledger.swaps] == list(KILLS)
    assert len(ledger.acknowledged()) > 500
    for swap in ledger.swaps:
        assert ledger.pending_at(swap), swap
        since = swap.at - COMMIT_AGE_S
        assert any(ledger.floor((topic, 0), since, swap.at) for topic in (PROMPT, LATER)), swap
