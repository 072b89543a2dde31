"""kill -9 loses nothing that was acknowledged: real processes, random moments, everything read back."""

import random
import time
from pathlib import Path

import pytest

from tests.crash.campaign import Campaign, Setup, chosen_seed

pytestmark = [pytest.mark.crash, pytest.mark.slow]

# Kills in `make test`, and in the long run: 8 and 50 in all.
CAMPAIGNS = [
    (Setup("ASYNC_FLUSH"), 3, 20),
    (Setup("SYNC_FLUSH"), 3, 20),
    (Setup("ASYNC_FLUSH", None), 1, 5),
    (Setup("SYNC_FLUSH", None), 1, 5),
]


@pytest.mark.parametrize(
    ("setup", "quick", "long"),
    CAMPAIGNS,
    ids=[f"{setup.flush}-{setup.segment_size or 'default'}" for setup, _, _ in CAMPAIGNS],
)
def test_nothing_acknowledged_is_lost_by_kill_9_at_random_moments(
    setup: Setup, quick: int, long: int, tmp_path: Path, long_run: bool
) -> None:
    campaign = Campaign(tmp_path, chosen_seed(), setup)
    campaign.run(long if long_run else quick)
    assert not campaign.verdict(), campaign.verdict()
    assert campaign.kills == (long if long_run else quick)
    assert campaign.ledger.acknowledged_count > 0
    assert campaign.ledger.commit_count > 0


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_start_can_be_killed_again_and_again(flush: str, tmp_path: Path, long_run: bool) -> None:
    campaign = Campaign(tmp_path, chosen_seed(), Setup(flush))
    server = campaign.start()
    assert server is not None, campaign.verdict()
    with server:
        campaign.load_and_kill(server, seconds=0.7)
    for _ in range(12 if long_run else 3):
        campaign.interrupted_start()
    campaign.finish()
    assert not campaign.verdict(), campaign.verdict()
    assert campaign.ledger.acknowledged_count > 0
    assert campaign.ledger.commit_count > 0


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_sigterm_under_load_keeps_messages_and_offsets_and_leaves_nothing_to_recover(
    flush: str, tmp_path: Path
) -> None:
    seed = chosen_seed()
    campaign = Campaign(tmp_path, seed, Setup(flush))
    seconds = random.Random(seed).uniform(0.3, 1.0)
    server = campaign.start()
    assert server is not None, campaign.verdict()
    with server:
        campaign.load_and_terminate(server, seconds=seconds)
    campaign.audit.offline(campaign.place.store)
    assert not campaign.verdict(), campaign.verdict()
    began = time.monotonic()
    campaign.finish()
    assert time.monotonic() - began < 60
    assert not campaign.verdict(), campaign.verdict()
    assert "recovery" not in campaign.place.errors()
    assert campaign.ledger.acknowledged_count > 0
    assert campaign.ledger.commit_count > 0
