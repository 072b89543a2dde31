"""Admission: one rule in two views, and the second never says less than the first."""

from itertools import chain, combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.produce import admission
from broker.produce.admission import (
    FLAG_BITS,
    PLAIN,
    ROWS,
    classify,
    is_plain,
    is_plain_batch,
    refusal_in_batch,
)
from ropewalk.codes import MessageSysFlag
from ropewalk.format.properties import P, encode_properties, parse_properties

ASKING = {
    "half": {P.TRAN_MSG: "true"},
    "decided half": {},
    "timed": {P.TIMER_DELIVER_MS: "1"},
    "inner batch": {P.INNER_NUM: "2"},
    "light queues": {P.INNER_MULTI_DISPATCH: "q"},
    "delayed": {P.DELAY: "3"},
}
"""Properties for each row that ask for it; a decided half is told by the sys flag alone."""
ORDINARY = {P.UNIQ_KEY: "7F00", P.TAGS: "A", P.KEYS: "order 17", P.WAIT: "true"}


def test_every_row_has_an_example() -> None:
    assert [row.name for row in ROWS] == list(ASKING)


@pytest.mark.parametrize(
    "names",
    [*chain.from_iterable(combinations([*ASKING, "stripped", "own"], size) for size in range(8))],
    ids=lambda names: "+".join(names) or "none",
)
def test_what_the_text_shows_to_be_plain_is_plain_by_its_properties(names: tuple[str, ...]) -> None:
    properties = dict(ORDINARY)
    for name in names:
        properties |= ASKING.get(name, {P.POP_CK: "1"} if name == "stripped" else {P.CLUSTER: "c"})
    text = encode_properties(properties).decode()
    for flags in (0, *(1 << bit for bit in range(8))):
        if is_plain(text) and not flags & FLAG_BITS:
            assert classify(parse_properties(text), flags, 0) is PLAIN
            assert not properties.keys() & {*admission.STRIPPED_PROPERTIES, *admission.OWN_PROPERTIES}
    if is_plain_batch(text.encode()):
        assert refusal_in_batch(parse_properties(text)) is None
    if not names:
        assert is_plain(text), "or nothing would go the fast way"


@given(
    st.dictionaries(
        st.sampled_from([value for name, value in vars(P).items() if name.isupper()])
        | st.text("ABC_", min_size=1),
        st.text(min_size=1).filter(lambda text: "\x02" not in text),
        max_size=5,
    ),
    st.integers(0, 255),
    st.integers(0, 3),
)
def test_no_text_at_all_is_plain_for_one_view_and_not_for_the_other(
    properties: dict[str, str], flags: int, times: int
) -> None:
    try:
        text = encode_properties(properties).decode()
    except ValueError:
        return  # no property text
    if is_plain(text) and not flags & FLAG_BITS:
        assert classify(parse_properties(text), flags, times) is PLAIN


@pytest.mark.parametrize(
    ("asked", "flags", "times", "row"),
    [
        ({P.TRAN_MSG: "TRUE"}, 0, 0, "half"),
        ({P.TRAN_MSG: "false"}, 0, 0, "plain"),
        ({}, MessageSysFlag.TRANSACTION_PREPARED, 3, "half"),
        ({P.TRAN_MSG: "true", P.DELAY: "3"}, 0, 1, "delayed"),
        ({P.TRAN_MSG: "true", P.DELAY: "3"}, 0, 0, "half"),
        ({P.TRAN_MSG: "true", P.DELAY: "3"}, MessageSysFlag.TRANSACTION_PREPARED, 0, "half"),
        ({P.TRAN_MSG: "true", P.DELAY: "3"}, MessageSysFlag.TRANSACTION_PREPARED, 1, "delayed"),
        ({}, MessageSysFlag.TRANSACTION_COMMIT, 0, "decided half"),
        ({}, MessageSysFlag.TRANSACTION_ROLLBACK, 1, "decided half"),
        ({P.DELAY: "3"}, MessageSysFlag.TRANSACTION_COMMIT, 1, "delayed"),
        ({P.TIMER_DELAY_SEC: "5"}, 0, 0, "timed"),
        ({P.TIMER_DELAY_SEC: "5", P.TIMER_OUT_MS: "7"}, 0, 0, "plain"),
        ({P.TIMER_DELAY_MS: "5", P.DELAY: "2"}, 0, 0, "delayed"),
        ({P.DELAY: "0"}, 0, 0, "plain"),
        ({P.DELAY: "-1"}, 0, 0, "plain"),
        ({P.DELAY: "soon"}, 0, 0, "delayed"),
        ({}, MessageSysFlag.INNER_BATCH, 0, "inner batch"),
    ],
)
def test_the_first_row_that_applies_decides(asked: dict[str, str], flags: int, times: int, row: str) -> None:
    assert classify(asked, flags, times).name == row


def test_a_batch_refuses_what_a_single_message_may_ask_for() -> None:
    for name, properties in ASKING.items():
        assert refusal_in_batch(properties) is not None or not properties, name
    assert refusal_in_batch(ORDINARY) is None


def test_the_words_of_all_rows_are_found_wherever_they_stand() -> None:
    for word, around in product([word for row in ROWS for word in row.words], ["", "a value "]):
        assert not is_plain(f"K\x01{around}{word}\x02") and not is_plain_batch(
            f"K\x01{around}{word}".encode()
        )
