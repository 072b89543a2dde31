"""RocketMQ's own mqadmin finds messages by key and by unique key, as its client does underneath."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk import Admin
from tests.compat.conftest import Server
from tests.compat.driver import Driver
from tests.compat.mqadmin import Mqadmin
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC = "queries-view_by_id"


@pytest.fixture(scope="module")
def sent(java: str, server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A SendResult of a message with the body "view 0", key "key0" and tag "tag"."""
    run = Driver("5.5.0", "JSON").run(
        server.namesrv, tmp_path_factory.mktemp("java"), "view_by_id", prefix="queries"
    )
    result: dict[str, Any] = run.sent("view_by_id")[0]
    with Admin(server.namesrv) as admin:
        until(lambda: admin.messages_by_key(TOPIC, "key0"), "the key index has it")
    return result


def test_query_by_key_lists_the_message(mqadmin: Mqadmin, sent: dict[str, Any]) -> None:
    lines = mqadmin.run("queryMsgByKey", "-t", TOPIC, "-k", "key0").splitlines()
    rows = [line.split() for line in lines if line.startswith(sent["msgId"])]
    assert [row[0] for row in rows] == [sent["msgId"]], lines
    assert rows[0][1:3] == [str(sent["queueId"]), str(sent["queueOffset"])]


def test_query_by_unique_key_shows_the_message(mqadmin: Mqadmin, sent: dict[str, Any]) -> None:
    output = mqadmin.run("queryMsgByUniqueKey", "-t", TOPIC, "-i", sent["msgId"])
    shown = dict(line.split(":", 1) for line in output.splitlines() if ":" in line)
    shown = {name.strip(): value.strip() for name, value in shown.items()}
    assert shown["Topic"] == TOPIC
    assert shown["Keys"] == "[key0]"
    assert shown["Queue Offset"] == str(sent["queueOffset"])


def test_view_by_a_unique_key_instead_of_an_offset_id_finds_it_too(
    mqadmin: Mqadmin, sent: dict[str, Any]
) -> None:
    output = mqadmin.run("queryMsgById", "-t", TOPIC, "-i", sent["msgId"])
    assert sent["offsetMsgId"] in output
    assert "[key0]" in output


def test_a_key_that_nobody_used_is_not_found(mqadmin: Mqadmin, sent: dict[str, Any]) -> None:
    output = mqadmin.run("queryMsgByKey", "-t", TOPIC, "-k", "nobody")
    assert sent["msgId"] not in output
    assert "can not find message" in output or "query message by key finished, but no message" in output
