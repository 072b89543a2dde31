"""Every word for a place in a queue that neighbours use, and the nearest right one for those that nobody does."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ropewalk import AsyncPullConsumer, AsyncPushConsumer, PullConsumer, PushConsumer
from ropewalk.client.core.consume.consume_from import ConsumeFrom, parse_consume_from


@pytest.mark.parametrize(
    "word", ["earliest", "first", "begin", "beginning", "oldest", "smallest", "Earliest ", "FIRST"]
)
def test_words_for_the_beginning(word: str) -> None:
    assert parse_consume_from(word) == "earliest"


@pytest.mark.parametrize("word", ["latest", "last", "end", "newest", "largest", "CONSUME_FROM_LAST_OFFSET"])
def test_words_for_the_end(word: str) -> None:
    assert parse_consume_from(word) == "latest"


@pytest.mark.parametrize(
    "moment",
    [
        1_700_000_000_000,
        "1700000000000",
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20+00:00",
        datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        datetime(2023, 11, 14, 23, 13, 20, tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_times(moment: ConsumeFrom) -> None:
    assert parse_consume_from(moment) == 1_700_000_000_000


@pytest.mark.parametrize(
    "value, said",
    [
        ("earlist", 'did you mean "earliest"'),
        ("lates", 'did you mean "latest"'),
        ("yesterday", 'none of "earliest", "latest"'),
        (0, "seek"),
        (17, "seek"),
        (-1, "long ago"),
        (1_700_000_000, "may be seconds"),
        (1_700_000_000.5, "and not 1700000000.5"),
        (True, "and not True"),
        (None, "and not None"),
    ],
)
@pytest.mark.parametrize("kind", [PushConsumer, AsyncPushConsumer, PullConsumer, AsyncPullConsumer])
def test_any_other_value_is_refused_when_a_consumer_is_made(kind: Any, value: Any, said: str) -> None:
    handler = () if kind in (PullConsumer, AsyncPullConsumer) else (print,)
    with pytest.raises((ValueError, TypeError), match=said):
        kind("g", {"T": "*"}, *handler, "127.0.0.1:1", consume_from=value)
