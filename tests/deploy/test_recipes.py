"""The recipes under docs/operate: the keys, values, commands and metrics that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.settings.keys import KEYS
from ropewalk.codes import ResponseCode
from ropewalk.format.record import RECORD_SIZE_MIN
from tests.broker.harness import InProcess, config_of
from tests.support.processes import ROOT
from tools.documents.commands import commands
from tools.documents.metrics import families
from tools.documents.sample import sample_broker

PAGES = (
    "adding-a-slave", "alerts", "backup", "dead-letters", "deploy", "dledger", "hardening", "logs", "rolling-restart",
    "sizing",
)  # fmt: skip
OTHERS = {"terminationGracePeriodSeconds"}
"""Names of that form which belong to other programs."""


def quoted(page: str) -> list[str]:
    """Return what stands between backticks, outside of blocks of commands."""
    text = re.sub(r"^```.*?^```", "", (ROOT / "docs/operate" / f"{page}.md").read_text(), flags=re.M | re.S)
    return [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text)]


@pytest.mark.parametrize("page", PAGES)
def test_keys_and_values_of_a_recipe_are_the_brokers(page: str) -> None:
    for words in quoted(page):
        found = re.fullmatch(r"([a-z]+(?:[A-Z][A-Za-z0-9]*)+)(?:=(\w+))?", words)
        if found is None or found[1] in OTHERS:
            continue
        key = KEYS.get(found[1])
        assert key is not None, f"{page}: {words} is no key"
        assert not (key.choices and found[2]) or found[2] in key.choices, f"{page}: {words}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_recipe_exist(page: str) -> None:
    known = {" ".join(name.split()[:n]) for name, _ in commands() for n in range(1, 5)} - {"admin"}
    for words in quoted(page):
        if words.startswith("ropewalk "):
            names = words.removeprefix("ropewalk ").split()
            assert any(" ".join(names[:n]) in known for n in range(1, len(names) + 1)), f"{page}: {words}"


def test_metrics_of_the_recipes_are_served() -> None:
    with sample_broker() as broker:
        known = {family.name for family in families(broker)}
    named = {
        words for page in PAGES for words in quoted(page) if re.match(r"(ropewalk|rocketmq)_[a-z]", words)
    }
    assert named and named <= known, named - known


def test_sizes_and_bounds_of_sizing_are_those_of_the_store() -> None:
    text = (ROOT / "docs/operate/sizing.md").read_text()
    assert f"{RECORD_SIZE_MIN} bytes in the commit log" in text
    assert f"`diskMaxUsedSpaceRatio` ({KEYS['diskMaxUsedSpaceRatio'].default} %)" in text
    assert f"`fileReservedTime`, {KEYS['fileReservedTime'].default} hours" in text


def test_a_slave_is_ready_and_the_pages_say_so(tmp_path: Path) -> None:
    with InProcess(
        config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="127.0.0.1:1")
    ) as slave:
        assert slave.broker.context.unready() == ()
        assert slave.connect().send("T").code != ResponseCode.SUCCESS, "it takes no messages"
    pages = {
        page: " ".join((ROOT / f"docs/operate/{page}.md").read_text().split())
        for page in ("deploy", "metrics")
    }
    assert "A slave or a follower that serves is healthy, although it takes no messages" in pages["deploy"]
    assert "A slave answers 200 while it serves" in pages["metrics"]
