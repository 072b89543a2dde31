"""Messages as programs make them: keys as a list, delays as times, results that a person can read."""

from datetime import timedelta
from typing import Any

import pytest

from ropewalk import Message, Queue, SendResult, SendStatus
from ropewalk.client.core.messages import send_request
from ropewalk.client.core.produce.delay_levels import DEFAULT_DELAY_LEVELS, delay_level_of
from ropewalk.format.properties import parse_properties

ONE = Queue("broker-a", 1)


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
    assert message.delay_level == level
    assert properties(message).get("DELAY") == (str(level) if level else None)
    assert message.can_be_batched == (level == 0)


def test_a_delay_that_is_no_level_is_refused_and_the_levels_are_named() -> None:
    with pytest.raises(ValueError, match=f"0:00:15 is none .*: {DEFAULT_DELAY_LEVELS}"):
        Message(b"x", delay=timedelta(seconds=15))
    with pytest.raises(TypeError, match="timedelta"):
        delay_level_of(15)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not both"):
        Message(b"x", delay=timedelta(seconds=1), delay_level=1)


def test_a_result_is_shown_in_a_line() -> None:
    result = SendResult(SendStatus.SEND_OK, ONE, 7, ("0A",), ("7F01",))
    assert (result.message_id, repr(result)) == ("7F01", "<SendResult SEND_OK broker-a/1@7 7F01>")
    batch = SendResult(SendStatus.SEND_OK, ONE, 7, ("0A", "0B"), ("7F01", "7F02"))
    assert repr(batch) == "<SendResult SEND_OK broker-a/1@7 2 messages>"
