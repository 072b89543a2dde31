"""Generated pages: what is committed is what would be written, and what they say of codes and keys is complete."""

from collections.abc import Iterator

import pytest

from broker.broker import Broker
from broker.namesrv.server import NameServer
from broker.settings.key_help import key_help
from broker.settings.keys import KEYS, Mark
from ropewalk.codes import RequestCode, names_of
from tests.support.processes import ROOT
from tools.documents import map, requests
from tools.documents.markdown import table
from tools.documents.pages import pages
from tools.documents.sample import sample_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with sample_broker() as opened:
        yield opened


def test_the_pages_are_what_the_code_says() -> None:
    stale = [
        path
        for path, text in pages().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    assert not stale, f"`make docs`, or `python -m tools.documents`, writes {stale}"


def test_every_honoured_key_has_a_sentence_and_no_other_key_has() -> None:
    assert set(key_help()) == {key.name for key in KEYS.values() if key.mark is Mark.HONOURED}
    for name, one in key_help().items():
        assert one.section and one.text.endswith("."), name


def test_every_request_code_is_served_sent_or_refused_for_a_reason(broker: Broker) -> None:
    served = set(requests.served(broker)) | NameServer(lambda: 0).codes
    refused = {code for codes in requests.REASONS.values() for code in codes}
    known = set(names_of(RequestCode))
    assert served - requests.REFUSED_BY_HANDLER | requests.SENT_BY_BROKERS | refused == known
    assert not served & (refused - requests.REFUSED_BY_HANDLER), "served, and still among the refused"
    assert set(requests.meanings()) == known


def test_a_code_is_answered_by_the_file_of_its_handler(broker: Broker) -> None:
    files = requests.served(broker)
    assert files[RequestCode.SEND_MESSAGE] == "broker/produce/send.py"
    assert files[RequestCode.PULL_MESSAGE] == "broker/consume/pull.py"
    assert files[RequestCode.GET_TOPIC_CONFIG] == "broker/admin/topics.py"
    assert all((ROOT / path).exists() for path in files.values())
    assert not any("registry" in path or path.endswith("admin/base.py") for path in files.values())


def test_the_map_has_every_file_of_the_rooms() -> None:
    page = map.page(ROOT)
    for room in map.ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            assert f"(../{name})" in page or path.name == "__init__.py", name


def test_a_first_sentence_is_whole_and_alone() -> None:
    assert map.first_sentence(ROOT / "tools" / "documents" / "map.py") == (
        "The map: every file of the five rooms with the first sentence of its docstring"
    )


def test_a_table_is_as_wide_as_its_head() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    with pytest.raises(AssertionError):
        table(("a", "b"), [("1",)])
