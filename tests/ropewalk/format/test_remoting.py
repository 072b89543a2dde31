from __future__ import annotations

import contextlib
import itertools
import json
import random
import struct
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ropewalk.codes import Language
from ropewalk.errors import LocalProtocolError, RemoteProtocolError
from ropewalk.format.remoting import (
    FRAME_SIZE_MAX,
    JSON,
    ROCKETMQ,
    TOLERANT_SIZE_MAX,
    Command,
    FrameBuffer,
    decode_ext,
    decode_frame,
    decode_json_header,
    encode_frame,
    frame_bytes,
    split_payload,
)

relaxed = settings(deadline=None, max_examples=150)

I32 = st.integers(-(2**31), 2**31 - 1)
I16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PAYLOADS = st.lists(st.binary(min_size=4, max_size=200), max_size=8)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    """A payload around JSON text as a peer might have written it."""
    return frame_bytes(JSON, header, body)[4:]


@st.composite
def commands(draw: st.DrawFn, serialize_type: int) -> Command:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
    binary = serialize_type == ROCKETMQ
    return Command(
        code=draw(I16 if binary else I32),
        # The binary layout writes null as an empty value, so nothing empty survives it.
        ext=draw(st.dictionaries(names, TEXT.filter(bool) if binary else TEXT, max_size=6)),
        body=draw(st.binary(max_size=100)),
        opaque=draw(I32),
        flag=draw(I32),
        remark=draw(st.none() | (TEXT.filter(bool) if binary else TEXT)),
        language=draw(st.sampled_from(Language.NAMES)),
        version=draw(I16 if binary else I32),
        serialize_type=serialize_type,
    )


# Frames


@relaxed
@given(PAYLOADS, st.lists(st.integers(0, 2000), max_size=10))
def test_a_stream_cut_anywhere_gives_the_same_frames(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, payloads))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    buffer = FrameBuffer()
    got = []
    for start, end in itertools.pairwise(edges):
        part = stream[start:end]
        begins_one, is_whole = not buffer.buffered, buffer.is_whole(part)
        frames = buffer.feed(part)
        assert is_whole == (begins_one and frames == [part[4:]] and not buffer.buffered)
        got += frames
    assert got == payloads
    assert buffer.buffered == 0


@relaxed
@given(PAYLOADS)
def test_a_stream_fed_byte_by_byte_gives_each_frame_with_its_last_byte(payloads: list[bytes]) -> None:
    buffer = FrameBuffer()
    for payload in payloads:
        frame = framed(payload)
        for position in range(len(frame) - 1):
            assert buffer.feed(frame[position : position + 1]) == []
            assert buffer.buffered == position + 1
        assert buffer.feed(frame[-1:]) == [payload]


@relaxed
@given(st.binary(min_size=4, max_size=50), st.binary(max_size=50))
def test_a_neighbours_bytes_behind_a_frame_do_not_leak_into_it(payload: bytes, rest: bytes) -> None:
    neighbour = framed(b"nnnn" + rest)
    for size in range(len(neighbour)):
        buffer = FrameBuffer()
        assert buffer.feed(framed(payload) + neighbour[:size]) == [payload]
        assert buffer.buffered == size
        assert buffer.feed(neighbour[size:]) == [b"nnnn" + rest]


ROWS = st.lists(st.tuples(st.integers(4, 12), st.integers(1, 30)), max_size=6)


def outcome(feed: Callable[[bytes], Sequence[bytes]], part: bytes) -> list[bytes] | str:
    try:
        return list(feed(part))
    except RemoteProtocolError as exc:
        return str(exc)


@settings(deadline=None, max_examples=400)
@given(ROWS, st.binary(max_size=9), st.lists(st.integers(0, 1500), max_size=4), st.randoms())
def test_rows_of_frames_of_one_length_are_those_that_a_plain_feed_cuts(
    rows: list[tuple[int, int]], garbage: bytes, cuts: list[int], chance: random.Random
) -> None:
    frames = [chance.randbytes(length) for length, count in rows for _ in range(count)]
    stream = b"".join(map(framed, frames)) + garbage
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    plain, alike = FrameBuffer(64), FrameBuffer(64)
    for start, end in itertools.pairwise(edges):
        part = stream[start:end]
        assert outcome(lambda part: alike.feed_alike(part) or alike.feed(part), part) == outcome(
            plain.feed, part
        )
        assert alike.buffered == plain.buffered


