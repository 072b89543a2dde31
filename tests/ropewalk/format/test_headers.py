from __future__ import annotations

import contextlib
import inspect
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import RemoteProtocolError
from ropewalk.format import headers
from ropewalk.format.headers import (
    ConsumerSendBackHeader,
    GetMaxOffsetHeader,
    HeaderError,
    PullMessageHeader,
    QueueHeader,
    RegisterBrokerHeader,
    SendMessageHeader,
    SendMessageHeaderV2,
    SendResponseHeader,
    UnregisterClientHeader,
    decode_header,
    decode_json_ext,
    encode_header,
)
from ropewalk.format.remoting import Command, decode_frame, decode_json_header, encode_frame, split_payload

CLASSES: list[type[msgspec.Struct]] = [
    value
    for _, value in inspect.getmembers(headers, inspect.isclass)
    if issubclass(value, msgspec.Struct) and value.__module__ == headers.__name__
]

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)


def strategy_for(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    kind = str(field.type)
    if "bool" in kind:
        base: st.SearchStrategy[Any] = st.booleans()
    elif "str" in kind:
        base = TEXT
    else:
        base = I64 if str(2**63 - 1) in kind else I32
    return base | st.none() if "None" in kind else base


@st.composite
def any_header(draw: st.DrawFn) -> msgspec.Struct:
    cls = draw(st.sampled_from(CLASSES))
    return cls(**{field.name: draw(strategy_for(field)) for field in msgspec.structs.fields(cls)})


@settings(deadline=None, max_examples=300)
@given(any_header(), st.sampled_from([0, 1]))
def test_every_header_survives_the_round_trip_in_both_serialisations(
    header: msgspec.Struct, serialize_type: int
) -> None:
    ext = encode_header(header)
    assert all(isinstance(value, str) for value in ext.values()), "clients in Go read nothing but strings"
    payload = encode_frame(Command(1, ext, serialize_type=serialize_type))[4:]
    assert decode_header(type(header), decode_frame(payload).ext) == header
    if serialize_type == 0:
        raw = decode_json_header(split_payload(payload)[1]).extFields
        # A header whose fields are all absent leaves no extFields behind.
        assert decode_json_ext(type(header), raw or b"{}") == header if ext else not ext


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(CLASSES), st.data())
def test_hostile_fields_raise_nothing_but_header_error(
    cls: type[msgspec.Struct], data: st.DataObject
) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(cls)]
    texts = st.sampled_from(
        ["", "0", "-1", "+5", "007", "1e3", "1.0", "true", "nan", "null", "9" * 40, "٣", "1_0"]
    )
    ext = data.draw(st.dictionaries(st.sampled_from(names) | TEXT, texts | TEXT))
    with contextlib.suppress(HeaderError):
        decode_header(cls, ext)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_missing_field_is_named_as_it_is_on_the_wire(cls: type[msgspec.Struct]) -> None:
    required = [field for field in msgspec.structs.fields(cls) if field.required]
    if not required:
        decode_header(cls, {})
        return
    with pytest.raises(
        HeaderError, match=f"^{cls.__name__.removesuffix('V2').removesuffix('Header')}: "
    ) as caught:
        decode_header(cls, {})
    assert any(f"`{field.encode_name}`" in str(caught.value) for field in required)


@pytest.mark.parametrize(
    "text", ["x", "1.5", "9" * 30, "2147483648", "-2147483649", "1_0", " 1", "٣", "true", "--1"]
)
def test_a_mistyped_field_is_named(text: str) -> None:
    with pytest.raises(HeaderError, match=r"\$\.queueId"):
        decode_header(QueueHeader, {"topic": "T", "queueId": text})


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("-1", -1), ("+3", 3), ("007", 7), ("2147483647", 2**31 - 1)]
)
def test_numbers_are_read_as_java_reads_them(text: str, number: int) -> None:
    assert decode_header(QueueHeader, {"topic": "T", "queueId": text}).queue_id == number


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("yes", False), ("2", False)],
)
def test_only_true_in_any_case_is_true(text: str, value: bool) -> None:
    assert (
        decode_header(GetMaxOffsetHeader, {"topic": "T", "queueId": "0", "committed": text}).committed
        is value
    )


def test_an_empty_optional_number_is_absent_and_an_empty_text_is_not() -> None:
    header = decode_header(
        ConsumerSendBackHeader,
        {"offset": "1", "group": "", "delayLevel": "0", "maxReconsumeTimes": "", "originTopic": ""},
    )
    assert (header.group, header.origin_topic, header.max_reconsume_times) == ("", "", None)


def test_unknown_fields_are_ignored() -> None:
    ext = {"topic": "T", "queueId": "1", "lo": "false", "ns": "x", "AccessKey": "k"}
    assert decode_header(QueueHeader, ext) == QueueHeader("T", 1)


def test_text_that_spells_null_stays_text() -> None:
    assert decode_header(QueueHeader, {"topic": "null", "queueId": "1"}).topic == "null"


def test_raw_fields_with_numbers_nulls_and_odd_spellings_are_read_too() -> None:
    raw = b'{"topic":"T","queueId":3,"committed":"FALSE","lo":null}'
    assert decode_json_ext(GetMaxOffsetHeader, raw) == GetMaxOffsetHeader("T", 3, False)
    assert decode_json_ext(QueueHeader, b'{"topic":7,"queueId":"+3"}') == QueueHeader("7", 3)


@pytest.mark.parametrize("raw", [b"", b"null", b"{}"])
def test_raw_fields_that_are_absent_lack_the_required_ones(raw: bytes) -> None:
    with pytest.raises(HeaderError, match="topic"):
        decode_json_ext(QueueHeader, raw)


@pytest.mark.parametrize("raw", [b"[]", b"7", b"{", b'{"topic":"\xff"}', b"{" * 5000])
def test_raw_fields_that_are_no_object_are_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_json_ext(QueueHeader, raw)


def test_both_forms_of_a_send_header_have_the_same_fields_in_the_same_order() -> None:
    long = [(field.name, field.type) for field in msgspec.structs.fields(SendMessageHeader)]
    short = [(field.name, field.type) for field in msgspec.structs.fields(SendMessageHeaderV2)]
    assert long == short
    names = [field.encode_name for field in msgspec.structs.fields(SendMessageHeaderV2)]
    assert "".join(names) == "abcdefghijklmn"


@pytest.mark.parametrize(
    ("cls", "attribute", "wire"),
    [
        (UnregisterClientHeader, "client_id", "clientID"),
        (PullMessageHeader, "proxy_forward_client_id", "proxyFrowardClientId"),
        (SendResponseHeader, "msg_region", "MSG_REGION"),
        (SendMessageHeader, "broker_name", "bname"),
        (RegisterBrokerHeader, "body_crc32", "bodyCrc32"),
        (RegisterBrokerHeader, "ha_server_addr", "haServerAddr"),
    ],
)
def test_names_on_the_wire_that_follow_no_rule(cls: type[msgspec.Struct], attribute: str, wire: str) -> None:
    assert {field.name: field.encode_name for field in msgspec.structs.fields(cls)}[attribute] == wire


def test_booleans_are_written_in_lower_case_and_absent_fields_not_at_all() -> None:
    assert encode_header(GetMaxOffsetHeader("T", 1)) == {"topic": "T", "queueId": "1", "committed": "true"}
    assert encode_header(SendResponseHeader("ID", 1, 2)) == {
        "msgId": "ID",
        "queueId": "1",
        "queueOffset": "2",
    }
