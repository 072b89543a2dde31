from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropewalk.format.fastjson import (
    FastjsonError,
    IntKeys,
    QueueKey,
    QueueKeys,
    dumps,
    loads,
    pretty,
    queue_keys,
)

relaxed = settings(deadline=None, max_examples=200)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


# Ordinary JSON


@relaxed
@given(PLAIN)
def test_ordinary_json_is_read_as_everybody_reads_it(value: Any) -> None:
    assert loads(json.dumps(value)) == value
    assert loads(json.dumps(value, ensure_ascii=False, indent=2).encode()) == value


@relaxed
@given(PLAIN)
def test_what_is_written_is_read_back_by_us_and_by_strict_parsers(value: Any) -> None:
    expected = without_nulls(value)
    assert loads(dumps(value)) == expected
    assert json.loads(dumps(value)) == expected
    assert loads(pretty(value)) == expected


@relaxed
@given(PLAIN)
def test_our_own_reader_agrees_with_the_fast_one(value: Any) -> None:
    # The bare word as a key is what only our own reader takes.
    text = f'{{word:{json.dumps(value)},"end":0}}'
    assert loads(text) == {"word": value, "end": 0}


def test_bodies_are_compact_with_sorted_keys_and_without_nulls() -> None:
    assert dumps({"b": [1, 2.0, True], "a": None, "A": {"z": "标", "y": 0.0}}) == (
        '{"A":{"y":0.0,"z":"标"},"b":[1,2.0,true]}'.encode()
    )
    assert dumps({}) == b"{}"
    assert dumps([]) == b"[]"
    assert dumps({"only": None}) == b"{}"
    assert dumps({"set": {"b", "a"}, "tuple": ("x",)}) == b'{"set":["a","b"],"tuple":["x"]}'


@pytest.mark.parametrize("value", [object(), {1: "x"}, b"bytes", {"a": {2.5: 1}}])
def test_what_has_no_form_in_the_dialect_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)


def test_half_a_surrogate_pair_is_written_as_a_question_mark() -> None:
    assert dumps({"k": "\ud800x"}) == b'{"k":"?x"}'


# Keys


@pytest.mark.parametrize(
    "text",
    [
        '{"t":{0:5,1:6}}',
        '{"t":{"0":5,"1":6}}',
        '{"t":{0:5,"1":6}}',
        '{ "t" : { 0 : 5 , 1 : 6 } }',
        "{t:{0:5,1:6}}",
        "{'t':{'0':5,1:6,},}",
    ],
)
def test_integer_keys_read_the_same_however_they_are_quoted(text: str) -> None:
    assert loads(text) == {"t": {"0": 5, "1": 6}}
    assert loads(text.encode()) == {"t": {"0": 5, "1": 6}}


def test_digits_inside_strings_are_never_taken_for_keys() -> None:
    assert loads('{"a{1:2":"x,3:4","b\\"{5:":6,7:"{8:9}"}') == {"a{1:2": "x,3:4", 'b"{5:': 6, "7": "{8:9}"}


@relaxed
@given(st.dictionaries(st.integers(-(2**31), 2**31), st.integers(), max_size=5))
def test_integer_keys_survive_the_round_trip_unquoted(table: dict[int, int]) -> None:
    table = {key: value % 2**60 for key, value in table.items()}
    for text in (dumps(IntKeys(table)), pretty(IntKeys(table))):
        assert b'"' not in text
        assert loads(text) == {str(key): value for key, value in table.items()}


def test_integer_keys_are_sorted_as_numbers() -> None:
    assert dumps(IntKeys({10: 1, 9: 2})) == b"{9:2,10:1}"


OBJECT_KEYED = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'


@pytest.mark.parametrize(
    "text",
    [
        OBJECT_KEYED,
        b'{"offsetTable" : { { "topic":"T", "queueId" : 0, "brokerName":"b" } : 5 } }',
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":5}}',
    ],
)
def test_object_keys_read_the_same_with_blanks_in_any_order_and_in_quotes(text: bytes) -> None:
    assert queue_keys(loads(text)["offsetTable"]) == {QueueKey("T", "b", 0): 5}


def test_object_keys_become_their_canonical_text() -> None:
    assert loads('{{"topic":"T","brokerName":"b","queueId":0}:5}') == {
        '{"brokerName":"b","queueId":0,"topic":"T"}': 5
    }


