"""The systemd units: systemd accepts them, grades them, and they hold what a broker needs for a clean stop."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.settings.keys import KEYS
from tests.support.documents import cli
from tests.support.processes import ROOT, checkout_command, checkout_environment

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing"
)


def unit(path: Path) -> dict[str, list[str]]:
    """Return the settings of the [Service] part, each with its values in order."""
    service = path.read_text().partition("[Service]")[2].partition("[Install]")[0]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", service, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def runnable(path: Path, folder: Path) -> Path:
    """Return a copy that starts a program of this machine: `verify` wants it to be there."""
    copy = folder / path.name
    copy.write_text(path.read_text().replace("ExecStart=/opt/ropewalk/bin/ropewalk", "ExecStart=/bin/true"))
    return copy


@needs_systemd
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_to_complain_about(path: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", runnable(path, tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_grades_the_exposure_as_small(path: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", runnable(path, tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_commands_options_and_variables_of_a_unit_exist(path: Path) -> None:
    settings = unit(path)
    [start] = settings["ExecStart"]
    program, command, *options = start.split()
    assert program == "/opt/ropewalk/bin/ropewalk"
    assert {word for word in options if word.startswith("-")} <= cli()[command]
    known = {variable for key in KEYS.values() for variable in key.variables}
    named = set(re.findall(r"\bROPEWALK_\w+", path.read_text()))
    assert named <= known, named - known


def test_a_stop_gives_a_broker_time_and_signals_it_alone() -> None:
    broker = unit(ROOT / "deploy" / "systemd" / "ropewalk-broker.service")
    assert broker["KillMode"] == ["mixed"] and broker["KillSignal"] == ["SIGTERM"]
    assert int(broker["TimeoutStopSec"][0]) >= 60
    assert broker["Type"] == ["notify"] and broker["TimeoutStartSec"] == ["infinity"]
    assert int(broker["LimitNOFILE"][0]) >= 65_536
    assert broker["RestartPreventExitStatus"] == ["2"]
    assert f"ROPEWALK_STORE_PATH_ROOT_DIR=/var/lib/{broker['StateDirectory'][0]}" in broker["Environment"]


def test_a_mistake_in_the_configuration_ends_with_the_status_that_is_not_restarted(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("flushDiskTpye=SYNC_FLUSH\n")
    ended = subprocess.run(
        [*checkout_command(), "broker", "--config", config],
        env=checkout_environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr


def test_a_rotated_log_is_renamed_and_not_copied() -> None:
    rules = (ROOT / "deploy" / "logrotate" / "ropewalk").read_text()
    words = re.sub(r"#.*", "", rules).split()
    assert "copytruncate" not in words and "postrotate" not in words
    assert "nocreate" in words, "the broker makes the file, with its own owner"