@pytest.mark.parametrize("tail", [b"", b"\0", b"\0\0\0\x05abc", b"\0\0\0\x7fabc"])
def test_a_row_of_frames_is_cut_where_it_is_asked_for_and_keeps_the_beginning_of_the_next(
    tail: bytes,
) -> None:
    payloads = [b"%05d" % number for number in range(20)]
    buffer = FrameBuffer()
    row = buffer.feed_alike(b"".join(map(framed, payloads)) + tail)
    assert row is not None and (len(row), row.length, buffer.buffered) == (20, 5, len(tail))
    for _ in range(3):
        assert [row[at] for at in (0, 19, -1, 7)] == [payloads[at] for at in (0, 19, -1, 7)]
        assert row[3:9] == payloads[3:9] and list(row) == payloads
        with pytest.raises(IndexError):
            row[20]
    pieces = list(row.rows(2, 6, struct.Struct("4x3s2s")))
    assert pieces == [(payload[:3], payload[3:]) for payload in payloads[2:6]]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_taken_and_none_is_kept(kind: type) -> None:
    source = bytearray(framed(b"abcd") + framed(b"efgh")[:6])
    buffer = FrameBuffer()
    frames = buffer.feed(kind(source))
    source[:] = b"x" * len(source)
    assert frames == [b"abcd"]
    assert type(frames[0]) is bytes
    assert buffer.feed(b"gh") == [b"efgh"]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, FRAME_SIZE_MAX - 3, 2**31 - 1])
@pytest.mark.parametrize("cut", [0, 1, 3, 4])
def test_a_length_out_of_bounds_is_refused_before_its_body_arrives(length: int, cut: int) -> None:
    word = length.to_bytes(4, "big", signed=True)
    buffer = FrameBuffer()
    with pytest.raises(RemoteProtocolError, match=str(length)):
        buffer.feed(word[:cut])
        buffer.feed(word[cut:])
    assert buffer.buffered == 0
    with pytest.raises(RemoteProtocolError):
        buffer.feed(framed(b"good"))


def test_the_longest_frame_is_accepted_and_one_byte_more_is_not() -> None:
    buffer = FrameBuffer(frame_size_max=20)
    assert buffer.is_whole(framed(b"x" * 16)) and not buffer.is_whole(framed(b"x" * 17))
    assert buffer.feed(framed(b"x" * 16)) == [b"x" * 16]
    with pytest.raises(RemoteProtocolError):
        buffer.feed(framed(b"x" * 17))
    assert not buffer.is_whole(framed(b"x" * 16)), "it has no next frame"


def test_nothing_of_an_oversized_body_is_buffered_behind_a_good_frame() -> None:
    buffer = FrameBuffer(frame_size_max=64)
    with pytest.raises(RemoteProtocolError):
        buffer.feed(framed(b"good") + framed(b"x" * 1000))
    assert buffer.buffered == 0


def test_a_large_frame_in_small_pieces_costs_linear_time() -> None:
    # Quadratic copying would move 4 MiB x 4096 pieces = 8 GiB and take seconds.
    payload = b"x" * (4 << 20)
    stream = framed(payload)
    buffer = FrameBuffer()
    start = time.process_time()
    got = [frame for at in range(0, len(stream), 1024) for frame in buffer.feed(stream[at : at + 1024])]
    assert got == [payload]
    assert time.process_time() - start < 1.0


def test_thousands_of_frames_in_one_read_cost_linear_time() -> None:
    stream = framed(b"y" * 60) * 100_000
    start = time.process_time()
    assert len(FrameBuffer().feed(stream)) == 100_000
    assert time.process_time() - start < 1.0


@relaxed
@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_in_the_stream_raises_nothing_but_a_protocol_error(data: bytes, step: int) -> None:
    buffer = FrameBuffer(frame_size_max=256)
    try:
        for position in range(0, len(data), step):
            buffer.feed(data[position : position + step])
            assert buffer.buffered < 256
    except RemoteProtocolError:
        pass


# Commands


