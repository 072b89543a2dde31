"""`ropewalk produce --transaction`, against a real broker."""

from collections.abc import Iterator

import pytest

from ropewalk.testing import BrokerProcess
from tests.tools.conftest import RunCommand


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with BrokerProcess() as process:
        yield process.namesrv


@pytest.mark.slow
def test_each_message_is_committed_rolled_back_or_left(ropewalk: RunCommand, namesrv: str) -> None:
    for outcome, bodies in (("commit", ("a", "b")), ("rollback", ("c",)), ("leave", ("d",))):
        words = ("produce", "T", *bodies, "--transaction", outcome, "--json")
        document = ropewalk(*words, name_server=namesrv).document
        assert (document["acknowledged"], document["failed"], document["unknown"]) == (len(bodies), 0, 0)
    words = ("consume", "T", "--from", "earliest", "--count", "2", "--format", "json")
    consumed = ropewalk(*words, name_server=namesrv)
    assert sorted(document["body"] for document in consumed.documents) == ["a", "b"], consumed


def test_another_outcome_is_wrong_use(ropewalk: RunCommand) -> None:
    ended = ropewalk("produce", "T", "x", "--transaction", "maybe")
    assert ended.status == 2
    assert "commit, rollback or leave" in ended.errors