def test_queue_keyed_maps_are_written_in_the_form_java_and_go_accept() -> None:
    table = QueueKeys({QueueKey("T", "b", 0): 5})
    assert dumps({"offsetTable": table}) == OBJECT_KEYED
    assert queue_keys(loads(OBJECT_KEYED)["offsetTable"]) == table


@relaxed
@given(
    st.dictionaries(st.builds(QueueKey, TEXT, TEXT, st.integers(0, 2**31 - 1)), st.integers(0, 9), max_size=4)
)
def test_queue_keyed_maps_survive_the_round_trip(table: dict[QueueKey, int]) -> None:
    assert queue_keys(loads(dumps(QueueKeys(table)))) == table
    assert queue_keys(loads(pretty(QueueKeys(table)))) == table


@pytest.mark.parametrize(
    "key",
    [
        "x",
        "[]",
        "7",
        "{}",
        "null",
        '{"topic":"T","brokerName":"b","queueId":"x"}',
        '{"topic":["T"],"brokerName":"b","queueId":0}',
        '{"a":["T"],"topic":"T","brokerName":{"$ref":"$.a"},"queueId":0}',
    ],
)
def test_a_key_that_is_no_queue_is_refused(key: str) -> None:
    with pytest.raises(FastjsonError):
        queue_keys({key: 1})


# References


def test_a_reference_to_an_earlier_object_is_resolved() -> None:
    subscription = {"subString": "*", "topic": "T"}
    text = (
        '{"consumerDataSet":[{"groupName":"g1","subscriptionDataSet":[{"subString":"*","topic":"T"}]},'
        '{"groupName":"g2","subscriptionDataSet":[{"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}]}'
    )
    assert [group["subscriptionDataSet"] for group in loads(text)["consumerDataSet"]] == [[subscription]] * 2


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.a", {"b": [1, {"c": 2}]}),
        ("$.a.b", [1, {"c": 2}]),
        ("$.a.b[1]", {"c": 2}),
        ("$['a']['b'][1]", {"c": 2}),
        ('$["a"].b[1]', {"c": 2}),
        (r"$.x\.y\-\%z", {"dotted": 1}),
        ("$.n[0]", {"k": 1}),
        ("$.n.0", {"k": 1}),
    ],
)
def test_every_form_of_path_is_followed(path: str, expected: Any) -> None:
    document = {
        "a": {"b": [1, {"c": 2}]},
        "x.y-%z": {"dotted": 1},
        "n": {"0": {"k": 1}},
        "r": {"$ref": path},
    }
    assert loads(json.dumps(document))["r"] == expected


@pytest.mark.parametrize(
    "path",
    [
        "$",
        "@",
        "..",
        "",
        "$.r",
        "$.later",
        "$.missing",
        "$.a.b[9]",
        "$.a.b[99999999999]",
        "$.a.b.c",
        "$.a.b[0]",
        "nonsense",
        "$x",
    ],
)
def test_a_reference_that_leads_nowhere_or_into_a_cycle_reads_as_none(path: str) -> None:
    document = {"a": {"b": [1]}, "r": {"$ref": path}, "later": {}}
    assert loads(json.dumps(document)) == {"a": {"b": [1]}, "r": None, "later": {}}


def test_references_follow_references() -> None:
    text = '{"a":[1],"b":{"$ref":"$.a"},"c":[{"$ref":"$.b"},{"$ref":"$.b[0]"}]}'
    assert loads(text) == {"a": [1], "b": [1], "c": [[1], None]}


def test_a_document_that_is_a_reference_is_nothing() -> None:
    assert loads('{"$ref":"$"}') is None


def test_references_in_the_dialect_are_resolved_too() -> None:
    assert loads('{t:{0:[1],1:{"$ref":"$.t[0]"}}}') == {"t": {"0": [1], "1": [1]}}


def test_an_object_with_more_than_a_reference_is_ordinary() -> None:
    assert loads('{"a":{"$ref":"$","b":1},"c":{"$ref":5}}') == {"a": {"$ref": "$", "b": 1}, "c": {"$ref": 5}}


