"""The events that docs/operate/logs.md tells operators to look for: they exist, and each occasion is one line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from broker.admin.repeated import SAY_AGAIN_MS
from ha.group.hello import EpochRequest, Hello, RangesRequest, encode
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import InProcess, config_of, without_fsync
from tests.support.processes import ROOT

SEGMENT = 1 << 20


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    without_fsync(monkeypatch)
    with InProcess(
        config_of(tmp_path, brokerRole="SYNC_MASTER", haMasterAddress="10.0.0.2:10912")
    ) as running:
        yield running


def logged_events() -> set[str]:
    """Return the literal first arguments of all log calls of the server's rooms."""
    found = set()
    for room in ("broker", "ha", "store"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in ("debug", "info", "warning", "error", "critical")
                    and node.args
                    and isinstance(node.args[0], ast.Constant)
                ):
                    found.add(str(node.args[0].value))
    return found


def test_every_event_of_the_page_is_one_that_a_server_logs() -> None:
    table = (ROOT / "docs/operate/logs.md").read_text().partition("## What to look for")[2]
    events = [
        event
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for event in re.findall("`(.*?)`", row)
    ]
    assert len(events) > 8
    assert set(events) <= logged_events(), set(events) - logged_events()


def group_of(process: InProcess) -> tuple[str, str]:
    return process.broker.config.broker_cluster_name, process.broker.config.broker_name


def test_a_change_of_the_role_is_one_line_with_the_role_and_the_epoch(process: InProcess) -> None:
    question = msgspec.structs.replace(
        EpochRequest(*group_of(process), 1, "operator"), broker_id=1, master="10.0.0.2:10911"
    )
    with structlog.testing.capture_logs() as told:
        answer = process.connect().call(RequestCode.ROPEWALK_FOLLOW, {}, encode(question))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        process.until(lambda: process.broker.replication.role == "SLAVE")
        for _ in range(3):
            process.tick()
    [line] = [each for each in told if each["event"] == "role"]
    assert (line["act"], line["role"], line["epoch"]) == ("follow", "SLAVE", 1)


def test_a_refused_slave_is_one_line_with_its_address_and_the_reason(process: InProcess) -> None:
    cluster, _ = group_of(process)
    hello = Hello(cluster, "broker-of-another-group", 1, "10.0.0.2:10911", "10.0.0.2:1", 0, 0, 0, SEGMENT)
    with structlog.testing.capture_logs() as told:
        process.connect().call(RequestCode.ROPEWALK_SLAVE_HELLO, {}, encode(hello))
    [line] = warnings(told)
    assert line["event"] == "a slave is refused" and line["address"] == "10.0.0.2:10911"
    assert "belongs to" in line["reason"]


def test_a_peer_without_the_secret_is_one_line_in_ten_minutes_however_often_it_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path, ropewalkSecret="hush")) as process:
        with structlog.testing.capture_logs() as told:
            for number in range(21):
                if number == 20:
                    process.clock.ms += SAY_AGAIN_MS
                body = encode(RangesRequest([]))
                refused = process.connect().call(RequestCode.ROPEWALK_MEMBER_STATUS, {}, body)
                assert refused.code == ResponseCode.NO_PERMISSION
        first, again = warnings(told)
        assert first["event"] == "no proof of ropewalkSecret" and first["peer"] and "hush" not in str(told)
        assert "its sender has no ropewalkSecret" in first["reason"]
        assert (first["refused"], again["refused"]) == (1, 20)


def warnings(told: list[Any]) -> list[Any]:
    return [each for each in told if each["log_level"] in ("warning", "error")]
