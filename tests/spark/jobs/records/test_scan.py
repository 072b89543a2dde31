"""A walk over bytes finds what a plain decoder finds, whatever the records look like, and goes on behind damage."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ropewalk.format.record import (
    Record,
    crc_property,
    decode_record,
    encode_blank,
    encode_host,
    encode_record,
)
from ropewalk.spark.jobs.records import scan as scan_module
from ropewalk.spark.jobs.records.columns import (
    DEFAULT_DELAYS,
    BadDelayLevels,
    is_indexed,
    is_queued,
    parse_delays,
    tag_codes,
    topics_of,
)
from ropewalk.spark.jobs.records.scan import Scan, Stop, Window, find_record, scan

HOSTS = (encode_host("10.0.0.1", 50001), encode_host("2001:db8::1", 50001))
BASE = 1 << 20
DELAYS = parse_delays(DEFAULT_DELAYS)


def make(rng: random.Random, count: int, *, checksums: bool = False) -> tuple[bytes, list[Record]]:
    """Records of all shapes back to back, and what a plain decoder reads."""
    data, records = b"", []
    for number in range(count):
        topic = rng.choice(("T", "orders", "%RETRY%" + "g" * 125, "SCHEDULE_TOPIC_XXXX"))
        pairs = [("UNIQ_KEY", f"{number:032X}")]
        if rng.random() < 0.7:
            pairs.append(("TAGS", rng.choice(("a", "refund", "größe", "x" * 40))))
        if rng.random() < 0.3:
            pairs += [("TAGS", "later"), ("DELAY", str(rng.randrange(0, 30)))]
        properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
        parts: list[Any] = [
            topic.encode(), number % 5, 0, number, BASE + len(data), rng.choice((0, 1, 4, 8, 12, 0x100)),
            1_700_000_000_000, rng.choice(HOSTS), 1_700_000_000_000 + number, rng.choice(HOSTS), 0, 0,
            rng.randbytes(rng.choice((0, 1, 200))), properties + (bytes(20) if checksums else b""),
        ]  # fmt: skip
        record = encode_record(*parts)
        if checksums:
            record = record[:-20] + crc_property(record[:-20])
        records.append(decode_record(record))
        data += record
    return data, records


def window_of(data: bytes, first: int = 1 << 12) -> Window:
    """A window that has to read more again and again."""

    def read(offset: int, size: int) -> bytes:
        return data[offset - BASE : offset - BASE + size]

    return Window(BASE, BASE + len(data), min(first, len(data)), read)


def offsets(found: Scan) -> list[int]:
    return [int(offset) for offset in found.records.offset]


@pytest.fixture(params=(3, scan_module._AT_ONCE))
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few records at once, so that every one of them stands at the end of what is gathered together; and many."""
    monkeypatch.setattr(scan_module, "_AT_ONCE", request.param)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("seed", range(4))
def test_fields_topics_and_tag_codes_are_those_of_the_plain_decoder(seed: int) -> None:
    rng = random.Random(seed)
    data, records = make(rng, 120)
    data += encode_blank(64) + rng.randbytes(56)
    window = window_of(data)
    found = scan(window, BASE + len(data), start=BASE)
    assert found.stop is Stop.FILLER and not found.lost
    topics = topics_of(window.data, found.records)
    codes = tag_codes(window.data, found.records, topics, DELAYS)
    rows = zip(
        offsets(found), found.records.size.tolist(), found.records.queue_id.tolist(), found.records.stored.tolist(),
        [topics.values[n] for n in topics.ids.tolist()], found.records.crc_ok.tolist(), strict=True,
    )  # fmt: skip
    assert list(rows) == [(r.offset, r.size, r.queue_id, r.store_timestamp, r.topic, True) for r in records]
    # Of a transaction that is under way or was given up nothing is handed out; a half message can be looked for.
    kinds = [record.sys_flag & 12 for record in records]
    assert is_queued(found.records).tolist() == [kind in (0, 8) for kind in kinds]
    assert is_indexed(found.records).tolist() == [kind != 12 for kind in kinds]
    for record, code in zip(records, codes.tolist(), strict=True):
        delay = record.properties.get("DELAY")
        if record.topic == "SCHEDULE_TOPIC_XXXX" and delay not in (None, "0"):
            assert code == record.store_timestamp + DELAYS[min(int(delay or 0), 18) - 1]
        else:
            assert -(1 << 31) <= code < 1 << 31 and (code == 0) == (record.tags is None)


