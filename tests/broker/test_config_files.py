"""The files of a broker's tables at a start: which of them may be lost, and which stop it."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.state.json_file import StoreConfigDamaged
from tests.broker.harness import InProcess, config_of

MAY_BE_LOST = ("config/messageRequestMode.json", "config/timermetrics", "ropewalk/offsetTimes.json")


@pytest.mark.parametrize("text", [b"", b"{\x00garbled"])
@pytest.mark.parametrize("name", MAY_BE_LOST)
def test_a_garbled_file_of_counts_or_conveniences_is_told_of_and_stops_no_start(
    tmp_path: Path, name: str, text: bytes
) -> None:
    config = config_of(tmp_path)
    path = config.store_path_root_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    with capture_logs() as logs, InProcess(config):
        pass
    (told,) = [each for each in logs if each.get("file") == path.name]
    assert told["log_level"] == "warning"
    assert "starting without it" in told["finding"]


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
def test_a_garbled_file_that_nothing_can_replace_stops_a_start(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path)
    path = config.store_path_root_dir / "config" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(StoreConfigDamaged, match=name):
        InProcess(config)