@relaxed
@given(st.one_of(commands(JSON), commands(ROCKETMQ)))
def test_a_command_survives_the_round_trip(command: Command) -> None:
    (payload,) = FrameBuffer().feed(encode_frame(command))
    assert decode_frame(payload) == command


@relaxed
@given(st.one_of(commands(JSON), commands(ROCKETMQ)), st.data())
def test_a_damaged_payload_raises_nothing_but_a_protocol_error(command: Command, data: st.DataObject) -> None:
    payload = bytearray(encode_frame(command)[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(0, len(payload))) :]
    with contextlib.suppress(RemoteProtocolError):
        decode_frame(bytes(payload))


@relaxed
@given(st.integers(0, 3), st.binary(max_size=200))
def test_garbage_as_a_header_raises_nothing_but_a_protocol_error(serialize_type: int, header: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_frame(frame_bytes(serialize_type, header, b"")[4:])


@relaxed
@given(st.text("{}[]\":,0123456789.eE+-tfnul\\ \n'$refcodextFilds", max_size=80))
@example('{"code":1e400}')
@example('{"code":99999999999999999999}')
@example('{"opaque":"\\ud800"}')
@example('{"extFields":{"a":NaN,"b":[{"$ref":"$"}]}}')
@example('{"language":[]}')
@example("{" * 5000)
@example('{"x":' + "[" * 5000)
def test_text_that_looks_like_json_raises_nothing_but_a_protocol_error(text: str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_frame(json_frame(text.encode()))


@pytest.mark.parametrize("depth", [100, 300, 600, 990, 995, 5000])
@pytest.mark.parametrize("front", [b"", b'"code":null,', b"code:1,"])
def test_deep_nesting_raises_nothing_but_a_protocol_error(depth: int, front: bytes) -> None:
    header = b"{" + front + b'"extFields":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    with contextlib.suppress(RemoteProtocolError):
        decode_frame(json_frame(header))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00\x00\x00",
        b"\x00\x00\x00\x01",  # one header byte announced, none there
        b"\x00\xff\xff\xff{}",
        b"\x02\x00\x00\x02{}",  # no such serialize type
        b"\x00\x00\x00\x00",  # a JSON header without a byte
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x04null",
        b"\x01\x00\x00\x00",
    ],
)
def test_a_payload_without_a_readable_header_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frame(payload)


def binary_header(*, remark: bytes = b"\0\0\0\0", ext: bytes = b"\0\0\0\0") -> bytes:
    return bytes.fromhex("006900 01df 00000001 00000000") + remark + ext


@pytest.mark.parametrize(
    "header",
    [
        binary_header()[:-1],
        binary_header(remark=b"\xff\xff\xff\xff"),
        binary_header(remark=b"\x7f\xff\xff\xff"),
        binary_header(remark=b"\xff\xff\xff\xf8"),  # points back at the flag, which would do as a length of 0
        binary_header(remark=b"\0\0\0\1\xff"),
        binary_header(ext=b"\xff\xff\xff\xff"),
        binary_header(ext=b"\0\0\0\1"),
        binary_header(ext=b"\0\0\0\x01\0"),
        binary_header(ext=b"\0\0\0\x07\x00\x01k\x00\x00\x00\x01v"),  # the value lies behind the end
        binary_header(ext=b"\0\0\0\x08\xff\xffk\x00\x00\x00\x01v"),
        binary_header(ext=b"\0\0\0\x08\x00\x01k\xff\xff\xff\xffv"),
        binary_header(ext=b"\0\0\0\x08\x00\x01\xff\x00\x00\x00\x01v"),
        binary_header(
            ext=(0x8007).to_bytes(4, "big") + b"\x80\0" + b"k" * 0x8000 + b"\0\0\0\x01v"
        ),  # a signed size
    ],
)
def test_a_binary_header_with_lengths_out_of_bounds_is_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frame(frame_bytes(ROCKETMQ, header, b"")[4:])


def test_the_binary_layout_reads_empty_names_and_values_as_absent() -> None:
    entries = b"\x00\x01a\x00\x00\x00\x00" + b"\x00\x00\x00\x00\x00\x01x" + b"\x00\x01k\x00\x00\x00\x01v"
    header = binary_header(ext=len(entries).to_bytes(4, "big") + entries)
    assert decode_frame(frame_bytes(ROCKETMQ, header, b"")[4:]).ext == {"k": "v"}


