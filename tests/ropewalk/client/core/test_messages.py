"""Messages as programs make them: keys as a list, delays as times, results that a person can read."""

from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from ropewalk import Message, Queue, SendResult, SendStatus
from ropewalk.client.core.messages import send_request
from ropewalk.format.properties import parse_properties

ONE = Queue("broker-a", 1)
HOUR_EAST = timezone(timedelta(hours=1))


def properties(message: Message) -> dict[str, str]:
    return parse_properties(send_request("T", ONE, message, "id", 0).ext["i"])


@pytest.mark.parametrize(
    "keys, kept, sent",
    [
        (None, None, None),
        ([], None, None),
        ("order-7", ["order-7"], "order-7"),
        (["order-7"], ["order-7"], "order-7"),
        (("order-7", "customer-3"), ["order-7", "customer-3"], "order-7 customer-3"),
    ],
)
def test_keys_are_a_list_and_a_text_is_one_key(keys: Any, kept: Any, sent: str | None) -> None:
    message = Message(b"x", keys=keys)
    assert message.keys == kept
    assert properties(message).get("KEYS") == sent


@pytest.mark.parametrize(
    "keys, said",
    [
        ("order-7 customer-3", r"a list, as in keys=\['order-7', 'customer-3'\]"),
        (["two words"], "separated by blanks"),
        ("", "cannot be a key"),
        ([7], "a key is text, and not 7"),
    ],
)
def test_what_would_be_another_key_on_the_wire_is_refused(keys: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Message(b"x", keys=keys)


@pytest.mark.parametrize(
    "delay, level",
    [
        (timedelta(0), 0),
        (timedelta(seconds=1), 1),
        (timedelta(seconds=10), 3),
        (timedelta(minutes=1), 5),
        (timedelta(seconds=600), 14),
        (timedelta(hours=2), 18),
    ],
)
def test_a_delay_is_the_level_of_that_time(delay: timedelta, level: int) -> None:
    message = Message(b"x", delay=delay)
    assert properties(message).get("DELAY") == (str(level) if level else None)
    assert message.can_be_batched == (level == 0)
    assert properties(msgspec.structs.replace(message, tags="t")).get("DELAY") == properties(message).get(
        "DELAY"
    )


def test_any_other_delay_and_a_moment_are_times_of_a_timer_message() -> None:
    for message, property in (
        (Message(b"x", delay=timedelta(seconds=15, microseconds=1)), {"TIMER_DELAY_MS": "15001"}),
        (Message(b"x", deliver_at=1_700_000_000_001), {"TIMER_DELIVER_MS": "1700000000001"}),
        (
            Message(b"x", deliver_at=datetime(1970, 1, 1, 1, 1, tzinfo=HOUR_EAST)),
            {"TIMER_DELIVER_MS": "60000"},
        ),
    ):
        assert property.items() <= properties(message).items() and not message.can_be_batched
        assert "DELAY" not in properties(message)


def test_times_that_are_none_are_refused_where_the_message_is_made() -> None:
    for wrong, error, words in (
        ({"delay": 15}, TypeError, "timedelta"),
        ({"delay": timedelta(seconds=-1)}, ValueError, "in the past"),
        ({"deliver_at": datetime(2026, 1, 1)}, ValueError, "no time zone"),
        ({"deliver_at": "noon"}, TypeError, "milliseconds since 1970"),
        ({"delay": timedelta(seconds=1), "delay_level": 1}, ValueError, "not both"),
        ({"delay": timedelta(seconds=1), "deliver_at": 1}, ValueError, "not both"),
    ):
        with pytest.raises(error, match=words):
            Message(b"x", **wrong)


def test_a_result_is_shown_in_a_line() -> None:
    result = SendResult(SendStatus.SEND_OK, ONE, 7, ("0A",), ("7F01",))
    assert (result.message_id, repr(result)) == ("7F01", "<SendResult SEND_OK broker-a/1@7 7F01>")
    batch = SendResult(SendStatus.SEND_OK, ONE, 7, ("0A", "0B"), ("7F01", "7F02"))
    assert repr(batch) == "<SendResult SEND_OK broker-a/1@7 2 messages>"
