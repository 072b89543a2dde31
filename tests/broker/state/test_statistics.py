"""Statistics: windows over the last minute, hour and day, without work for those who are not asked."""

from random import Random

import pytest

from broker.state.statistics import DAY, HOUR, MINUTE, Meter, Rates, Statistics, TopicMeter
from tests.support.walks import Walked

T0 = 1_700_000_000_000 - 1_700_000_000_000 % 3_600_000  # a full hour


def test_a_minute_forgets_what_is_older_than_its_slots() -> None:
    meter = Meter(T0)
    meter.add(T0, 10, 1000)
    meter.add(T0 + 30_000, 5, 500)
    assert meter.snapshot(MINUTE, T0 + 59_000).sum == 15
    assert meter.snapshot(MINUTE, T0 + 75_000).sum == 5
    assert meter.snapshot(MINUTE, T0 + 200_000).sum == 0
    assert meter.snapshot(HOUR, T0 + 200_000).sum == 15
    assert meter.snapshot(HOUR, T0 + 69 * 60_000).sum == 15, "six whole slots, and the one that has begun"
    assert meter.snapshot(HOUR, T0 + 71 * 60_000).sum == 0
    assert meter.snapshot(DAY, T0 + 24 * 3_600_000 - 1).sum == 15
    assert meter.snapshot(DAY, T0 + 20 * 3_600_000).sum == 15
    assert meter.snapshot(DAY, T0 + 26 * 3_600_000).sum == 0


def test_a_rate_is_over_the_time_the_meter_has_lived() -> None:
    meter = Meter(T0)
    for second in range(20):
        meter.add(T0 + second * 1000, 2, 20)
    shown = meter.snapshot(MINUTE, T0 + 20_000)
    assert (shown.sum, shown.tps, shown.avgpt) == (40, 2.0, 2.0)
    assert meter.snapshot(MINUTE, T0 + 20_000, of_bytes=True).sum == 400