def test_references_cannot_blow_a_small_document_up() -> None:
    steps = ['"a0":["x","x","x","x","x","x","x","x"]']
    for index in range(1, 30):
        steps.append(f'"a{index}":[{",".join([f"""{{"$ref":"$.a{index - 1}"}}"""] * 8)}]')
    with pytest.raises(FastjsonError, match="expand"):
        loads("{" + ",".join(steps) + "}")


def test_references_cannot_make_a_flat_document_deep() -> None:
    steps = ['"a0":[]', *(f'"a{index}":[{{"$ref":"$.a{index - 1}"}}]' for index in range(1, 300))]
    with pytest.raises(FastjsonError, match="levels"):
        loads("{" + ",".join(steps) + "}")


def test_long_texts_and_keys_count_towards_what_references_may_expand_to() -> None:
    references = ",".join(['{"$ref":"$.a"}'] * 400)
    for item in ("x" * 100_000, {"x" * 100_000: 1}):
        text = f'{{"a":[{json.dumps(item)}],"r":[%s]}}'
        assert len(loads(text % '{"$ref":"$.a"}')["r"]) == 1
        with pytest.raises(FastjsonError, match="expand"):
            loads(text % references)


def test_references_can_be_left_as_they_are() -> None:
    for text in ('{"a":[1],"r":{"$ref":"$.a"}}', "{a:[1],r:{$ref:'$.a'}}"):
        assert loads(text, references=False) == {"a": [1], "r": {"$ref": "$.a"}}


@pytest.mark.parametrize(
    "text",
    ['{"a":%s}', "{a:%s}", '{"a":%s,0:1}', '{"a":%s,"r":{"$ref":"$.a"}}'],
    ids=["json", "dialect", "integer key", "reference"],
)
def test_depth_has_one_limit_whoever_reads(text: str) -> None:
    assert loads(text.replace("%s", "[" * 199 + "]" * 199))
    for depth in (201, 500, 980, 5000):
        with pytest.raises(FastjsonError, match=r"levels|deep"):
            loads(text.replace("%s", "[" * depth + "]" * depth))


def test_many_containers_side_by_side_are_not_deep() -> None:
    assert loads(b"[" + b"[]," * 10_000 + b"7]")[-1] == 7


# What is not the dialect


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[",
        '"',
        "'",
        "{a}",
        "{a:}",
        "{:1}",
        "{a:1",
        "{a:1 b:2}",
        "[a]",
        "[1 2]",
        "{a:1}x",
        "{a:tru}",
        "{a:1.2.3}",
        "{a:--1}",
        "{a:٣}",
        '{a:"\\',
        "{a:'b}",
        b"\xff",
        b'{a:"\xff"}',
        b"\x00",
        "{a:" + "1" * 5000 + "}",
        "[" * 100_000,
        "{a:" * 100_000,
        '{"a":' * 100_000,
        "{" * 100_000,
        '{a:[{"$ref":"$"' + "}" * 100_000,
    ],
)
def test_what_is_not_the_dialect_is_refused(text: str | bytes) -> None:
    with pytest.raises(FastjsonError):
        loads(text)


@relaxed
@given(st.binary(max_size=60))
@example(b'{"a":1e999}')
@example(b'{a:1e999,"b":{"$ref":"$.a"}}')
def test_garbage_raises_nothing_but_its_own_error(data: bytes) -> None:
    with contextlib.suppress(FastjsonError):
        loads(data)


@relaxed
@given(st.text("{}[]\"':,0123.eE+-\\utrfnals$ref@ \n", max_size=60))
def test_text_that_looks_like_the_dialect_raises_nothing_but_its_own_error(text: str) -> None:
    try:
        value = loads(text)
    except FastjsonError:
        return
    json.dumps(value, ensure_ascii=False).encode()


# What strangers send to keep us busy


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"' + '\\"' * 500_000,
        '{"a":"' + '\\"' * 500_000 + "\\",
        '{"a":"' + '\\"' * 500_000 + '",0:}',
        '{a:"' + '\\"' * 500_000,
        "{a:'" + "\\'" * 500_000,
        '"' * 1_000_001,
        '"\\' * 500_000,
        '{0:"",' * 150_000,
        "{ " * 500_000,
        "{" + " " * 1_000_000,
        "{,1" + " " * 1_000_000,
        ",1 " * 350_000,
        "{" + "1" * 1_000_000,
        "{a:" + "1" * 1_000_000,
        "{a:" + "-" * 1_000_000,
        "[1" + "." * 1_000_000,
        "{a:" + " " * 1_000_000,
    ],
    ids=range(17),
)
def test_a_megabyte_made_to_be_read_again_and_again_is_refused(text: str) -> None:
    # Where a pattern goes over what it has seen once per character, one of these takes the better part of an hour.
    with pytest.raises(FastjsonError):
        loads(text)


