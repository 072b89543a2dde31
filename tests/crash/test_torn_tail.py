"""A record that a crash left half written is never served, and what stands before it is."""

from pathlib import Path

import pytest

from tests.crash.campaign import Campaign, chosen_seed
from tests.crash.torn_tail import SETTINGS, SETUP, tear_and_look
from tests.support.processes import checkout_command

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def test_a_last_record_whose_body_is_torn_is_cut_and_its_queue_goes_on(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chosen_seed(), SETUP, command=checkout_command())
    campaign.place.settings.update(SETTINGS)
    torn = tear_and_look(campaign)
    assert not campaign.verdict(), campaign.verdict()
    assert "dead bytes" in campaign.place.errors()  # what was cut is told, and was copied aside
    assert [path.stat().st_size for path in (campaign.place.store / "ropewalk" / "tails").iterdir()]
    server = campaign.start()
    assert server is not None, campaign.verdict()
    with server:
        campaign.load_and_kill(server, seconds=0.3)
    campaign.finish()
    assert not campaign.verdict(), campaign.verdict()
    assert torn in campaign.audit.excused
