"""A wrong use of a command is told with the form that is right."""

import json
import sys

import pytest

from tests.tools.conftest import RunCommand


@pytest.mark.parametrize(
    "words, told",
    [
        ("admin lag --group billing", "GROUP is written without it: `ropewalk admin lag [GROUP]`"),
        ("admin topic show --topic orders", "TOPIC is written without it: `ropewalk admin topic show TOPIC`"),
        ("admin message show --id 0123", "ID is written without it: `ropewalk admin message show ID`"),
        (
            "produce orders --messages x",
            "MESSAGE is written without it: `ropewalk produce [TOPIC] [MESSAGE...]`",
        ),
        (
            "admin message show orders 0123",
            "(0123); the form is `ropewalk admin message show ID`, with options as --topic TOPIC",
        ),
        ("store verify a b", "the form is `ropewalk store verify DIR`"),
        ("admin topic show a b", "the form is `ropewalk admin topic show TOPIC`"),
        ("admin message show", "Missing argument 'ID'. The form is `ropewalk admin message show ID`"),
        ("consume demo --xyzzy", "the form is `ropewalk consume [TOPIC...]`, with options as --from WHERE"),
        ("consume demo --groups g", "Possible options: --group"),
        ("admin lagg", "Did you mean 'lag'?"),
        ("consume demo --limit 3", "No such option: --limit; here it is --count"),
        ("consume demo --from-beginning", "here it is --from"),
        ("produce demo --key k x", "here it is --keys"),
        ("pull demo --count 3", "here it is --max"),
        ("topic list", "No such command 'topic'. It is `ropewalk admin topic`."),
        ("admin config get", "No such command 'config'. It is `ropewalk admin broker config`."),
        ("admin skip g t", "It is `ropewalk admin group skip`."),
        ("admin switch a", "It is `ropewalk admin ha switch`."),
        ("admin haStatus", "What mqadmin calls so is `ropewalk admin ha status`."),
        ("admin broker status -b a", "BROKER is written without it: `ropewalk admin broker status [BROKER]`"),
        ("admin topic show -t orders", "TOPIC is written without it: `ropewalk admin topic show TOPIC`"),
        ("verify data", "It is `ropewalk store verify`."),
        ("drill run", "The form is `ropewalk drill run"),
    ],
)
def test_a_wrong_use_is_told_with_the_right_form(ropewalk: RunCommand, words: str, told: str) -> None:
    ended = ropewalk(*words.split())
    assert ended.status == 2
    assert told in " ".join(ended.errors.replace("│", " ").split())


def test_a_wrong_value_is_told_as_before(ropewalk: RunCommand) -> None:
    ended = ropewalk("pull", "demo", "--queue", "x")
    assert (
        ended.status == 2 and "form is" not in ended.errors and "Invalid value for '--queue'" in ended.errors
    )


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300"])
@pytest.mark.parametrize(
    "words",
    [
        "kv get a --timeout",
        "pull demo --timeout",
        "admin topic list --timeout",
        "kv lock --lease",
        "admin dledger remove n0 --wait",
    ],
)
def test_seconds_that_never_pass_are_a_mistake_in_the_call(
    ropewalk: RunCommand, words: str, seconds: str
) -> None:
    ended = ropewalk(*words.split(), seconds, *(("name", "true") if "lock" in words else ()))
    assert ended.status == 2 and "Traceback" not in ended.errors
    assert "Invalid value for '--" in ended.errors


@pytest.mark.parametrize("words", [["kv", "put", "", "x"], ["kv", "get", "k" * 5000]])
def test_a_key_that_is_none_is_told_without_a_doubt_about_the_server(
    ropewalk: RunCommand, words: list[str]
) -> None:
    ended = ropewalk(*words)
    assert ended.status == 2 and "a key has 1 to 4096 bytes" in ended.errors
    assert "this really" not in ended.errors


@pytest.mark.parametrize(
    "words",
    [
        "kv put \udcff\udcfe x",
        "kv put x \udcff",
        "kv lock \udcff true",
        "produce demo --tag \udcff x",
        "produce demo --keys \udcff x",
        "produce demo --property a=\udcff x",
        "produce \udcff x",
        "consume \udcff --count 1",
        "pull \udcff",
        "admin topic show \udcff",
    ],
)
def test_words_that_are_no_utf_8_are_refused_in_words(ropewalk: RunCommand, words: str) -> None:
    ended = ropewalk(*words.split(" "))
    assert ended.status in (1, 2) and "Traceback" not in ended.errors
    assert "this really" not in ended.errors


def test_a_wrong_use_is_json_where_json_was_asked_for(
    ropewalk: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("store", "verify", "a", "b", "--json")
    monkeypatch.setattr(sys, "argv", ["ropewalk", *words])
    ended = ropewalk(*words)
    assert ended.status == 2
    assert "the form is `ropewalk store verify DIR`" in json.loads(ended.errors)["error"]
