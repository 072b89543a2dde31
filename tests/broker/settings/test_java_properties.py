"""The reader of Java's properties text; the expected values are what `java.util.Properties` itself reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.settings.java_properties import PropertiesError, read_properties, write_properties


def read(text: str) -> dict[str, str]:
    return {entry.key: entry.value for entry in read_properties(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("  a\t=\tb", {"a": "b"}),
        ("a  :  b c", {"a": "b c"}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=b  ", {"a": "b  "}),
        ("# a=b\n! c=d\n\n   # e=f\ng=h", {"g": "h"}),
        ("a=b#c", {"a": "b#c"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=b,\\\n   c,\\\n   d", {"a": "b,c,d"}),
        ("a=b\\\n#c", {"a": "b#c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("\\\n#a=b\n\\\n\nc=d\n", {"c": "d"}),
        ("a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=C:\\\\dir", {"a": "C:\\dir"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_lines_mean_what_java_takes_them_for(text: str, expected: dict[str, str]) -> None:
    assert read(text) == expected


def test_an_entry_knows_the_line_it_begins_on() -> None:
    text = "# one\n\na=b\\\n  c\nd=e\n"
    assert [(entry.key, entry.line) for entry in read_properties(text)] == [("a", 3), ("d", 5)]


def test_an_unfinished_unicode_escape_is_an_error_with_its_line() -> None:
    with pytest.raises(PropertiesError, match=r"line 2: .*four hex digits"):
        read("a=b\nc=\\u12")


def test_a_line_continued_half_a_million_times_is_one_line() -> None:
    # Going back over the empty parts at every line would take hours.
    assert read("\\\n" * 500_000 + "a=b") == {"a": "b"}
    assert read("a=\\\n" + "b\\\n" * 250_000) == {"a": "b" * 250_000}


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        read(text)
    except PropertiesError as error:
        assert error.line >= 1


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z.]{1,8}", fullmatch=True), st.from_regex(r"[A-Za-z0-9:;=#/]*", fullmatch=True)
    )
)
def test_plain_values_survive_writing_and_reading(values: dict[str, str]) -> None:
    values = {key: value.lstrip("=:") for key, value in values.items()}
    assert read(write_properties(values)) == values
