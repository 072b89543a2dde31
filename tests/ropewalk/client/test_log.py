"""The client's log: events with fields, tracebacks of what failed, the caller's place, and quiet below WARNING."""

import logging
import subprocess
import sys

import pytest

from ropewalk.client.log import Troubles, logger
from tests.support.processes import ROOT, checkout_environment


@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_failure_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture, level: str) -> None:
    try:
        raise KeyError("amount")
    except KeyError as exc:
        getattr(logger(), level)("handler failed", topic="orders", exc_info=exc)
    (told,) = caplog.records
    assert (told.levelname, told.getMessage()) == (level.upper(), "handler failed topic=orders")
    assert told.event == "handler failed"  # type: ignore[attr-defined]
    assert told.exc_info is not None
    assert told.exc_info[0] is KeyError and told.exc_info[2] is not None


def test_an_event_has_its_fields_and_the_place_that_told_it(caplog: pytest.LogCaptureFixture) -> None:
    logger().warning("messages skipped", group="billing", topic=None, reason="100 % full")
    (told,) = caplog.records
    assert told.getMessage() == "messages skipped group=billing reason='100 % full'"
    assert told.fields == {"group": "billing", "reason": "100 % full"}  # type: ignore[attr-defined]
    assert told.filename == "test_log.py"


def test_a_trouble_is_told_once_and_its_end_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ropewalk.client")
    troubles = Troubles()
    for _ in range(3):
        troubles.began("a", "gone", "connection lost", address="a:1")
    troubles.ended("a", "connected", address="a:1")
    troubles.ended("a", "connected", address="a:1")
    assert [(told.levelname, told.getMessage()) for told in caplog.records] == [
        ("WARNING", "connection lost address=a:1 reason=gone"),
        ("INFO", "connected address=a:1"),
    ]


@pytest.mark.parametrize("level, shown", [("info", ""), ("warning", "it is so\n")])
def test_a_program_that_configures_no_log_hears_of_warnings_alone(level: str, shown: str) -> None:
    code = f"from ropewalk.client.log import logger; logger().{level}('it is so')"
    words = [sys.executable, "-c", code]
    ended = subprocess.run(
        words, cwd=ROOT, env=checkout_environment(), capture_output=True, text=True, check=True, timeout=30
    )
    assert ended.stderr == shown
