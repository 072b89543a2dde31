"""The decoder against the plain reader of `format.record`: same bytes, same rows, whatever the bytes are."""

from __future__ import annotations

import random
import zlib
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ropewalk.spark.jobs.records.scan as scan_module
import ropewalk.spark.rows.decode as decode_module
from ropewalk.codes import MessageSysFlag
from ropewalk.format.batch import BatchItem, encode_batch
from ropewalk.format.properties import parse_properties
from ropewalk.format.record import (
    Record,
    decode_record,
    encode_blank,
    encode_host,
)
from ropewalk.spark.rows.columns import Plan
from ropewalk.spark.rows.decode import Decoded, Ended, decode_pull, decode_segment, find_record
from ropewalk.spark.rows.headers import checksums
from ropewalk.spark.rows.schema import COLUMNS, SchemaMismatch, Selection, chosen_columns
from tests.spark.rows.records import entry, record
from tests.spark.stores import BORN_HOST, STORE_HOST

pytestmark = pytest.mark.usefixtures("far_from_greenwich")

FULL = chosen_columns("full")
V6_HOST = encode_host("2001:db8::1", 50001)
BASE = 7 << 30


def log_of(many: list[dict[str, Any]], base: int = BASE) -> bytes:
    data = b""
    for parts in many:
        data += record(base + len(data), **parts)
    return data


def decode(data: bytes, base: int | None = BASE, **options: Any) -> Decoded:
    plan = Plan(options.pop("selection", FULL), broker_name="broker-a", **options)
    return decode_segment(data, base, plan=plan)


def rows_of(decoded: Decoded) -> list[dict[str, Any]]:
    return [row for batch in decoded.batches for row in batch.to_pylist()]


def time_of(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def expected_row(found: Record) -> dict[str, Any]:
    """The full preset as the plain reader tells it."""
    return {
        "topic": found.topic,
        "brokerName": "broker-a",
        "queueId": found.queue_id,
        "queueOffset": found.queue_offset,
        "tags": found.properties.get("TAGS"),
        "keys": found.properties.get("KEYS"),
        "body": found.body,
        "properties": sorted(found.properties.items()),
        "bornTimestamp": time_of(found.born_timestamp),
        "storeTimestamp": time_of(found.store_timestamp),
        "uniqKey": found.uniq_key,
        "msgId": found.msg_id,
        "flag": found.flag,
        "sysFlag": found.sys_flag,
        "reconsumeTimes": found.reconsume_times,
        "bodyCRC": found.body_crc,
        "storeSize": found.size,
        "physicalOffset": found.offset,
        "preparedTransactionOffset": found.prepared_transaction_offset,
        "bornHost": f"{found.born_host[0]}:{found.born_host[1]}",
        "storeHost": f"{found.store_host[0]}:{found.store_host[1]}",
    }


i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 4_000_000_000_000)
hosts = st.sampled_from((BORN_HOST, STORE_HOST, V6_HOST))
property_texts = st.lists(
    st.sampled_from(
        (b"TAGS", b"KEYS", b"UNIQ_KEY", b"\x01", b"\x02", b"a", b"", b"\xff", "ü".encode(), b"value", b"\xc3")
    ),
    max_size=14,
).map(b"".join)
records = st.fixed_dictionaries(
    {
        "topic": st.sampled_from((b"t", b"orders", b"%RETRY%" + b"g" * 121, "bestellung-ü".encode())),
        "queue_id": i32,
        "flag": i32,
        "queue_offset": i64,
        "sys_flag": st.sampled_from((0, 2, 8, 0xC)),
        "born_timestamp": times,
        "born_host": hosts,
        "store_timestamp": times,
        "store_host": hosts,
        "reconsume_times": i32,
        "prepared_transaction_offset": i64,
        "body": st.binary(max_size=60),
        "properties": property_texts,
    }
)