@pytest.mark.usefixtures("at_once")
def test_any_damaged_byte_leaves_the_records_around_it(seed: int = 3) -> None:
    data, records = make(random.Random(seed), 12)
    data += encode_blank(8)
    starts = [record.offset for record in records]
    for position in range(records[5].offset - BASE, records[6].offset - BASE):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        found = scan(window_of(bytes(damaged)), BASE + len(data), start=BASE)
        assert found.stop is Stop.FILLER
        assert [o for o in offsets(found) if o != starts[5]] == starts[:5] + starts[6:], position
        for lost in found.lost:
            assert (lost.offset, lost.end) == (starts[5], starts[6]), position
        counted = scan(window_of(bytes(damaged)), BASE + len(data), start=BASE, check_crc=False, keep=False)
        assert (counted.count, len(counted.records)) == (len(found.records), 0)
        assert (counted.first, counted.end, counted.stop, counted.lost) == (
            found.first, found.end, found.stop, found.lost,
        )  # fmt: skip
    damaged = bytearray(data)
    for number, record in enumerate(records):
        if len(record.body) > 1:
            end = starts[number] - BASE + record.size
            damaged[data.index(record.body, starts[number] - BASE)] ^= 1
            last = scan(window_of(bytes(damaged[:end] + encode_blank(8))), BASE + end, start=BASE).records
            assert last.crc_ok.tolist() == [len(each.body) < 2 for each in records[: number + 1]]


def test_whole_record_checksums_cover_header_and_properties() -> None:
    data, records = make(random.Random(1), 20, checksums=True)
    assert scan(window_of(data), BASE + len(data), start=BASE).records.crc_ok.all()
    unseen = 0
    for position in range(records[7].offset - BASE + 12, records[8].offset - BASE - 20):
        damaged = bytearray(data)
        damaged[position] ^= 1
        found = scan(window_of(bytes(damaged)), BASE + len(data), start=BASE)
        unseen += not found.lost and bool(found.records.crc_ok.all())
    assert unseen == 0


def test_a_body_that_holds_a_record_for_its_very_place_is_not_taken_for_one() -> None:
    """A damaged header in front of a forged record: the length that is still there leads past it."""
    host = HOSTS[0]
    first = encode_record(b"T", 0, 0, 0, BASE, 0, 1, host, 1, host, 0, 0, b"x", b"")
    at = BASE + len(first)
    forged = encode_record(b"evil", 0, 0, 7, at + 88, 0, 1, host, 1, host, 0, 0, b"payload", b"")
    carrier = encode_record(b"T", 0, 0, 1, at, 0, 1, host, 1, host, 0, 0, forged, b"")
    last = encode_record(b"T", 0, 0, 2, at + len(carrier), 0, 1, host, 1, host, 0, 0, b"y", b"")
    data = bytearray(first + carrier + last + encode_blank(8))
    data[len(first) + 4] ^= 1
    found = scan(window_of(bytes(data)), BASE + len(data), start=BASE)
    assert offsets(found) == [BASE, at + len(carrier)]
    assert [(each.offset, each.end) for each in found.lost] == [(at, at + len(carrier))]
    # Where no length leads past it, a whole record that says it belongs elsewhere is no record of this log.
    data = bytearray(
        first + carrier.replace(forged, first.ljust(len(forged), b"\0")) + last + encode_blank(8)
    )
    data[len(first) : len(first) + 88] = b"\xff" * 88
    found = scan(window_of(bytes(data)), BASE + len(data), start=BASE)
    assert offsets(found) == [BASE, at + len(carrier)]
    assert [(each.offset, each.end) for each in found.lost] == [(at, at + len(carrier))]


def test_a_search_from_any_byte_finds_the_next_record() -> None:
    data, records = make(random.Random(9), 15)
    window = window_of(data, len(data))
    for position in range(0, len(data), 7):
        wanted = next((r.offset - BASE for r in records if r.offset - BASE >= position), -1)
        assert find_record(window, position, len(data)) == wanted


def test_delays_that_cannot_be_read_are_refused() -> None:
    assert parse_delays("1s 2m 1h 1d") == (1000, 120_000, 3_600_000, 86_400_000)
    for wrong in ("", "1", "x", "1s 2"):
        with pytest.raises(BadDelayLevels, match="number and s, m, h or d"):
            parse_delays(wrong)
