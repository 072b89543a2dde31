"""`ropewalk store diverged`: what was kept aside is listed, and its messages can be sent again."""

import json
from pathlib import Path

import pytest

from ropewalk.format.names import SCHEDULE_TOPIC
from tests.store.worlds import put, settle
from tests.support.stores import cut, end_of, fill, reopened, whole_log
from tests.tools.conftest import RunCommand
from tools.messages.input import Stamp, parse_json_line


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


def test_a_store_that_keeps_nothing_says_so(ropewalk: RunCommand, root: Path) -> None:
    done = ropewalk("store", "diverged", root)
    assert done.status == 0 and done.lines == [] and "keeps no diverged tail" in done.errors
    assert ropewalk("store", "diverged", root, "--json").document == {"tails": []}


def test_tails_are_listed_with_why_and_how_many_messages(ropewalk: RunCommand, root: Path) -> None:
    log = whole_log(root)
    path = cut(root, log[-5].offset, end_of(log))
    (row,) = ropewalk("store", "diverged", root, "--json").document["tails"]
    assert (row["name"], row["messages"], row["fromOffset"]) == (path.name, 5, log[-5].offset)
    table = ropewalk("store", "diverged", root)
    assert path.name in table.out.decode() and table.lines[0].split()[0] == "name"


def test_its_messages_are_lines_that_produce_takes(ropewalk: RunCommand, root: Path) -> None:
    log = whole_log(root)
    path = cut(root, log[-9].offset, end_of(log))
    done = ropewalk("store", "diverged", root, "--messages", path.name, "--topic", "T")
    kept = [record for record in log[-9:] if record.topic == "T"]
    sent = [parse_json_line(line.encode(), Stamp()) for line in done.lines]
    assert [message.body for message in sent] == [record.body for record in kept]
    assert [message.tags for message in sent] == [record.properties["TAGS"] for record in kept]
    assert ropewalk("store", "diverged", root, "-m", "all").out.count(b"\n") == 9


def test_a_message_that_waited_for_its_time_is_one_of_the_topic_it_was_sent_to(
    ropewalk: RunCommand, root: Path
) -> None:
    store = reopened(root)
    put(store, [b"later"], SCHEDULE_TOPIC, 2, tags="t\x02DELAY\x013\x02REAL_TOPIC\x01T")
    settle(store)
    store.close()
    log = whole_log(root)
    assert log[-1].topic == SCHEDULE_TOPIC
    cut(root, log[-1].offset, end_of(log))
    (line,) = ropewalk("store", "diverged", root, "-m", "all", "--topic", "T").documents
    assert (line["topic"], line["body"], line["tags"]) == ("T", "later", "t")
    assert parse_json_line(json.dumps(line).encode(), Stamp()).properties["DELAY"] == "3"
    assert not ropewalk("store", "diverged", root, "-m", "all", "--topic", SCHEDULE_TOPIC).documents


def test_a_dump_reads_it_too(ropewalk: RunCommand, root: Path) -> None:
    log = whole_log(root)
    path = cut(root, log[-3].offset, end_of(log))
    done = ropewalk("store", "dump", path, "--json")
    assert [each["offset"] for each in done.documents] == [record.offset for record in log[-3:]]
    assert f"offset {log[-3].offset} to {end_of(log)}, " in ropewalk("store", "info", path).out.decode()


def test_a_name_that_is_not_there_and_a_folder_that_is_none(
    ropewalk: RunCommand, root: Path, tmp_path: Path
) -> None:
    done = ropewalk("store", "diverged", root, "-m", "x")
    assert done.status == 2 and "no diverged tail is called x" in done.errors
    assert ropewalk("store", "diverged", tmp_path / "nowhere").status == 2