def test_a_json_header_of_another_client_is_read_as_java_reads_it() -> None:
    command = decode_frame(
        json_frame(
            b' { "opaque" : "7" , "extFields" : {"a": 1, "b": true, "c": null, "d": {"x": 1}, "e": 1.5, "f": ""},'
            b' "code":"310", "unknown":[1,{"x":null}], "flag":2, "serializeTypeCurrentRPC":"JSON"}',
            b"body",
        )
    )
    assert command == Command(
        code=310,
        ext={"a": "1", "b": "true", "d": '{"x":1}', "e": "1.5", "f": ""},
        body=b"body",
        opaque=7,
        flag=2,
        language="JAVA",
        version=0,
    )
    assert command.is_oneway
    assert not command.is_response


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ('"GO"', "GO"),
        ('"KLINGON"', "KLINGON"),
        ("9", "GO"),
        ("99", "OTHER"),
        ("-1", "OTHER"),
        ("null", "OTHER"),
    ],
)
def test_any_language_is_accepted(text: str, language: str) -> None:
    assert decode_frame(json_frame(b'{"code":1,"language":' + text.encode() + b"}")).language == language


def test_nulls_in_a_json_header_are_absent_fields() -> None:
    command = decode_frame(
        json_frame(b'{"code":11,"remark":null,"extFields":null,"opaque":null,"flag":null}')
    )
    assert command == Command(code=11, language="JAVA", version=0)


