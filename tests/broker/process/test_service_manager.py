"""systemd is told when a server serves and when it begins to stop."""

import socket
import subprocess
from pathlib import Path

import pytest

from broker.process.service_manager import notify
from tests.support.processes import checkout_command, checkout_environment, first_line, running_broker, stop


@pytest.mark.parametrize("abstract", [False, True])
def test_a_state_is_one_datagram(tmp_path: Path, abstract: bool) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{path}" if abstract else path)
        notify("READY=1", {"NOTIFY_SOCKET": f"@{path}" if abstract else path})
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "/no/such/socket"])
def test_no_manager_or_an_absent_one_is_no_trouble(address: str) -> None:
    notify("READY=1", {"NOTIFY_SOCKET": address})


def test_a_broker_and_a_name_server_say_when_they_are_ready_and_when_they_stop(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    environment = checkout_environment() | {"NOTIFY_SOCKET": path}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(30)
        with running_broker(checkout_command(), cwd=tmp_path, environment=environment):
            assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STOPPING=1"
        namesrv = subprocess.Popen(
            [*checkout_command(), "namesrv", "--port", "0"], env=environment, stdout=subprocess.PIPE
        )
        try:
            assert first_line(namesrv, 30)
            assert manager.recv(100) == b"READY=1"
        finally:
            stop(namesrv)
        assert manager.recv(100) == b"STOPPING=1"
