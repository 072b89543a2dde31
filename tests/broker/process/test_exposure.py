"""Files are for their owner only, and what is open to strangers is said at the start and by `/readyz`."""

from __future__ import annotations

import os
import stat
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.process.launch import readable_store
from broker.settings.config import ConfigError, keep_settings, load_config
from broker.settings.exposure import exposures
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode
from tests.broker.harness import send_ext
from tests.support.brokers import address_of, ask, broker, stderr_of
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment

OTHERS = 0o077


@pytest.fixture(autouse=True)
def loosest_umask() -> Iterator[None]:
    """Have processes that this test starts make files for everybody, unless they see to it themselves."""
    before = os.umask(0)
    yield
    os.umask(before)


def loose(folder: Path) -> list[str]:
    """Return the files and folders in this one that others may touch."""
    found = (each for each in folder.rglob("*") if not each.is_symlink())
    return sorted(str(each.relative_to(folder)) for each in found if each.stat().st_mode & OTHERS)


def use(address: str) -> None:
    """Have a broker write its log, queues and tables."""
    with Connection(address, 30) as connection:
        ask(connection, RequestCode.SEND_MESSAGE_V2, {**send_ext("T"), "i": "KEYS\x01key\x02"}, b"body")
        offsets: dict[str, object] = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
        ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, offsets)


def test_nobody_but_the_owner_can_read_what_a_broker_makes(tmp_path: Path) -> None:
    log_file = tmp_path / "made" / "broker.log"
    log_file.parent.mkdir(mode=0o700)
    root = tmp_path / "made" / "store"
    with broker(
        tmp_path,
        "--set",
        f"storePathRootDir={root}",
        "--set",
        "timerWheelEnable=true",
        "--log-file",
        str(log_file),
    ) as running:
        use(address_of(running))
    assert (root / "commitlog").exists() and (root / "config" / "topics.json").exists() and log_file.exists()
    assert loose(tmp_path / "made") == []
    assert root.stat().st_mode & OTHERS == 0


def test_nobody_but_the_owner_can_read_what_a_dledger_member_makes(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    root = tmp_path / "store"
    settings = {
        "storePathRootDir": root,
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{port}",
        "ropewalkKvRegions": "1",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with broker(tmp_path, *words) as running:
        use(address_of(running))
    assert (root / "ropewalk").exists() and loose(root) == []


def test_a_tool_that_mends_a_store_leaves_its_files_to_their_owner(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with broker(tmp_path, "--set", f"storePathRootDir={root}") as running:
        use(address_of(running))
    for path in (root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    done = subprocess.run(
        [*checkout_command(), "store", "recover", str(root)],
        env=checkout_environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert loose(root) == []


def test_a_group_may_be_let_in(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with broker(tmp_path, "--set", f"storePathRootDir={root}", "--set", "ropewalkUmask=027") as running:
        use(address_of(running))
    modes = {stat.S_IMODE(each.stat().st_mode) for each in root.rglob("*")}
    assert modes <= {0o750, 0o640} and 0o640 in modes


@pytest.mark.parametrize("text", ["77", "777", "0o77", "099", "u=rwx"])
def test_a_umask_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ropewalkUmask"):
        load_config(settings=[f"ropewalkUmask={text}"], local_ip=lambda: "10.0.0.1")


def test_a_changed_configuration_file_is_readable_for_nobody_else_before_it_holds_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("ropewalkSecret=a-secret-of-the-group\nmaxMessageSize=1000\n")
    file.chmod(0o600)
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append(stat.S_IMODE(os.fstat(fd).st_mode)))
    keep_settings(file, {"maxMessageSize": "2000"})
    assert seen == [0o600]
    assert "a-secret-of-the-group" in file.read_text() and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_store_of_an_older_version_that_others_can_read_is_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert readable_store(root, 0o077) is None
    (root / "commitlog").mkdir(parents=True, mode=0o755)
    found = readable_store(root, 0o077)
    assert found is not None and f"chmod -R g-rwx,o-rwx {root}" in found and "commitlog" in found
    assert "g-w,o-rwx" in (readable_store(root, 0o027) or "")
    (root / "commitlog").chmod(0o700)
    assert readable_store(root, 0o077) is None
    (root / "commitlog").chmod(0o755)
    root.chmod(0o700)
    assert readable_store(root, 0o077) is None


def findings(*settings: str, has_members: bool = False) -> str:
    return "\n".join(
        exposures(load_config(settings=settings, local_ip=lambda: "10.0.0.1"), has_members=has_members)
    )


def test_a_broker_that_only_its_machine_reaches_is_open_to_nobody() -> None:
    assert findings(has_members=True) == ""


def test_a_group_without_a_secret_is_told_where_strangers_may_reach_it() -> None:
    wide = "bindAddress=0.0.0.0"
    assert "no users" in findings(wide) and "ropewalkSecret" not in findings(wide)
    assert "ropewalkSecret" in findings(wide, has_members=True)
    assert "ropewalkSecret" not in findings(wide, "ropewalkOpenGroup=true", has_members=True)
    assert "give them one" not in findings(wide, "ropewalkSecret=0123456789abcdef", has_members=True)
    assert "ropewalkSecret" in findings(wide, "brokerRole=SYNC_MASTER")
    assert "metrics port" in findings(wide)
    assert "metrics port" not in findings(wide, "metricsPromExporterHost=127.0.0.1")


def test_what_is_open_is_in_the_log_of_the_start_and_on_the_page_of_readiness(tmp_path: Path) -> None:
    with broker(tmp_path, "--set", "bindAddress=0.0.0.0", "--set", "brokerIP1=127.0.0.1") as running:
        port = running.ready["metrics"].rpartition(":")[2]
        with Connection(address_of(running), 30):
            lines = urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz").read().decode().splitlines()
    assert lines[0] == "ready" and any("no users and no TLS" in line for line in lines[1:])
    assert "no users and no TLS" in stderr_of(tmp_path)
