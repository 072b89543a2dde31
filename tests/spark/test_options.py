"""What a caller of Spark may write as options, and what is said about everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.spark.options import EARLIEST, LATEST, BadOption, Options, Use, parse_options
from ropewalk.spark.rows.schema import SchemaMismatch
from ropewalk.spark.source import RopewalkSource

pytestmark = pytest.mark.usefixtures("far_from_greenwich")

STORE = {"mode": "store", "path": "/store"}
LIVE = {"nameServer": "h:9876", "topic": "orders"}


def parse(given: dict[str, str], use: Use = "read", **environment: str) -> Options:
    lowered = {name.lower(): value for name, value in given.items()}
    return parse_options(lowered, use, environment)


@pytest.mark.parametrize(
    ("option", "text", "attribute", "value"),
    [
        ("splitBytes", "64m", "split_bytes", 64 << 20),
        ("splitBytes", "1 GiB", "split_bytes", 1 << 30),
        ("arrowBatchBytes", "1000", "arrow_batch_bytes", 1000),
        ("endAt", "SCAN", "end_at", "scan"),
        ("endAt", "4096", "end_at", 4096),
        ("io", "PREAD", "io", "pread"),
        ("decompress", "False", "decompress", False),
        ("columns", "a, b;c", "columns", ("a", "b", "c")),
        ("startingTimestamp", "1700000000000", "starting_timestamp", 1_700_000_000_000),
        ("since", "2023-11-14T22:13:20Z", "starting_timestamp", 1_700_000_000_000),
        ("until", "2023-11-14T23:13:20+01:00", "ending_timestamp", 1_700_000_000_000),
        ("startingOffsets", "earliest", "starting_offsets", EARLIEST),
        ("endingOffsets", "Latest", "ending_offsets", LATEST),
        ("startingOffsets", "first", "starting_offsets", EARLIEST),
        ("endingOffsets", "last", "ending_offsets", LATEST),
        ("endingOffsets", '{"t":{"b":{"0":-1}}}', "ending_offsets", {"t": {"b": {"0": -1}}}),
        ("assign", '{"t":{"b":[1,0,1]}}', "assign", {"t": {"b": (0, 1)}}),
        ("subscribe", "orders, bills", "topics", ("orders", "bills")),
    ],
)
def test_text_becomes_a_value(option: str, text: str, attribute: str, value: object) -> None:
    assert getattr(parse({**STORE, option: text}), attribute) == value


@pytest.mark.parametrize(
    ("given", "use", "said"),
    [
        ({**STORE, "splitByte": "1"}, "read", "no option 'splitbyte'; did you mean splitBytes?"),
        ({**STORE, "startingOfsets": "1"}, "read", "did you mean startingOffsets?"),
        ({**STORE, "bananas": "1"}, "read", "options of your own start with x-"),
        ({**STORE, "splitBytes": "many"}, "read", "option splitBytes is 'many': expected a size in bytes"),
        ({**STORE, "splitBytes": "0"}, "read", "expected a size"),
        ({**STORE, "onCorrupt": "explode"}, "read", "expected one of fail, skip, keep"),
        ({**STORE, "decompress": "yes"}, "read", "expected true or false"),
        ({**STORE, "minPartitions": "0"}, "read", "expected a whole number from 1 on"),
        (
            {**STORE, "startingTimestamp": "soon"},
            "read",
            "expected milliseconds since 1970 or a time with its zone",
        ),
        ({**STORE, "subscribePattern": "("}, "read", "it is no regular expression"),
        ({**STORE, "assign": "[1]"}, "read", 'expected JSON such as {"topic"'),
        ({**STORE, "assign": '{"t":{"b":[-1]}}'}, "read", 'expected JSON such as {"topic"'),
        ({**STORE, "startingOffsets": "frist"}, "read", "did you mean first"),
        (
            {**STORE, "startingOffsets": '{"t":{"b":{"x":1}}}'},
            "read",
            "expected earliest (or first), latest (or last), or JSON",
        ),
        (
            {**STORE, "startingOffsets": '{"t":{"b":{"0":-3}}}'},
            "read",
            "expected earliest (or first), latest (or last), or JSON",
        ),
        ({**STORE, "startingOffsets": "latest"}, "read", "cannot start at latest"),
        ({**STORE, "startingOffsets": '{"t":{"b":{"0":-1}}}'}, "read", "cannot start at latest"),
        ({**STORE, "endingOffsets": "earliest"}, "read", "cannot end at earliest"),
        (
            {**STORE, "endingOffsets": "latest"},
            "stream",
            "is for batch reads and has no meaning in streaming",
        ),
        (
            {**STORE, "since": "2023-11-14T22:13:20"},
            "read",
            "it has no zone, and which one is meant? Write 2023-11-14T22:13:20Z for UTC",
        ),
        ({**STORE, "since": "20", "until": "10"}, "read", "lies before startingTimestamp"),
        ({**STORE, "sinkId": "x"}, "read", "option sinkId is for writes"),
        ({**STORE, "nameServer": "x"}, "read", "is for mode=broker, and the mode here is store"),
        ({**STORE, "topic": "a", "subscribe": "b"}, "read", "options topic and subscribe mean the same"),
        ({**STORE, "topic": "a", "subscribePattern": "b"}, "read", "exclude each other"),
        ({**STORE, "preset": "full", "columns": "topic"}, "read", "exclude each other"),
        ({"mode": "store"}, "read", "mode=store needs the directory of a store"),
        (STORE, "write", "for batch reads and streaming reads"),
        ({"mode": "store"}, "write", "mode=store only reads"),
        ({"topic": "a"}, "read", "option nameServer is missing"),
        ({"nameServer": "h:1"}, "read", "which topics?"),
        ({**LIVE, "path": "/x"}, "read", "option path is for mode=store, and the mode here is broker"),
        ({**LIVE, "tls.enable": "true"}, "read", "TLS is not supported yet"),
        ({**LIVE, "commitOffsets": "true"}, "stream", "needs option groupId"),
        ({**LIVE, "delivery": "exactly-once"}, "write", "needs option sinkId"),
        ({**LIVE, "sinkId": "x"}, "write", "option sinkId is for delivery=exactly-once"),
        ({**LIVE, "sinkId": "x", "delivery": "at-least-once"}, "write", "give both, or leave sinkId out"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: dict[str, str], use: Use, said: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse(given, use)
    assert said in str(caught.value)


def test_options_of_the_caller_and_of_spark_pass() -> None:
    parse({**STORE, "x-note": "mine", "checkpointLocation": "/c"}, "stream")


def test_options_that_a_table_has_lost_are_missed_in_words() -> None:
    with pytest.raises(BadOption, match=r"no options were given\. A table whose columns are listed has none"):
        parse_options({}, "read", {})


def test_secrets_are_neither_shown_nor_needed_in_a_plan() -> None:
    options = parse({**LIVE, "secretKey": "s3cret", "accessKey": "me"})
    assert options.secret_key == "s3cret"
    assert "s3cret" not in repr(options)
    from_environment = parse(LIVE, ROPEWALK_ACCESS_KEY="me", ROPEWALK_SECRET_KEY="other")
    assert (from_environment.access_key, from_environment.secret_key) == ("me", "other")
    with pytest.raises(BadOption) as caught:
        parse({**LIVE, "secretKey": " "})
    assert "..." in str(caught.value)


def test_columns_come_from_a_preset_or_a_list() -> None:
    assert parse({**STORE, "columns": "body,topic"}).selection().names == ("body", "topic")
    assert len(parse({**STORE, "preset": "full"}).selection().names) == 21
    kafka = parse({**STORE, "preset": "kafka", "includeHeaders": "true"}).selection()
    assert kafka.names[-1] == "headers"
    with pytest.raises(SchemaMismatch, match="there is no column 'bodi'; did you mean body"):
        parse({**STORE, "columns": "bodi"}).selection()
    with pytest.raises(SchemaMismatch, match="asked for twice: topic"):
        parse({**STORE, "columns": "topic,topic"}).selection()


@given(
    st.dictionaries(
        st.sampled_from(
            ("topic", "splitbytes", "endat", "startingoffsets", "assign", "columns", "since", "zzz")
        ),
        st.one_of(st.text(max_size=20), st.sampled_from(("1", "safe", "{}", '{"a":{}}', '{"a":{"b":[]}}'))),
    )
)
def test_no_text_leads_to_anything_but_a_value_or_a_refusal(raw: dict[str, str]) -> None:
    try:
        parse({**STORE, **raw})
    except BadOption as refused:
        assert str(refused)


def test_json_of_any_shape_is_refused_and_never_half_read() -> None:
    shapes: list[Any] = [
        [],
        {"t": []},
        {"t": {"b": {}}},
        {"t": {"b": {"0": "1"}}},
        {"t": {"b": {"0": True}}},
        {},
        7,
    ]
    for shape in shapes:
        for option in ("startingOffsets", "startingOffsetsByTimestamp"):
            with pytest.raises(BadOption, match="expected"):
                parse({**STORE, option: json.dumps(shape)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**STORE, "maxOffsetsPerTrigger": "5", "startingOfsets": "x"}, "did you mean startingOffsets?"),
        ({**STORE, "maxOffsetsPerTrigger": "0"}, "expected a whole number from 1 on"),
        ({**STORE, "endingOffsets": "third"}, "expected earliest (or first), latest (or last), or JSON"),
        ({**STORE, "endingOffsets": "latest", "maxOffsetsPerTrigger": "5"}, "has no meaning in"),
        ({**STORE, "maxOffsetsPerTrigger": "5", "columns": "bodi"}, "there is no column 'bodi'"),
    ],
)
def test_a_refusal_is_about_the_read_that_was_meant(options: dict[str, str], said: str) -> None:
    with pytest.raises((BadOption, SchemaMismatch)) as caught:
        RopewalkSource({name.lower(): value for name, value in options.items()}).schema()
    assert said in str(caught.value)
