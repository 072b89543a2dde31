"""Delay, retry, order, request and reply, as applications use them through the official Java clients.

Like `test_java_client`, each test runs for both clients and both serialisations, and its expectations were met by
Apache RocketMQ 5.5.0 too: ROPEWALK_COMPAT_TARGET=rocketmq.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from tests.compat.driver import Driver, Event, Run
from tests.support.long_run import LONG

pytestmark = [pytest.mark.compat, pytest.mark.slow]

DELAYS_MS = {1: 1_000, 2: 5_000}
# How much later than its time a message may be seen: on a machine that is busy with other tests, a process may wait.
LATE_MS = 2_000 if LONG else 20_000
# The original looks at its delay queues ten times a second, by a clock that it reads apart from the store's.
EARLY_MS = 100 if os.environ.get("ROPEWALK_COMPAT_TARGET") == "rocketmq" else 0


def received(run: Run, scenario: str, source: str) -> list[Event]:
    return [event["message"] for event in run.events(scenario, "received") if event["from"] == source]


def test_a_delayed_message_arrives_after_its_level_and_not_much_later(run: Run) -> None:
    asked = {event["level"]: event for event in run.events("delay", "asked")}
    seen = {event["message"]["body"]: event for event in run.events("delay", "received")}
    assert sorted(asked) == [1, 2]
    assert len(run.events("delay", "received")) == len(seen) == 3
    for level, delay_ms in DELAYS_MS.items():
        arrived_ms = seen[f"level {level}"]["clockMs"]
        assert arrived_ms >= asked[level]["beforeMs"] + delay_ms - EARLY_MS
        assert arrived_ms <= asked[level]["afterMs"] + delay_ms + LATE_MS


def test_a_delayed_message_is_the_one_that_was_sent(run: Run) -> None:
    results = run.sent("delay")
    assert [result["status"] for result in results] == ["SEND_OK", "SEND_OK"]
    by_body = {message["body"]: message for message in run.received("delay")}
    for level, result in zip(DELAYS_MS, results, strict=True):
        message = by_body[f"level {level}"]
        assert message["msgId"] == result["msgId"]
        assert (message["topic"], message["queueId"]) == (result["topic"], result["queueId"])
        assert message["tags"] == f"Tag{level}"
        assert message["reconsumeTimes"] == 0
        # The original leaves what it needed while the message waited.
        assert {
            "DELAY": str(level),
            "REAL_TOPIC": result["topic"],
            "REAL_QID": str(result["queueId"]),
        }.items() <= (message["properties"].items())


def test_what_no_consumer_could_handle_is_tried_again_and_then_a_dead_letter(
    run: Run, driver: Driver
) -> None:
    tries = received(run, "retry_dlq", "listener")
    assert [message["reconsumeTimes"] for message in tries] == [0, 1]
    (dead,) = received(run, "retry_dlq", "dlq")
    first = tries[0]
    topic = f"{driver.prefix}-retry_dlq"
    # The client restores the topic that the message was sent to.
    assert [message["topic"] for message in tries] == [topic, topic]
    assert (dead["topic"], dead["queueId"]) == (f"%DLQ%{topic}-group", 0)
    assert run.one("retry_dlq", "dlq")["queues"] == 1
    for message in (*tries, dead):
        assert (message["body"], message["tags"], message["keys"]) == ("hopeless", "TagA", "key-1")
        assert message["msgId"] == first["msgId"]
        assert message["bornTimestamp"] == first["bornTimestamp"]
    assert dead["reconsumeTimes"] == 2
    assert dead["properties"]["RETRY_TOPIC"] == topic
    assert dead["properties"]["ORIGIN_MESSAGE_ID"] == first["offsetMsgId"]


def test_a_queue_is_consumed_in_its_order_also_when_a_message_is_put_off(run: Run) -> None:
    events = run.events("orderly", "received")
    by_queue: dict[int, list[int]] = defaultdict(list)
    for event in events:
        by_queue[event["message"]["queueId"]].append(event["message"]["queueOffset"])
    assert sorted(by_queue) == [0, 1, 2, 3]
    repeated = [event["message"] for event in events if event["try"] > 1]
    assert [message["body"] for message in repeated] == ["m 7"]
    for queue_id, offsets in by_queue.items():
        if queue_id == repeated[0]["queueId"]:
            offsets.remove(repeated[0]["queueOffset"])
        assert offsets == list(range(len(offsets)))


def test_what_an_orderly_consumer_gives_up_is_a_dead_letter_at_once(run: Run) -> None:
    bodies = [message["body"] for message in received(run, "orderly_dlq", "listener")]
    assert bodies.count("hopeless") == 2
    assert bodies.index("after") > bodies.index("hopeless") or bodies[0] == "after"
    (dead,) = received(run, "orderly_dlq", "dlq")
    assert dead["body"] == "hopeless"
    assert dead["topic"].startswith("%DLQ%")


def test_a_request_is_answered_and_one_without_an_answer_times_out(run: Run) -> None:
    answers = run.events("request_reply", "answered")
    assert [event["body"] for event in answers] == [f"re: question {n}" for n in range(3)]
    assert run.one("request_reply", "timedOut")
    assert not run.events("request_reply", "replyFailed")
    assert [result["status"] for result in run.sent("request_reply")] == ["SEND_OK"] * 3
