from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import error_for
from ropewalk.printable import printable


@given(st.text(), st.sampled_from(["", "\n", "\n\t"]))
def test_what_is_shown_acts_on_no_terminal_and_can_be_read_back(text: str, keep: str) -> None:
    shown = printable(text, keep)
    assert all(char.isprintable() or char in keep for char in shown)
    if "\\" not in text and text.isascii():
        assert shown.encode().decode("unicode_escape") == text


def test_visible_text_stays_as_it_is() -> None:
    assert printable("orders-Bestellungen-ä-注文") == "orders-Bestellungen-ä-注文"


def test_escapes_are_pythons() -> None:
    assert printable("a\x1b]52;c;eA==\x07\u202eb\ud800\U000e0001") == (
        r"a\x1b]52;c;eA==\x07\u202eb\ud800\U000e0001"
    )


def test_the_remark_of_a_refusal_acts_on_no_terminal() -> None:
    error = error_for(1, "no \x1b[2Jsuch\nthing")
    assert str(error).endswith("no \\x1b[2Jsuch\nthing") and error.remark == "no \x1b[2Jsuch\nthing"
