"""The words of `produce`, `consume` and `pull`: topics by -t, delays by time, places by any of their names."""

from collections.abc import Iterator

import pytest

from ropewalk.testing import BrokerProcess, RopewalkBroker
from tests.tools.conftest import RunCommand
from tools.common.output import UsageError
from tools.messages.consume import Start, parse_start
from tools.messages.delay import parse_delay


@pytest.fixture(scope="module")
def odd_levels() -> Iterator[RopewalkBroker]:
    """A broker with a table of its own: ten seconds are its second level."""
    with BrokerProcess({"messageDelayLevel": "2s 10s 60s"}) as process:
        broker = RopewalkBroker(process, "")
        yield broker
        broker.close()


@pytest.mark.parametrize("option", ["-t", "--topic"])
def test_t_is_the_topic_everywhere(
    ropewalk: RunCommand, ropewalk_broker: RopewalkBroker, option: str
) -> None:
    topic, at = ropewalk_broker.topic("words"), ("-n", ropewalk_broker.namesrv)
    assert ropewalk("produce", option, topic, "hello", "world", "--tags", "new", *at).status == 0
    assert ropewalk("consume", option, topic, *at).lines == ["hello", "world"]
    assert ropewalk("consume", option, topic, "--tags", "old", *at).lines == []
    assert "next offset" in ropewalk("pull", option, topic, *at).lines[0]


@pytest.mark.parametrize("command", ["produce", "consume", "pull"])
def test_without_a_topic_it_asks_which(ropewalk: RunCommand, command: str) -> None:
    ended = ropewalk(command)
    assert ended.status == 2 and "which topic?" in ended.errors


def test_a_topic_that_its_first_message_makes_is_told_with_the_near_name(
    ropewalk: RunCommand, ropewalk_broker: RopewalkBroker
) -> None:
    topic, at = ropewalk_broker.topic("orders"), ("-n", ropewalk_broker.namesrv)
    assert "did not exist" not in ropewalk("produce", topic, "x", *at).errors
    misspelt = topic.replace("orders", "ordres")
    ended = ropewalk("produce", misspelt, "x", *at)
    assert ended.status == 0
    assert (
        f"topic {misspelt} did not exist and was made by its first message; did you mean {topic}?"
        in ended.errors
    )
    assert "did not exist" not in ropewalk("produce", misspelt, "x", *at).errors


def test_a_delay_by_time_is_looked_up_in_the_brokers_table(
    ropewalk: RunCommand, odd_levels: RopewalkBroker
) -> None:
    at = ("-n", odd_levels.namesrv)
    topic = odd_levels.topic("later")
    assert ropewalk("produce", topic, "x", "--delay", "2s", *at).status == 0
    (record,) = odd_levels.messages(topic, 1)
    assert 1900 <= record.store_timestamp_ms - record.born_timestamp_ms < 9000, (
        "two seconds, not a level of another table"
    )
    ended = ropewalk("produce", topic, "x", "--delay", "30s", *at)
    assert ended.status == 2 and "no level of this length; it has 2s, 10s, 60s" in ended.errors
    line = b'{"body": "y", "delay": "30s"}\n'
    assert ropewalk("produce", topic, "--json-lines", *at, stdin=line).status != 0
    assert (
        "no level of this length"
        in ropewalk("admin", "message", "send", topic, "x", "--delay", "30s", *at).errors
    )


def test_equal_times_are_equal_however_they_are_written() -> None:
    tables = {"a": "2s 10s 60s"}
    assert parse_delay("1m", lambda: tables) == 3 == parse_delay("60s", lambda: tables)
    with pytest.raises(UsageError, match="level 1 at b, 2 at a"):
        parse_delay("10s", lambda: {"a": "2s 10s", "b": "10s"})
    assert parse_delay("10s", lambda: {"a": None}) == 3, "a broker that tells nothing has RocketMQ's table"


@pytest.mark.parametrize(("word", "place"), [("first", "earliest"), ("LAST", "latest"), ("end", "latest")])
def test_places_have_the_neighbours_names(word: str, place: str) -> None:
    assert parse_start(word) == Start(place)


def test_the_nearest_place_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean earliest"):
        parse_start("earlist")
