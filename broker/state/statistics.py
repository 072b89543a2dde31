"""Traffic of this broker: counts and bytes by topic and group, over the last minute, hour and day.

A `Meter` is three running totals (times, messages, bytes) and, for each window, the totals at the beginnings of its
recent slots. It is fed once for a run of messages or for an answer, never for a message, and costs nothing in
between: slots begin when the next feed finds that one has, and what a window holds is worked out when somebody
asks.

    minute: slots of 10 s, 6 of them      hour: slots of 10 min, 6      day: slots of 1 h, 24

A window reaches back over its whole slots and the current one, as RocketMQ's do. Names and keys are RocketMQ's (code
315): `TOPIC_PUT_NUMS` by topic, `GROUP_GET_NUMS` by `topic@group`, `BROKER_PUT_NUMS` by cluster. Totals begin at the
start of the process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, NamedTuple

from broker.remoting.rpc_times import RpcTimes
from store.io.durations import Durations

__all__ = [
    "CONSUMER_GROUP",
    "CREATION_BOUNDS_MS",
    "PUT_TIME_BOUNDS_MS",
    "SIZE_BOUNDS",
    "TOPIC",
    "Meter",
    "Snapshot",
    "Statistics",
    "Window",
]

METERS_MAX = 100_000
"""Beyond this a new pair of topic and group is not counted: names come from strangers."""
_SIZES_MAX: Final = 8
PUT_TIME_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)
"""Upper bounds of the classes in which the original tells how long appends took; the last class is open."""
CREATION_BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)
SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Upper bounds of the classes of records by size."""
TOPIC: Final = "topic"
CONSUMER_GROUP: Final = "group"


class Totals(NamedTuple):
    """Of one meter since the start."""

    times: int
    messages: int
    bytes: int


class Window(NamedTuple):
    slot_ms: int
    slots: int


MINUTE: Final = Window(10_000, 6)
HOUR: Final = Window(600_000, 6)
DAY: Final = Window(3_600_000, 24)
_WINDOWS: Final = (MINUTE, HOUR, DAY)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A window of a value, as code 315 shows it."""

    sum: int
    tps: float
    avgpt: float
    """The average per time: messages, or bytes, of one feed."""

    def to_json(self) -> dict[str, float]:
        return {"avgpt": self.avgpt, "sum": self.sum, "tps": self.tps}


class Meter:
    """The totals of one name and key, and their recent past."""

    __slots__ = ("_created_ms", "_marks", "_next_slot_ms", "bytes", "messages", "times")

    def __init__(self, now_ms: int) -> None:
        self.times = 0
        self.messages = 0
        self.bytes = 0
        self._created_ms = now_ms
        # By window: (slot number, totals when it began), oldest first; slots in which nothing came have no entry.
        self._marks: tuple[deque[tuple[int, Totals]], ...] = tuple(deque() for _ in _WINDOWS)
        self._next_slot_ms = 0
        self.begin_slots(now_ms)

    def add(self, now_ms: int, messages: int, size: int) -> None:
        """Count one run: `messages` with `size` bytes together. HOT."""
        if now_ms >= self._next_slot_ms:
            self.begin_slots(now_ms)
        self.times += 1
        self.messages += messages
        self.bytes += size

    def begin_slots(self, now_ms: int) -> None:
        """Note the totals at the beginning of each slot that has begun; `add` does it by itself."""
        totals = self.totals()
        for window, marks in zip(_WINDOWS, self._marks, strict=True):
            slot = now_ms // window.slot_ms
            if not marks or marks[-1][0] < slot:
                marks.append((slot, totals))
                while marks[0][0] < slot - window.slots:
                    marks.popleft()
        self._next_slot_ms = (now_ms // MINUTE.slot_ms + 1) * MINUTE.slot_ms

    def totals(self) -> Totals:
        return Totals(self.times, self.messages, self.bytes)

    def over(self, window: Window, now_ms: int) -> tuple[Totals, float]:
        """Return the amount within a window that ends now, and its seconds."""
        marks = self._marks[_WINDOWS.index(window)]
        first = now_ms // window.slot_ms - window.slots
        at = bisect_left(marks, first, key=lambda mark: mark[0])
        before = marks[at][1] if at < len(marks) else self.totals()
        seconds = (now_ms - max(first * window.slot_ms, self._created_ms)) / 1000
        now = self.totals()
        return Totals(*(now[n] - before[n] for n in range(3))), max(seconds, 1.0)

    def snapshot(self, window: Window, now_ms: int, *, of_bytes: bool = False) -> Snapshot:
        found, seconds = self.over(window, now_ms)
        value = found.bytes if of_bytes else found.messages
        return Snapshot(value, value / seconds, value / found.times if found.times else 0.0)


class TopicMeter(Meter):
    """The messages put into one topic, and their sizes."""

    __slots__ = ("classes", "classes_total")

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.classes = [0] * (len(SIZE_BOUNDS) + 1)
        """Counts as in `SIZE_BOUNDS`; the last class is open."""
        self.classes_total = 0
        """The sizes of what is in these classes."""


class Rates:
    """Averages over the last 10, 60 and 600 seconds of a total that is sampled about once a second."""

    SPANS_MS: Final = (10_000, 60_000, 600_000)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()

    def sample(self, now_ms: int, total: int) -> None:
        samples = self._samples
        samples.append((now_ms, total))
        while samples[0][0] < now_ms - self.SPANS_MS[-1] - 1000:
            samples.popleft()

    def text(self) -> str:
        """The three averages as runtime info (28) shows them."""
        return " ".join(str(self._average(span)) for span in self.SPANS_MS)

    def _average(self, span_ms: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        now_ms, total = self._samples[-1]
        at = min(bisect_left(self._samples, (now_ms - span_ms, -1)), len(self._samples) - 2)
        before_ms, before = self._samples[at]
        return (total - before) * 1000 / max(now_ms - before_ms, 1)


_BY_BYTES: Final = {"TOPIC_PUT_SIZE": "TOPIC_PUT_NUMS", "GROUP_GET_SIZE": "GROUP_GET_NUMS"}
"""Names that tell the bytes of another name's meters."""