@given(st.lists(records, min_size=1, max_size=12))
def test_every_column_is_what_the_plain_reader_says(many: list[dict[str, Any]]) -> None:
    data = log_of(many)
    decoded = decode(data, batch_rows=5)
    rows = rows_of(decoded)
    position = 0
    for row in rows:
        row["properties"] = sorted(row["properties"])
        assert row == expected_row(decode_record(data, position))
        position += row["storeSize"]
    assert (position, decoded.ended, decoded.damage) == (len(data), Ended.LIMIT, [])
    # For a writer of files: the same rows, those of a topic and hour together, bodies not copied.
    grouped = decode(data, batch_rows=5, grouped=True, body_views=True)
    assert len(grouped.batches) == len(decoded.batches)
    at = 0
    for batch in grouped.batches:
        assert batch.schema.field("body").type == pa.binary_view()
        found = [row | {"properties": sorted(row["properties"])} for row in batch.to_pylist()]
        wanted = rows[at : at + len(found)]
        at += len(found)
        assert sorted(found, key=lambda row: row["physicalOffset"]) == wanted
        kinds = [
            (row["topic"], row["storeTimestamp"].replace(minute=0, second=0, microsecond=0)) for row in found
        ]
        assert len({kind for kind, _ in groupby(kinds)}) == len(list(groupby(kinds)))
        assert [kind for kind, _ in groupby(kinds)] == sorted(
            set(kinds), key=lambda kind: ([row["topic"] for row in wanted].index(kind[0]), kind[1])
        )