def test_a_long_header_has_to_be_plain_json() -> None:
    def header(text: str, size: int) -> bytes:
        return json_frame((text % ("x" * (size - len(text) + 2))).encode())

    plain = '{"code":1,"extFields":{"a":"%s"}}'
    assert len(decode_frame(header(plain, 4 * TOLERANT_SIZE_MAX)).ext["a"]) > 3 * TOLERANT_SIZE_MAX
    other = "{code:1,extFields:{a:'%s'}}"
    assert len(decode_frame(header(other, TOLERANT_SIZE_MAX)).ext["a"]) > TOLERANT_SIZE_MAX - 100
    with pytest.raises(RemoteProtocolError, match=r"not plain JSON; at most 8192 bytes"):
        decode_frame(header(other, TOLERANT_SIZE_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="extFields of"):
        decode_ext(b'{"a":[],"b":"' + b"x" * TOLERANT_SIZE_MAX + b'"}')


def test_the_longest_properties_fit_a_header_with_nulls_and_numbers() -> None:
    properties = "\\u0002" * 32_767
    text = f'{{"code":10,"opaque":null,"extFields":{{"properties":"{properties}","e":0,"n":null,"f":true}}}}'
    ext = decode_frame(json_frame(text.encode())).ext
    assert ext == {"properties": "\x02" * 32_767, "e": "0", "f": "true"}


def test_a_binary_header_of_more_than_a_thousand_fields_is_refused() -> None:
    def frame(count: int) -> bytes:
        ext = b"".join(b"\x00\x02%02x\x00\x00\x00\x01v" % (n % 256) for n in range(count))
        header = struct.pack(">hBhiii", 10, 0, 1, 1, 0, 0) + struct.pack(">i", len(ext)) + ext
        return struct.pack(">I", 1 << 24 | len(header)) + header

    assert len(decode_frame(frame(1_000)).ext) == 256
    with pytest.raises(RemoteProtocolError, match="more than 1000 fields"):
        decode_frame(frame(1_001))


def test_references_in_a_header_stand_for_nothing() -> None:
    # Written out, these are eight to the power of seven texts.
    steps = []
    for n in range(1, 8):
        references = ",".join([f"{{$ref:'$.extFields.a{n - 1}'}}"] * 8)
        steps.append(f",a{n}:[{references}]")
    ext = decode_frame(json_frame(f"{{code:1,extFields:{{a0:['x']{''.join(steps)}}}}}".encode())).ext
    assert ext["a1"] == "[" + ",".join(['{"$ref":"$.extFields.a0"}'] * 8) + "]"
    assert sum(map(len, ext.values())) < 2000


@pytest.mark.parametrize("header", [b'{"a":"' + b'\\"' * 500_000, b"{" * 30 + b"a:1" + b"}:1" * 29 + b"}"])
def test_a_header_made_to_keep_us_busy_is_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frame(json_frame(header))


def test_half_a_surrogate_pair_cannot_reach_our_own_encoders() -> None:
    command = decode_frame(json_frame(b'{"code":1,"remark":"\\ud800","extFields":{"k":"\\udc00v"}}'))
    assert decode_frame(encode_frame(command)[4:]) == command


def test_vector_route_request_in_json() -> None:
    command = Command(105, {"topic": "T"}, opaque=1, language="JAVA")
    text = (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    frame = bytes.fromhex("0000007f 0000007b") + text
    assert encode_frame(command) == frame
    assert decode_frame(frame[4:]) == command


def test_vector_route_request_in_binary() -> None:
    command = Command(105, {"topic": "T"}, opaque=1, language="JAVA", serialize_type=ROCKETMQ)
    frame = bytes.fromhex(
        "00000025 01000021 0069 00 01df 00000001 00000000 00000000 0000000c 0005 746f706963 00000001 54"
    )
    assert encode_frame(command) == frame
    assert decode_frame(frame[4:]) == command


def test_vector_binary_header_with_remark() -> None:
    header = bytes.fromhex("0000 00 01df 00000007 00000001 00000001 72 00000008 0001 6b 00000001 76")
    command = Command(
        0, {"k": "v"}, opaque=7, flag=1, remark="r", language="JAVA", version=479, serialize_type=ROCKETMQ
    )
    assert decode_frame(frame_bytes(ROCKETMQ, header, b"")[4:]) == command
    assert encode_frame(command) == frame_bytes(ROCKETMQ, header, b"")


def test_a_written_json_header_is_compact_and_leaves_out_what_is_empty() -> None:
    _, header, body = split_payload(encode_frame(Command(0, opaque=2, flag=1, language="JAVA"))[4:])
    assert header == (
        b'{"code":0,"flag":1,"language":"JAVA","opaque":2,"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert body == b""
    _, header, _ = split_payload(encode_frame(Command(0, {"b": "true"}, remark="no"))[4:])
    assert json.loads(header)["extFields"] == {"b": "true"}
    assert json.loads(header)["remark"] == "no"


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_a_reply_keeps_opaque_and_serialisation_and_says_it_is_one(serialize_type: int) -> None:
    reply = Command(11, {"topic": "T"}, opaque=-5, flag=6, serialize_type=serialize_type).reply(
        19, "none", {"a": "b"}, b"x"
    )
    assert reply == Command(19, {"a": "b"}, b"x", -5, 1, "none", serialize_type=serialize_type)
    assert reply.is_response


def test_a_code_beyond_16_bits_is_sent_as_json_even_to_a_binary_peer() -> None:
    frame = encode_frame(Command(200050, {"topic": "T"}, serialize_type=ROCKETMQ))
    assert frame[4] == JSON
    assert decode_frame(frame[4:]).code == 200050


@pytest.mark.parametrize(
    "command",
    [
        Command(1, opaque=2**31),
        Command(1, flag=-(2**31) - 1),
        Command(2**31),
        Command(1, {"k": "\ud800"}),
        Command(1, {"k": "\ud800"}, serialize_type=ROCKETMQ),
        Command(1, {"k" * 40000: "v"}, serialize_type=ROCKETMQ),
        Command(1, body=b"x" * FRAME_SIZE_MAX),
    ],
    ids=["opaque", "flag", "code", "surrogate", "binary surrogate", "binary name", "body"],
)
def test_what_no_frame_can_carry_is_our_own_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(command)


@relaxed
@given(commands(JSON))
def test_a_header_read_in_two_steps_agrees_with_the_command(command: Command) -> None:
    assume(command.remark is not None)
    serialize_type, header, body = split_payload(encode_frame(command)[4:])
    fields = decode_json_header(header)
    assert (serialize_type, body) == (JSON, command.body)
    assert (fields.code, fields.opaque, fields.flag) == (command.code, command.opaque, command.flag)
    assert (fields.remark, fields.language, fields.version) == (
        command.remark,
        command.language,
        command.version,
    )
    assert decode_ext(fields.extFields) == command.ext