class Statistics:
    """All meters of one broker. Plain and synchronous; the loop owns it."""

    def __init__(self, cluster: str, now_ms: int, clock: Callable[[], float] = lambda: 0.0) -> None:
        """`clock` tells seconds, finely: whoever appends reads it before and after."""
        self.cluster = cluster
        self.boot_ms = now_ms
        self.clock = clock
        self.rpc = RpcTimes(clock)
        """How long requests took to answer."""
        self.puts = Meter(now_ms)
        """Everything stored for producers."""
        self.gets = Meter(now_ms)
        """Every pull that found messages."""
        self.missed = 0
        """Pulls that found none."""
        self.put_failures = 0
        self.put_time_max_s = 0.0
        self.put_times = [0] * (len(PUT_TIME_BOUNDS_MS) + 1)
        """Runs by how long they took to append; classes as in `PUT_TIME_BOUNDS_MS`."""
        self.creation_times: dict[tuple[str, bool, bool], Durations] = {}
        """By what was made (`TOPIC`, `CONSUMER_GROUP`), whether it succeeded, and whether it is the system's own."""
        self.put_rates, self.found_rates, self.missed_rates, self.total_rates, self.transferred_rates = (
            Rates() for _ in range(5)
        )
        self._meters: dict[str, dict[str, Meter]] = {}
        self._size = 0
        self._later: dict[int, array[int]] = {}
        """By size, how many messages to which queue, by slot, are still to be counted by topic."""
        self._rare: dict[int, Counter[int]] = {}
        """The same for sizes beyond the first few: one number for each queue would be too many."""
        self._later_topics: Sequence[str] = ()
        self._later_until_ms = self._later_ms = 0
        """When that has to be done because a new slot begins; and when the last of it came."""
        self._overflow = TopicMeter(now_ms)
        self._owned: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
        """The names and keys of meters of each topic and group, which are forgotten with it."""
        self._topics: dict[str, TopicMeter] = {}
        self._groups: dict[tuple[str, str], Meter] = {}
        self._day = date.min
        self._put_mornings = [0, 0]  # yesterday's, today's
        self._get_mornings = [0, 0]
        self._next_sample_ms = 0
        self._meters["BROKER_PUT_NUMS"] = {cluster: self.puts}
        self._meters["BROKER_GET_NUMS"] = {cluster: self.gets}

    # -- feeding -------------------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        now_ms: int,
        messages: int,
        size: int,
        took_s: float = 0.0,
        sizes: Sequence[int] = (),
    ) -> None:
        """A run of messages of one topic was stored, which took so long. HOT: 0.6 us a run.

        `sizes` are what is counted by size: one for each record, or the average of a batch that was one request.
        Nothing, and there is one of `size / messages` for each.
        """
        if self._later and now_ms >= self._later_until_ms:
            self._count_later()
        meter = self._topic(topic, now_ms)
        meter.add(now_ms, messages, size)
        classes = meter.classes
        if sizes:
            meter.classes_total += sum(sizes)
            least = bisect_left(SIZE_BOUNDS, min(sizes))
            if len(sizes) == 1 or bisect_left(SIZE_BOUNDS, max(sizes)) == least:
                classes[least] += len(sizes)
            else:
                for one in sizes:
                    classes[bisect_left(SIZE_BOUNDS, one)] += 1
        else:
            meter.classes_total += size
            classes[bisect_left(SIZE_BOUNDS, size // messages)] += messages
        self._count_puts(messages, size, took_s)

    def _topic(self, topic: str, now_ms: int) -> TopicMeter:
        meter = self._topics.get(topic)
        if meter is None:
            found = self.meter("TOPIC_PUT_NUMS", topic, now_ms)
            assert isinstance(found, TopicMeter)
            meter = self._topics[topic] = found
        return meter

    def _count_puts(self, messages: int, size: int, took_s: float) -> None:
        puts = self.puts  # its slots begin with the ticks
        puts.times += 1
        puts.messages += messages
        puts.bytes += size
        if took_s > self.put_time_max_s:
            self.put_time_max_s = took_s
        self.put_times[0 if took_s < 0.001 else bisect_left(PUT_TIME_BOUNDS_MS, took_s * 1000)] += 1

    def put_each(
        self, slots: Sequence[int], topics: Sequence[str], now_ms: int, size: int, took_s: float
    ) -> None:
        """A run of messages of `size` bytes, each to the topic of its slot, was stored in so long. HOT.

        They are counted by topic when somebody asks or a slot of time ends: the meters of thousands of topics are in
        no cache, and to look for one at each message costs a third of what else is done for it. `topics` is always
        one list, which grows.
        """
        if now_ms >= self._later_until_ms:
            self._count_later()
            self._later_until_ms = (now_ms // MINUTE.slot_ms + 1) * MINUTE.slot_ms
        self._later_ms, self._later_topics = now_ms, topics
        later = self._later.get(size)
        if later is None and len(self._later) < _SIZES_MAX:
            later = self._later[size] = array("I")
        if later is None:
            self._note_rare(slots, size)
        else:
            if len(later) < len(topics):
                later.frombytes(bytes(later.itemsize * (len(topics) - len(later))))
            for slot in slots:
                later[slot] += 1
        self._count_puts(len(slots), len(slots) * size, took_s)

    def _note_rare(self, slots: Sequence[int], size: int) -> None:
        rare = self._rare.get(size)
        if rare is None:
            if len(self._rare) >= _SIZES_MAX:
                self._count_rare()
            rare = self._rare[size] = Counter()
        rare.update(slots)

    def _count_later(self) -> None:
        """Count by topic what was not yet."""
        for size, counts in self._later.items():
            self._count_slots(size, enumerate(counts))
        self._later.clear()
        self._count_rare()

    def _count_rare(self) -> None:
        for size, counts in self._rare.items():
            self._count_slots(size, counts.items())
        self._rare.clear()

    def _count_slots(self, size: int, counts: Iterable[tuple[int, int]]) -> None:
        now_ms = self._later_ms  # all came in this slot of time
        least = bisect_left(SIZE_BOUNDS, size)
        topics: Counter[str] = Counter()
        for slot, messages in counts:
            if messages:
                topics[self._later_topics[slot]] += messages
        for topic, messages in topics.items():
            meter = self._topic(topic, now_ms)
            meter.add(now_ms, messages, messages * size)
            meter.times += messages - 1
            meter.classes[least] += messages
            meter.classes_total += messages * size

    def got(self, topic: str, group: str, now_ms: int, messages: int, size: int) -> None:
        """A pull was answered with messages. HOT."""
        meter = self._groups.get((topic, group))
        if meter is None:
            meter = self._groups[topic, group] = self.meter("GROUP_GET_NUMS", f"{topic}@{group}", now_ms)
        meter.add(now_ms, messages, size)
        gets = self.gets
        gets.times += 1
        gets.messages += messages
        gets.bytes += size

    def dead(self, topic: str, group: str, now_ms: int, size: int) -> None:
        """A message that was first sent to `topic` has become a dead letter of a group."""
        self.meter("DLQ_PUT_NUMS", f"{topic}@{group}", now_ms).add(now_ms, 1, size)

    def created(self, what: str, *, ok: bool, is_system: bool, took_s: float) -> None:
        """An administrator's request to make or change something was carried out, or refused."""
        times = self.creation_times.get((what, ok, is_system))
        if times is None:
            bounds = [bound / 1000 for bound in CREATION_BOUNDS_MS]
            times = self.creation_times[what, ok, is_system] = Durations(bounds)
        times.add(took_s)

    def meter(self, name: str, key: str, now_ms: int) -> Meter:
        """The meter of any other name and key, made on first use; keep it to save the look-up.

        Past `METERS_MAX` it is one that nobody can look at.
        """
        meters = self._meters.setdefault(name, {})
        meter = meters.get(key)
        if meter is None:
            if self._size >= METERS_MAX:
                return self._overflow
            self._size += 1
            for owner in _owners(name, key):
                self._owned.setdefault(owner, {})[name, key] = None
            meter = meters[key] = TopicMeter(now_ms) if name == "TOPIC_PUT_NUMS" else Meter(now_ms)
        return meter

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted, and its past with it."""
        self._forget(("topic", topic))

    def forget_group(self, group: str) -> None:
        self._forget(("group", group))

    def _forget(self, gone: tuple[str, str]) -> None:
        self._count_later()
        for name, key in list(self._owned.get(gone, ())):
            del self._meters[name][key]
            self._size -= 1
            for owner in _owners(name, key):
                del self._owned[owner][name, key]
                if not self._owned[owner]:
                    del self._owned[owner]
        self._topics.clear()
        self._groups.clear()

    # -- looking -------------------------------------------------------------------------------------

    def view(self, name: str, key: str, now_ms: int) -> dict[str, Snapshot] | None:
        """The three windows of one statistic (315), or None if it was never counted."""
        self._count_later()
        meter = self._meters.get(_BY_BYTES.get(name, name), {}).get(key)
        if meter is None:
            return None
        of_bytes = name in _BY_BYTES
        return {
            "statsMinute": meter.snapshot(MINUTE, now_ms, of_bytes=of_bytes),
            "statsHour": meter.snapshot(HOUR, now_ms, of_bytes=of_bytes),
            "statsDay": meter.snapshot(DAY, now_ms, of_bytes=of_bytes),
        }

    def meters(self, name: str) -> list[tuple[str, Meter]]:
        """Every key of one name with its meter."""
        self._count_later()
        return list(self._meters.get(name, {}).items())

    def topic_put_tps(self, topic: str, now_ms: int) -> float:
        return self._tps("TOPIC_PUT_NUMS", topic, now_ms)

    def group_get_tps(self, topic: str, group: str, now_ms: int) -> float:
        return self._tps("GROUP_GET_NUMS", f"{topic}@{group}", now_ms)

    def _tps(self, name: str, key: str, now_ms: int) -> float:
        self._count_later()
        meter = self._meters.get(name, {}).get(key)
        return meter.snapshot(MINUTE, now_ms).tps if meter is not None else 0.0

    # -- time ----------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Sample the totals about once a second, and note the mornings; call as often as convenient."""
        if now_ms < self._next_sample_ms:
            return
        self._next_sample_ms = now_ms + 1000
        if now_ms >= self._later_until_ms:
            self._count_later()
        self.puts.begin_slots(now_ms)
        self.gets.begin_slots(now_ms)
        self.put_rates.sample(now_ms, self.puts.messages)
        self.found_rates.sample(now_ms, self.gets.times)
        self.missed_rates.sample(now_ms, self.missed)
        self.total_rates.sample(now_ms, self.gets.times + self.missed)
        self.transferred_rates.sample(now_ms, self.gets.messages)
        today = date.fromtimestamp(now_ms / 1000)
        if today != self._day:
            if self._day != date.min:
                self._put_mornings = [self._put_mornings[1], self.puts.messages]
                self._get_mornings = [self._get_mornings[1], self.gets.messages]
            self._day = today

    def daily(self) -> dict[str, int]:
        """Message totals at the last two midnights and now, as runtime info (28) names them."""
        puts, gets = self._put_mornings, self._get_mornings
        return {
            "msgPutTotalYesterdayMorning": puts[0],
            "msgPutTotalTodayMorning": puts[1],
            "msgPutTotalTodayNow": self.puts.messages,
            "msgGetTotalYesterdayMorning": gets[0],
            "msgGetTotalTodayMorning": gets[1],
            "msgGetTotalTodayNow": self.gets.messages,
        }


def _owners(name: str, key: str) -> list[tuple[str, str]]:
    """Return the topic and the group of a meter, whose key is `topic`, `topic@group` or `queue@topic@group`."""
    parts = key.split("@")
    if len(parts) > 1:
        return [("topic", parts[-2]), ("group", parts[-1])]
    return [("topic", key)] if name.startswith("TOPIC_") else []
