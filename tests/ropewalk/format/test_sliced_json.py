"""Large documents are read a slice at a time: what comes out is what `fastjson` reads, and no step is a long one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.format import fastjson, sliced_json
from ropewalk.format.fastjson import FastjsonError
from ropewalk.format.sliced_json import DIALECT_AT_ONCE_MAX, loads_at_once, loads_in_slices

MIB = 1 << 20


@pytest.fixture
def given_to_slow_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the texts that the reader of the dialect got, of the step at hand."""
    sizes: list[int] = []
    begin: Callable[..., None] = fastjson._Reader.__init__

    def noted(reader: Any, text: str) -> None:
        sizes.append(len(text))
        begin(reader, text)

    monkeypatch.setattr(fastjson._Reader, "__init__", noted)
    yield sizes


def read(text: bytes, sizes: list[int] | None = None) -> tuple[Any, int]:
    """Return the value of a document and the number of its slices; none gives the slow reader much."""
    steps, reading = 1, loads_in_slices(text, 16 * MIB)
    while True:
        if sizes is not None:
            sizes.clear()
        try:
            next(reading)
        except StopIteration as done:
            return done.value, steps
        finally:
            assert sum(sizes or ()) <= DIALECT_AT_ONCE_MAX
        steps += 1


TOPICS = {
    f"topic-{n}": {
        "attributes": {},
        "order": n % 2 == 0,
        "perm": 6,
        "topicName": f"topic-{n}",
        "readQueueNums": n,
    }
    for n in range(2_000)
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(
            {"filterServerList": [], "wrapper": {"dataVersion": {}, "topicConfigTable": TOPICS}}
        ).encode(),
        b"{" + b",".join(b"%d:%d" % (n, n) for n in range(20_000)) + b"}",
        b"{" + b",".join(b"x%d:'%d'" % (n, n) for n in range(20_000)) + b"}",
        b"{" + b",".join(b'{"brokerName":"b","queueId":%d,"topic":"T"}:5' % n for n in range(1_000)) + b"}",
        b'{"a":{"offsetTable":{' + b",".join(b'"t@%d":{0:1,1:2}' % n for n in range(5_000)) + b"}}}",
        b"[" + b"[[[[[1]]]]]," * 3_000 + b"1]",
        b"[ " + b'"\\u00e4\\"\\\\", ' * 5_000 + b" null,true,-1.5e3,]",
    ],
    ids=["registration", "integer keys", "bare words", "objects as keys", "offsets", "deep", "escapes"],
)
def test_a_large_document_reads_as_fastjson_reads_it_and_in_many_steps(
    text: bytes, given_to_slow_reader: list[int]
) -> None:
    expected = fastjson.loads(text)
    value, steps = read(text, given_to_slow_reader)
    assert value == expected
    assert steps > len(text) // (16 << 10)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=30,
    ),
    st.booleans(),
)
def test_the_reader_of_slices_and_the_plain_one_agree(value: Any, indent: bool) -> None:
    text = json.dumps(value, indent=2 if indent else None).encode()
    try:
        expected = fastjson.loads(text, references=False)
    except FastjsonError:
        return
    if b"$ref" in text:
        return
    reader = sliced_json._Reader(text)
    assert sliced_json.finish(reader.value(0)) == expected


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_value_or_an_error_in_words(text: bytes) -> None:
    with contextlib.suppress(FastjsonError):
        sliced_json.finish(sliced_json._Reader(text).value(0))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * MIB,
        b"{" * MIB,
        b"[" + b"[]," * (MIB // 3) + b"]",
        b"{a:" * 100_000,
        b'"' + b"a" * MIB + b'"',
        b"[" + b" " * MIB + b"]",
        b"[" + b"1" * MIB + b"]",
        b"{{" + b'"a":1,' * 100_000 + b"}:1}",
        b'{"a":{"$ref":"$"},"b":"' + b"x" * 40_000 + b'"}',
        b'["a"' + b" " * 40_000 + b'"b"]',
    ],
)
def test_what_no_honest_sender_writes_is_refused_in_words(text: bytes) -> None:
    with pytest.raises(FastjsonError):
        read(text)


def test_a_document_that_is_to_be_read_at_once_is_small() -> None:
    assert loads_at_once(b"{0:1}") == {"0": 1}
    assert loads_at_once(json.dumps(TOPICS).encode()[:20_000].rsplit(b', "topic-', 1)[0] + b"}")
    with pytest.raises(FastjsonError, match="not plain JSON"):
        loads_at_once(b"{a:'" + b"x" * DIALECT_AT_ONCE_MAX + b"'}")
    with pytest.raises(FastjsonError, match="at most 32768"):
        loads_at_once(b'"' + b"x" * (32 << 10) + b'"')


def test_a_table_of_a_master_may_have_more_entries_than_a_strangers_request() -> None:
    table = {f"t@{number}": number for number in range(120_000)}
    document = msgspec.json.encode({"offsetTable": table})
    with pytest.raises(FastjsonError, match="at most 100000 entries"):
        sliced_json.finish(loads_in_slices(document, len(document)))
    assert sliced_json.finish(loads_in_slices(document, len(document), 200_000)) == {"offsetTable": table}
