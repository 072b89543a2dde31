"""The traces of our clients, read by the original's mqadmin from either broker."""

from __future__ import annotations

import pytest

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage, RetryLater
from tests.compat.conftest import Server
from tests.compat.mqadmin import Mqadmin
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC, TRACES, SHOP, BILLING = "tracedOrders", "tracesOfOurs", "tracedShop", "tracedBilling"


def test_query_msg_trace_by_id_tells_of_sends_and_deliveries(server: Server, mqadmin: Mqadmin) -> None:
    handled: set[str] = set()

    def handle(message: ReceivedMessage) -> None:
        handled.add(message.message_id)
        if message.keys == ["bad"]:
            raise RetryLater(-1)

    for topic in (TOPIC, TRACES):
        assert "success" in mqadmin.run(
            "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "1", "-w", "1"
        )
    with Producer(server.namesrv, group=SHOP, trace=True, trace_topic=TRACES) as producer:
        good = producer.send(TOPIC, Message(b"seven b", keys="good", tags="paid")).message_id
        bad = producer.send(TOPIC, Message(b"x", keys="bad")).message_id
    with PushConsumer(
        BILLING,
        {TOPIC: "*"},
        handle,
        server.namesrv,
        consume_from="earliest",
        trace=True,
        trace_topic=TRACES,
    ):
        until(lambda: handled >= {good, bad})
    for message_id, outcome in ((good, "success"), (bad, "failed")):
        heading, sent, second_heading, consumed = complete_table(mqadmin, message_id)
        assert heading[0] == second_heading[0] == "#Type"
        assert (sent[:3], sent[-1]) == (["Pub", SHOP, "127.0.0.1"], "success")
        assert (consumed[:2], consumed[-1]) == (["Sub", BILLING], outcome)
        assert sent[-2].endswith("ms") and consumed[-2].endswith("ms")


def complete_table(mqadmin: Mqadmin, message_id: str) -> list[list[str]]:
    """Return the two headings and the two lines below them, once both traces have arrived."""
    until(lambda: len(table(mqadmin, message_id)) == 4, lambda: f"{table(mqadmin, message_id)}")
    return table(mqadmin, message_id)


def table(mqadmin: Mqadmin, message_id: str) -> list[list[str]]:
    """Return the lines that queryMsgTraceById prints of one message, as words."""
    lines = mqadmin.run("queryMsgTraceById", "-i", message_id, "-t", TRACES).splitlines()
    return [line.split() for line in lines if line.strip()]