def test_a_windowed_sum_is_what_a_plain_list_of_events_says() -> None:
    meter = Meter(T0)
    events: list[tuple[int, int]] = []
    now = T0
    for step in range(3000):
        now += (step * 7919) % 4000
        meter.add(now, step % 5, 0)
        events.append((now, step % 5))
        if step % 97 == 0:
            for window in (MINUTE, HOUR):
                begin = (now // window.slot_ms - window.slots) * window.slot_ms
                assert meter.snapshot(window, now).sum == sum(n for at, n in events if at >= begin)


def test_topics_groups_and_the_broker_are_counted_under_the_originals_names() -> None:
    stats = Statistics("C", T0)
    stats.put("T", T0, 3, 300)
    stats.got("T", "g", T0, 2, 200)
    view = stats.view("TOPIC_PUT_NUMS", "T", T0)
    assert view is not None and view["statsDay"].to_json()["sum"] == 3
    for name, key, expected in [
        ("TOPIC_PUT_SIZE", "T", 300),
        ("GROUP_GET_NUMS", "T@g", 2),
        ("GROUP_GET_SIZE", "T@g", 200),
        ("BROKER_PUT_NUMS", "C", 3),
        ("BROKER_GET_NUMS", "C", 2),
    ]:
        found = stats.view(name, key, T0)
        assert found is not None and found["statsMinute"].sum == expected, name
    assert stats.view("TOPIC_PUT_NUMS", "U", T0) is None
    assert stats.view("NO_SUCH_NAME", "T", T0) is None


def test_a_deleted_topic_or_group_takes_its_past_along() -> None:
    stats = Statistics("C", T0)
    stats.put("T", T0, 1, 1)
    stats.got("T", "g", T0, 1, 1)
    stats.got("U", "g", T0, 1, 1)
    stats.forget_topic("T")
    assert stats.view("TOPIC_PUT_NUMS", "T", T0) is None
    assert stats.view("GROUP_GET_NUMS", "T@g", T0) is None
    stats.forget_group("g")
    assert stats.view("GROUP_GET_NUMS", "U@g", T0) is None
    stats.put("T", T0, 1, 1)
    view = stats.view("TOPIC_PUT_NUMS", "T", T0)
    assert view is not None and view["statsMinute"].sum == 1


def test_a_deleted_topic_or_group_looks_at_no_other_meters() -> None:
    stats = Statistics("C", T0)
    for number in range(20):
        stats.put(f"T{number}", T0, 1, 1)
        stats.got(f"T{number}", f"g{number}", T0, 1, 1)
    tables = {name: Walked(meters) for name, meters in stats._meters.items()}
    stats._meters.update(tables)
    stats.forget_topic("T7")
    stats.forget_group("g8")
    assert sum(table.walks for table in tables.values()) == 0
    assert stats.view("GROUP_GET_NUMS", "T7@g7", T0) is None
    assert stats.view("GROUP_GET_NUMS", "T8@g8", T0) is None
    assert stats.view("TOPIC_PUT_NUMS", "T8", T0) is not None


def test_messages_to_many_topics_are_counted_as_one_by_one() -> None:
    """Whenever somebody looks, and with whatever else is counted in between."""
    together, singly = Statistics("C", T0), Statistics("C", T0)
    chance, now = Random(5), T0
    known: list[str] = []
    for step in range(300):
        now += chance.choice((0, 5, 900, 7000))
        topics, size = chance.choices(("a", "b", "c", "d"), k=5), chance.choice((100, 2000, 5000 + step))
        slots = [2 * "abcd".index(topic) + chance.randint(0, 1) for topic in topics]
        known += "aabbccdd"[len(known) : 1 + max(slots)]
        together.put_each(slots, known, now, size, 0.02)
        for topic in topics:
            singly.put(topic, now, 1, size, 0.02)
        if step % 7 == 0:
            for stats in (together, singly):
                stats.put("a", now, 2, 300)
        if step % 50 == 0:
            for stats in (together, singly):
                stats.forget_topic("b")
        if step % 5 == 0:
            for stats in (together, singly):
                stats.tick(now)
        if step % 11 == 0:
            for key in "abcd":
                name = chance.choice(("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"))
                shown, wanted = (stats.view(name, key, now) or {} for stats in (together, singly))
                assert {k: (v.sum, v.avgpt) for k, v in shown.items()} == {
                    k: (v.sum, v.avgpt) for k, v in wanted.items()
                }
    for (topic, one), (same, other) in zip(
        sorted(together.meters("TOPIC_PUT_NUMS")), sorted(singly.meters("TOPIC_PUT_NUMS")), strict=True
    ):
        assert isinstance(one, TopicMeter) and isinstance(other, TopicMeter)
        assert (topic, one.totals(), one.classes, one.classes_total) == (
            same,
            other.totals(),
            other.classes,
            other.classes_total,
        )
    assert together.puts.messages == singly.puts.messages
    assert together.puts.bytes == singly.puts.bytes


def test_names_beyond_the_bound_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.state.statistics.METERS_MAX", 2)
    stats = Statistics("C", T0)
    for topic in ("a", "b", "c"):
        stats.put(topic, T0, 1, 1)
    assert stats.view("TOPIC_PUT_NUMS", "b", T0) is not None
    assert stats.view("TOPIC_PUT_NUMS", "c", T0) is None
    assert stats.puts.messages == 3


def test_rates_are_three_averages_separated_by_blanks() -> None:
    rates = Rates()
    assert rates.text() == "0.0 0.0 0.0"
    for second in range(601):
        rates.sample(T0 + second * 1000, second * 5 if second > 590 else 0)
    short, minute, long = map(float, rates.text().split(" "))
    assert short == 300.0
    assert minute == 50.0
    assert long == 5.0


def test_mornings_are_noted_when_a_day_begins() -> None:
    stats = Statistics("C", T0)
    day = 86_400_000
    stats.tick(T0)
    stats.put("T", T0, 7, 7)
    stats.tick(T0 + day)
    stats.put("T", T0 + day, 5, 5)
    stats.tick(T0 + 2 * day)
    daily = stats.daily()
    assert daily["msgPutTotalYesterdayMorning"] == 7
    assert daily["msgPutTotalTodayMorning"] == 12
    assert daily["msgPutTotalTodayNow"] == 12
    assert daily["msgGetTotalTodayNow"] == 0
