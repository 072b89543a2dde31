"""The words of `produce`, `consume` and `pull`: topics by -t, delays by time, places by any of their names."""

from collections.abc import Iterator

import pytest

from ropewalk.testing import BrokerProcess, RopewalkBroker
from tests.tools.conftest import RunCommand
from tools.common.output import UsageError
from tools.messages.consume import Start, parse_start
from tools.messages.delay import BrokerDelays, parse_delay, parse_time


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


@pytest.mark.parametrize("level", ["0", "19", "99", "1000", "4"])
def test_a_delay_level_that_a_broker_has_not_is_refused_with_those_that_it_has(level: str) -> None:
    tables = {"a": BrokerDelays("2s 10s 60s")} if level == "4" else {"a": BrokerDelays()}
    levels = r"1 to 3 \(1: 2s, 2: 10s, 3: 60s\)" if level == "4" else r"1 to 18 \(1: 1s, 2: 5s, .*, 18: 2h\)"
    with pytest.raises(UsageError, match=f"delay level {level}: broker a has the levels {levels}"):
        parse_delay(level, lambda: tables)
    assert parse_delay("3", lambda: tables) == {"DELAY": "3"}


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
    assert ropewalk("produce", topic, "y", "--delay", "1.2s", *at).status == 0
    line = b'{"body": "y", "delay": "1200ms"}\n'
    assert ropewalk("produce", topic, "--json-lines", *at, stdin=line).status == 0
    assert ropewalk("admin", "message", "send", topic, "y", "--delay", "1200ms", *at).status == 0
    for record in odd_levels.messages(topic, 4)[1:]:
        assert 200 <= record.store_timestamp_ms - record.born_timestamp_ms < 9000, "a slot, and no level"


def test_equal_times_are_equal_however_they_are_written() -> None:
    tables = {"a": BrokerDelays("2s 10s 60s")}
    assert parse_delay("1m", lambda: tables) == {"DELAY": "3"} == parse_delay("60s", lambda: tables)
    told_nothing = {"a": BrokerDelays()}
    assert parse_delay("10s", lambda: told_nothing) == {"DELAY": "3"}, (
        "a broker that tells nothing has RocketMQ's table"
    )


def test_a_time_that_is_no_level_at_every_broker_goes_to_the_timer_wheel() -> None:
    tables = {"a": BrokerDelays("2s 10s", timers=True), "b": BrokerDelays("10s", timers=True)}
    assert parse_delay("10s", lambda: tables) == {"TIMER_DELAY_MS": "10000"}, "level 2 at a, 1 at b"
    assert parse_delay("1.5h", lambda: tables) == {"TIMER_DELAY_MS": "5400000"}
    assert parse_delay("3.001s") == {"TIMER_DELAY_MS": "3001"}
    tables["b"] = BrokerDelays("10s")
    with pytest.raises(UsageError, match=r"broker b has no timer wheel.*it has 10s"):
        parse_delay("3s", lambda: tables)


def test_a_moment_is_iso_8601_or_milliseconds_and_nothing_else() -> None:
    assert parse_time("1970-01-01T00:01:30+00:00") == {"TIMER_DELIVER_MS": "90000"}
    assert parse_time("1700000000000") == {"TIMER_DELIVER_MS": "1700000000000"}
    with pytest.raises(UsageError, match="these may be seconds"):
        parse_time("1700000000")
    assert parse_time("1970-01-01T01:00:00.0001+01:00") == {"TIMER_DELIVER_MS": "1"}, "never early"
    for text in ("soon", "", "99999-01-01", "9" * 30 + "x"):
        with pytest.raises(UsageError, match="--deliver-at"):
            parse_time(text)


@pytest.mark.parametrize(("word", "place"), [("first", "earliest"), ("LAST", "latest"), ("end", "latest")])
def test_places_have_the_neighbours_names(word: str, place: str) -> None:
    assert parse_start(word) == Start(place)


def test_the_nearest_place_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean earliest"):
        parse_start("earlist")