def test_a_megabyte_of_escapes_that_ends_is_read() -> None:
    assert loads('{0:"' + '\\"' * 500_000 + '",a:1}') == {"0": '"' * 500_000, "a": 1}


def test_a_path_of_a_megabyte_leads_nowhere() -> None:
    for path in (
        "$." + "\\\\" * 250_000 + "\\",
        "$['" + "'" * 500_000,
        "$" + ".a" * 250_000,
        "$[" + "1" * 500_000,
    ):
        assert loads(json.dumps({"a": [], "r": {"$ref": path}})) == {"a": [], "r": None}


@pytest.mark.parametrize(
    "text",
    [
        "{{{a:1}:2}:3}",
        "{[{{a:1}:2}]:3}",
        "{{a:{{b:1}:2}}:3}",
        "{{a:{[1]:2}}:3}",
        "{{a:1}:2,{{b:3}:4}:5}",
        "{" * 25 + "a:1" + "}:1" * 24 + "}",
        '{"clientID":' + "{" * 40 + '"a":"b"' + "}:1" * 39 + "}}",
    ],
)
def test_an_object_that_is_a_key_holds_no_object_as_a_key(text: str) -> None:
    # Every level would double the backslashes of the level below: 40 levels, a terabyte.
    with pytest.raises(FastjsonError, match="no object as a key"):
        loads(text)


def test_object_keys_may_stand_beside_and_below_each_other() -> None:
    assert loads("{{a:1}:{{b:2}:3},{c:[{d:{e:4}}]}:5}") == {
        '{"a":1}': {'{"b":2}': 3},
        '{"c":[{"d":{"e":4}}]}': 5,
    }


@relaxed
@given(st.text("{}[]\"':,01e\\u\x01a", max_size=80))
@example("{{'\x01':'\x01'}:'\x01'}")
@example('{{{{{{"a":"b"}:1}:1}:1}:1}:1}')
def test_what_is_read_is_never_many_times_as_long_as_its_text(text: str) -> None:
    try:
        value = loads(text, references=False)
    except FastjsonError:
        return
    # A control character in an object key is six characters and then seven; 1e15 is eighteen.
    assert len(dumps(value)) <= 8 * len(text)


def test_escapes_of_the_dialect_are_read() -> None:
    assert loads(r"{a:'\u0041\x42\n\'\"\/\\\t\0\v'}") == {"a": "AB\n'\"/\\\t\0\v"}
    assert loads('{a:"\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert loads('{a:"\\ud83dx"}') == {"a": "�x"}


def test_words_and_numbers_of_the_dialect_are_read() -> None:
    assert loads("{a:[true,false,null,NaN,undefined,-1,+2,.5,1.,2e3]}") == {
        "a": [True, False, None, None, None, -1, 2, 0.5, 1.0, 2000.0]
    }


# Files


def test_configuration_files_have_fastjsons_indented_form() -> None:
    assert (
        pretty(
            {
                "offsetTable": {"TopicTest@groupA": IntKeys({0: 37960, 1: 37961})},
                "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000},
                "attributes": {},
                "list": ["a", {"b": 1}],
            }
        )
        == b"""{
\t"attributes":{},
\t"dataVersion":{
\t\t"counter":3,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"list":[
\t\t"a",
\t\t{
\t\t\t"b":1
\t\t}
\t],
\t"offsetTable":{
\t\t"TopicTest@groupA":{0:37960,1:37961
\t\t}
\t}
}"""
    )


def test_an_offset_table_of_a_hundred_thousand_queues_is_read_in_time() -> None:
    table = {f"topic{n}@group": IntKeys(dict.fromkeys(range(8), n)) for n in range(12_500)}
    text = pretty({"offsetTable": table})
    assert len(loads(text)["offsetTable"]) == 12_500
