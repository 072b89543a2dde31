"""Tag expressions: what passes the broker, and what the known clients' own objects say."""

from __future__ import annotations

from typing import Any

import pytest

from broker.state.subscription import SubscriptionData, SubscriptionParseError

TAG_A, TAG_B = 2598919, 2598920  # Java's "TagA".hashCode() and "TagB".hashCode()


@pytest.mark.parametrize("expression", ["*", "", None])
def test_a_star_an_empty_and_an_absent_expression_want_everything(expression: str | None) -> None:
    wish = SubscriptionData.parse("T", expression)
    assert wish.wants_all
    assert wish.matches(0) and wish.matches(TAG_A) and wish.matches(-1)
    assert wish.expression == "*" and not wish.codes


@pytest.mark.parametrize(
    "expression", ["TagA||TagB", "TagA || TagB", "  TagB|| TagA  ", "TagA||||TagB||", "TagA||TagB||TagA"]
)
def test_tags_are_separated_by_two_bars_and_blanks_do_not_count(expression: str) -> None:
    wish = SubscriptionData.parse("T", expression)
    assert wish.codes == {TAG_A, TAG_B}
    assert sorted(wish.tags) == ["TagA", "TagB"]
    assert wish.matches(TAG_A) and wish.matches(TAG_B)
    assert not wish.matches(TAG_A + 2)


def test_a_single_bar_belongs_to_the_tag() -> None:
    assert SubscriptionData.parse("T", "a|b").tags == ("a|b",)


def test_a_message_without_a_tag_passes_a_star_alone() -> None:
    assert not SubscriptionData.parse("T", "TagA").matches(0)


def test_a_tag_with_the_same_hash_passes_because_the_client_looks_again() -> None:
    wish = SubscriptionData.parse("T", "Aa")
    assert wish.codes == SubscriptionData.parse("T", "BB").codes
    assert wish.matches(2112)


def test_the_hash_of_a_tag_beyond_the_basic_plane_counts_its_surrogates() -> None:
    assert SubscriptionData.parse("T", "😀").codes == {1772899}


@pytest.mark.parametrize("expression", ["||", " || ", "   ", "|| ||"])
def test_an_expression_that_names_no_tag_is_refused(expression: str) -> None:
    with pytest.raises(SubscriptionParseError, match="names no tag"):
        SubscriptionData.parse("T", expression)


def test_an_expression_of_absurd_length_is_refused() -> None:
    with pytest.raises(SubscriptionParseError, match="too long"):
        SubscriptionData.parse("T", "a||" * 100_000)


def test_a_heartbeat_may_carry_a_long_expression_that_a_pull_may_not() -> None:
    long = "||".join(f"tag{n}" for n in range(20_000))
    assert len(SubscriptionData.from_json({"subString": long}, "T").codes) == 20_000


def test_sql_is_carried_as_it_came_and_filters_nothing_here() -> None:
    wish = SubscriptionData.parse("T", "a > 1 || b", expression_type="SQL92")
    assert (wish.expression, wish.tags, wish.wants_all) == ("a > 1 || b", (), False)
    assert wish.matches(TAG_A)
    with pytest.raises(SubscriptionParseError, match="is empty"):
        SubscriptionData.parse("T", "", expression_type="SQL92")


JAVA: dict[str, Any] = {
    "classFilterMode": False,
    "codeSet": [TAG_A],
    "expressionType": "TAG",
    "subString": "TagA",
    "subVersion": 1700000000000,
    "tagsSet": ["TagA"],
    "topic": "T",
}


def test_the_java_clients_object_survives_a_round_trip() -> None:
    assert SubscriptionData.from_json(JAVA, "T").to_json() == JAVA


@pytest.mark.parametrize(
    "go",
    [
        {"topic": "T", "subString": "TagA", "subVersion": 1, "codeSet": None, "tagsSet": None},
        {"topic": "T", "subString": "TagA", "subVersion": "1"},
        {"topic": "T", "subString": "TagA", "tagsSet": ["TagA"], "subVersion": 1, "expressionType": None},
        {"topic": "T", "subString": "TagA", "codeSet": [str(TAG_A)], "subVersion": 1, "expressionType": ""},
    ],
)
def test_an_object_without_type_or_sets_means_what_its_expression_says(go: dict[str, Any]) -> None:
    wish = SubscriptionData.from_json(go, "T")
    assert wish.expression_type == "TAG"
    assert wish.codes == {TAG_A}
    assert wish.version in (0, 1)
    assert wish.matches(TAG_A) and not wish.matches(TAG_B)


def test_a_star_with_empty_sets_wants_everything() -> None:
    assert SubscriptionData.from_json({"subString": "*", "codeSet": [], "tagsSet": []}, "T").wants_all


def test_an_object_with_nothing_in_it_wants_everything() -> None:
    assert SubscriptionData.from_json({}, "T") == SubscriptionData("T")


def test_a_heartbeat_with_an_odd_expression_is_kept_and_matches_nothing() -> None:
    wish = SubscriptionData.from_json({"subString": " || "}, "T")
    assert not wish.matches(0) and not wish.matches(TAG_A)


def test_two_wishes_are_the_same_whatever_the_order_of_tags_and_the_time() -> None:
    one = SubscriptionData.parse("T", "TagA || TagB", version=1)
    assert one.same_wish(SubscriptionData.parse("T", "TagB||TagA", version=2))
    assert not one.same_wish(SubscriptionData.parse("T", "TagA"))
    assert not one.same_wish(SubscriptionData.parse("T", "*"))
    assert not one.same_wish(SubscriptionData.parse("T", "TagA || TagB", expression_type="SQL92"))