@pytest.mark.parametrize("seed", range(40))
def test_runs_of_records_of_one_size_are_walked_as_any_others(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    sizes = [size for _ in range(12) for size in [rng.choice((0, 7, 8))] * rng.choice((1, 2, 3, 9, 30))]
    log = bytearray(log_of([{"body": b"x" * size} for size in sizes]) + encode_blank(500))
    for _ in range(rng.choice((0, 0, 1, 2))):
        log[rng.randrange(len(log))] ^= rng.choice((1, 0x80, 0xFF))
    data = bytes(log[: rng.choice((len(log), rng.randrange(len(log))))])
    rows = rng.choice((1, 5, 50, 4096))
    stop = rng.randrange(len(data)) + BASE
    monkeypatch.setattr(decode_module, "_STEPS", 1 << 30)
    monkeypatch.setattr(scan_module, "_STEPS", 1 << 30)
    slow, walked = decode(data, batch_rows=rows), scan_of(data, stop)
    monkeypatch.setattr(decode_module, "_STEPS", 3)
    monkeypatch.setattr(scan_module, "_STEPS", 3)
    fast = decode(data, batch_rows=rows)
    assert rows_of(fast) == rows_of(slow)
    assert [batch.num_rows for batch in fast.batches] == [batch.num_rows for batch in slow.batches]
    assert (fast.damage, fast.ended, fast.next_position) == (slow.damage, slow.ended, slow.next_position)
    assert scan_of(data, stop) == walked


def scan_of(data: bytes, stop: int) -> tuple[Any, ...]:
    found = scan_module.scan(
        scan_module.Window(BASE, BASE + len(data), 200, lambda offset, size: data[offset - BASE :][:size]),
        stop,
    )
    return (
        found.first,
        found.end,
        found.stop,
        found.lost,
        found.records.offset.tolist(),
        found.records.size.tolist(),
    )


@given(st.lists(property_texts, min_size=1, max_size=20))
def test_property_texts_are_cut_as_the_plain_parser_cuts_them(texts: list[bytes]) -> None:
    data = log_of([{"properties": text} for text in texts])
    selection = chosen_columns(columns=("properties",))
    found = [dict(row["properties"]) for row in rows_of(decode(data, selection=selection))]
    assert found == [parse_properties(text) for text in texts]


def test_texts_of_the_same_names_are_cut_alike_however_many_there_are() -> None:
    selection = chosen_columns(columns=("properties", "headers"))
    for names in (b"ab", b"ba", "ö".encode()):
        for count in (1, 300, 256, 2, 257):
            texts = [
                b"".join(b"%c\x01%d\x02" % (name, number) for name in names) if names.isascii()
                else b"%s\x01%d\x02" % (names, number)
                for number in range(count)
            ]  # fmt: skip
            data = log_of([{"properties": text} for text in texts])
            decoded = decode(data, selection=selection)
            for batch in decoded.batches:
                batch.validate(full=True)
            rows = rows_of(decoded)
            expected = [parse_properties(text) for text in texts]
            assert [dict(row["properties"]) for row in rows] == expected
            assert [
                {each["key"]: each["value"].decode() for each in row["headers"]} for row in rows
            ] == expected


def test_a_map_never_holds_a_name_twice() -> None:
    data = log_of([{"properties": b"a\x01one\x02b\x01x\x02a\x01two\x02"}])
    (row,) = rows_of(decode(data, selection=chosen_columns(columns=("properties",))))
    assert sorted(row["properties"]) == [("a", "two"), ("b", "x")]


@given(st.data())
def test_any_stretch_yields_the_records_that_begin_in_it(data: st.DataObject) -> None:
    many = data.draw(st.lists(records, min_size=2, max_size=8))
    log = log_of(many) + encode_blank(1000)
    begins = [row["physicalOffset"] - BASE for row in rows_of(decode(log))]
    start, end = sorted((data.draw(st.integers(0, len(log))), data.draw(st.integers(0, len(log)))))
    first = find_record(log, start, end, BASE, file_size=len(log) + 992)
    expected = [begin for begin in begins if start <= begin < end]
    if first is None:
        assert expected == []
    else:
        decoded = decode_segment(log, BASE, first, end, plan=Plan(FULL), file_size=len(log) + 992)
        assert [row["physicalOffset"] - BASE for row in rows_of(decoded)] == expected


def test_a_record_is_found_again_from_every_byte() -> None:
    log = log_of([{"body": bytes([number]) * (number * 11)} for number in range(12)])
    begins = [row["physicalOffset"] - BASE for row in rows_of(decode(log))]
    for start in range(len(log)):
        following = [begin for begin in begins if begin >= start]
        assert find_record(log, start, len(log), BASE) == (following[0] if following else None)


def test_a_record_copied_into_a_body_is_not_one_of_the_log() -> None:
    copied = record(BASE)
    log = record(BASE, body=copied * 3)
    second = len(log)
    log += record(BASE + second)
    assert find_record(log, 1, len(log), BASE) == second


def test_a_whole_record_in_front_of_a_damaged_one_is_found() -> None:
    log = bytearray(log_of([{}, {}, {}]))
    size = len(log) // 3
    log[2 * size : 2 * size + 8] = b"damaged!"
    assert find_record(bytes(log), 1, len(log), BASE) == size
    log[size + 84] = 0xFF
    assert find_record(bytes(log), 1, len(log), BASE) is None


def test_the_log_goes_on_in_the_next_file_behind_a_blank() -> None:
    log = log_of([{}, {}])
    decoded = decode(log + encode_blank(500) + b"left over" * 10)
    assert (decoded.row_count, decoded.ended, decoded.next_position) == (2, Ended.BLANK, len(log))


def test_zeros_are_where_the_writer_stopped() -> None:
    log = log_of([{}, {}])
    decoded = decode(log + bytes(5000))
    assert (decoded.row_count, decoded.ended, decoded.next_position) == (2, Ended.ZEROS, len(log))
    assert decoded.damage == []


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_tail_is_damage_at_its_record(cut: int) -> None:
    log = log_of([{}, {}, {}])
    size = len(log) // 3
    decoded = decode(log[:-cut] + bytes(4000))
    if decoded.damage:
        assert decoded.damage[0].offset == BASE + 2 * size
        assert decoded.row_count == 2
    else:
        # What was torn off was the end of the properties: zeros are properties too, and the record is whole.
        assert decoded.row_count == 3
        assert cut <= len(b"TAGS\x01a\x02")


@given(st.integers(0, 5), st.integers(0, 90), st.integers(1, 255))
def test_a_flipped_byte_costs_at_most_its_own_record(victim: int, where: int, flip: int) -> None:
    log = bytearray(log_of([{"queue_offset": number} for number in range(6)]))
    size = len(log) // 6
    log[victim * size + where] ^= flip
    decoded = decode(bytes(log), check_crc=True)
    offsets = [row["physicalOffset"] for row in rows_of(decoded)]
    others = [BASE + number * size for number in range(6) if number != victim]
    assert [offset for offset in offsets if offset != BASE + victim * size] == others
    if len(offsets) < 6:
        assert [place.offset for place in decoded.damage] == [BASE + victim * size]


def test_a_record_of_another_place_is_damage() -> None:
    log = log_of([{}, {}])
    size = len(log) // 2
    stale = log[:size] + record(BASE + size + 64)
    decoded = decode(stale)
    (place,) = decoded.damage
    assert (decoded.row_count, place.offset) == (1, BASE + size)
    assert place.reason == f"a record that says it belongs at offset {BASE + size + 64}"


def test_bodies_are_unpacked_by_the_kind_their_flag_names() -> None:
    plain = b"the same again and again " * 40
    flags = MessageSysFlag
    packed = {
        flags.COMPRESSED: zlib.compress(plain),
        flags.COMPRESSED | flags.COMPRESSION_ZLIB: zlib.compress(plain),
        flags.COMPRESSED | flags.COMPRESSION_LZ4: pa.Codec("lz4").compress(plain).to_pybytes(),
        flags.COMPRESSED | flags.COMPRESSION_ZSTD: pa.Codec("zstd").compress(plain).to_pybytes(),
        0: b"short",
    }
    log = log_of([{"sys_flag": flag, "body": body} for flag, body in packed.items()])
    assert [row["body"] for row in rows_of(decode(log))] == [plain] * 4 + [b"short"]
    assert [row["body"] for row in rows_of(decode(log, decompress=False))] == list(packed.values())


def packed_with(codec: str, body: bytes) -> tuple[int, bytes]:
    """Return the flags of a compressed body, and its bytes."""
    kinds = {
        "zlib": MessageSysFlag.COMPRESSION_ZLIB,
        "lz4": MessageSysFlag.COMPRESSION_LZ4,
        "zstd": MessageSysFlag.COMPRESSION_ZSTD,
    }
    packed = zlib.compress(body) if codec == "zlib" else pa.Codec(codec).compress(body).to_pybytes()
    return MessageSysFlag.COMPRESSED | kinds[codec], packed


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_bodies_that_unpack_to_more_than_a_batch_may_hold_come_in_several(codec: str) -> None:
    size = 1 << 20
    flag, packed = packed_with(codec, bytes(size))
    log = log_of([{"sys_flag": flag, "body": packed, "queue_offset": n} for n in range(20)])
    decoded = decode(log, body_bytes_max=3 * size)
    assert all(batch.nbytes < 4 * size for batch in decoded.batches)
    rows = rows_of(decoded)
    assert [row["queueOffset"] for row in rows] == list(range(20)) and not decoded.damage
    assert all(len(row["body"]) == size for row in rows)


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_one_body_beyond_the_bound_is_damage_that_names_the_option(codec: str) -> None:
    size = 1 << 20
    flag, packed = packed_with(codec, bytes(size))
    log = log_of([{}, {"sys_flag": flag, "body": packed}, {}])
    decoded = decode(log, body_bytes_max=size - 1, on_corrupt="skip")
    assert [row["body"] for row in rows_of(decoded)] == [b"hello"] * 2
    (place,) = decoded.damage
    assert f"more than {size - 1} bytes, the option bodyMaxBytes" in place.reason
    assert not decode(log, body_bytes_max=size).damage


@pytest.mark.parametrize("kind", [0, 0x100, 0x200, 0x300, 0x700])
def test_a_body_that_does_not_unpack_is_damage_or_shown_as_stored(kind: int) -> None:
    log = log_of([{}, {"sys_flag": MessageSysFlag.COMPRESSED | kind, "body": b"nonsense"}, {}])
    for policy, bodies in (("skip", [b"hello"] * 2), ("keep", [b"hello", b"nonsense", b"hello"])):
        decoded = decode(log, on_corrupt=policy)
        assert [row["body"] for row in rows_of(decoded)] == bodies
        assert [place.offset - BASE for place in decoded.damage] == [len(log_of([{}]))]


def test_a_checksum_is_checked_where_it_is_asked_for() -> None:
    log = bytearray(log_of([{}, {}, {}]))
    log[len(log) // 3 + 89] ^= 1
    data = bytes(log)
    assert decode(data).damage == []
    assert decode(data, check_crc=True).row_count == 2
    selection = Selection(("crcOk", "body"))
    kept = decode(data, selection=selection, on_corrupt="keep")
    assert [row["crcOk"] for row in rows_of(kept)] == [True, False, True]
    assert "does not match its checksum" in kept.damage[0].reason


@given(
    st.binary(min_size=400, max_size=400),
    st.lists(st.sampled_from([(0, 7), (20, 5), (20, 5), (20, 5), (13, 5), (20, 0)]), max_size=15),
)
def test_checksums_are_of_each_range_however_ranges_follow_each_other(
    data: bytes, steps: list[tuple[int, int]]
) -> None:
    starts, sizes = (
        np.array(list(accumulate(step for step, _ in steps)), np.int64),
        [size for _, size in steps],
    )
    expected = [zlib.crc32(data[at : at + size]) & 0x7FFFFFFF for at, size in zip(starts, sizes, strict=True)]
    ends = starts + np.array(sizes, np.int64)
    assert checksums(data, starts, ends).tolist() == expected


def test_the_messages_of_an_inner_batch_are_rows_of_their_own() -> None:
    items = [BatchItem(number, b"item %d" % number, b"KEYS\x01k%d\x02" % number) for number in range(3)]
    bits = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
    log = log_of([{"queue_offset": 7}, {"queue_offset": 8, "sys_flag": bits, "body": encode_batch(items)}])
    rows = rows_of(decode(log))
    assert [(row["queueOffset"], row["body"], row["keys"], row["flag"]) for row in rows[1:]] == [
        (8, b"item 0", "k0", 0),
        (9, b"item 1", "k1", 1),
        (10, b"item 2", "k2", 2),
    ]
    assert {row["physicalOffset"] for row in rows[1:]} == {BASE + len(log_of([{}]))}
    assert len(rows_of(decode(log, unwrap_batch=False))) == 2
    # The messages have no checksums of their own: the record's is what tells that one of them is damaged.
    damaged = log.replace(b"item 1", b"itfm 1")
    chosen = chosen_columns(columns=("queueOffset", "body", "crcOk"))
    checked = rows_of(decode(damaged, selection=chosen, on_corrupt="keep"))
    assert [(row["queueOffset"], row["crcOk"], b"itfm 1" in row["body"]) for row in checked] == [
        (7, True, False),
        (8, False, True),
    ]
    assert len(rows_of(decode(log, check_crc=True))) == 4


def test_the_entries_of_a_dledger_are_read_with_the_offsets_of_their_records() -> None:
    log = b""
    for index in range(5):
        log += entry(BASE + len(log), index, queue_offset=index)
    size = len(log) // 5
    log += (-1).to_bytes(4, "big", signed=True) + (300).to_bytes(4, "big") + bytes(292)
    decoded = decode_segment(log, BASE, plan=Plan(FULL), log_format="dledger")
    rows = rows_of(decoded)
    assert [row["physicalOffset"] for row in rows] == [BASE + size * index + 48 for index in range(5)]
    assert decoded.ended is Ended.BLANK
    for start in range(size * 5):
        following = -(-start // size) * size
        found = find_record(log, start, len(log), BASE, is_dledger=True)
        assert found == (following if following < size * 5 else None)


def test_a_noop_entry_holds_no_message() -> None:
    noop = (2).to_bytes(4, "big") + (48).to_bytes(4, "big") + bytes(40)
    log = noop + entry(BASE + 48, 1)
    assert decode_segment(log, BASE, plan=Plan(FULL), log_format="dledger").row_count == 1


def test_a_pulls_answer_needs_no_log_around_it() -> None:
    body = record(500) + record(9000)
    assert [row["physicalOffset"] for row in rows_of(decode_pull(body, Plan(FULL)))] == [500, 9000]
    cut = decode_pull(body[:-3], Plan(FULL))
    assert (cut.row_count, len(cut.damage)) == (1, 1)


def test_batches_have_the_schema_that_was_asked_for() -> None:
    log = log_of([{}])
    for name in COLUMNS:
        selection = Selection((name,))
        (batch,) = decode(log, selection=selection).batches
        assert batch.schema == selection.arrow_schema()
    narrow = Selection(("body", "topic"), required=frozenset({"topic"}))
    (batch,) = decode(log, selection=narrow).batches
    assert batch.schema.field("topic").nullable is False
    promised = Selection(("keys",), required=frozenset({"keys"}))
    with pytest.raises(SchemaMismatch, match="keys is declared NOT NULL, and 1 of the messages"):
        decode(log, selection=promised)


@pytest.mark.parametrize("time_ms", [2**62, -(2**63), 253_402_300_800_000, -62_135_596_800_001])
def test_a_time_that_no_calendar_of_python_or_sql_has_is_null(time_ms: int) -> None:
    log = log_of([{"born_timestamp": time_ms}])
    (row,) = rows_of(decode(log))
    assert row["bornTimestamp"] is None


def test_text_that_is_not_utf_8_has_replacement_characters() -> None:
    log = log_of([{"topic": b"a\xffb", "properties": b"TAGS\x01\xc3\x28\x02"}])
    (row,) = rows_of(decode(log))
    assert (row["topic"], row["tags"]) == ("a\ufffdb", "\ufffd(")


def test_the_worked_examples_of_the_format_decode() -> None:
    told = bytes.fromhex(
        "00000073daa320a73610a6860000000300000000000000000000000000000000000000000000000000000"
        "18bcfe568000a0000010000c3510000018bcfe5687b0a00000200002a9f000000000000000000000000000000"
        "0568656c6c6f09546f70696354657374000a544147530154616741" + "02"
    )
    (row,) = rows_of(decode(told, 0, check_crc=True))
    assert (row["topic"], row["tags"], row["body"]) == ("TopicTest", "TagA", b"hello")
    assert row["msgId"] == "0A00000200002A9F0000000000000000"
    assert (row["bornHost"], row["bodyCRC"]) == ("10.0.0.1:50001", 907060870)
