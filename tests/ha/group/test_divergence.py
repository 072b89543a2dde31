"""Two logs side by side: the search beside a comparison of every byte."""

import os
import random
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.group import divergence
from ha.group.divergence import Bytes, Compared, Extent, Finding, LogQuery, Sums, compare, sums_of, tail
from ropewalk.errors import RemoteProtocolError


class Log:
    """A log as a row of records of any bytes."""

    def __init__(self, records: Sequence[bytes], begin: int = 0) -> None:
        self.begin = begin
        self.ends = [begin]
        for record in records:
            self.ends.append(self.ends[-1] + len(record))
        self.data = b"".join(records)
        self.end = self.ends[-1]

    def read(self, offset: int, size: int) -> bytes:
        assert self.begin <= offset and offset + size <= self.end
        return self.data[offset - self.begin : offset - self.begin + size]

    def boundary(self, offset: int) -> int:
        return max(end for end in self.ends if end <= offset)


def ask(log: Log, question: LogQuery) -> tuple[int | None, ...] | bytes:
    if isinstance(question, Sums):
        return sums_of(log, question.ranges)
    return log.read(question.start, question.end - question.start)


def run(
    search: Generator[LogQuery, Any, Compared], master: Log, questions: list[LogQuery] | None = None
) -> Compared:
    answer: Any = None
    try:
        while True:
            question = search.send(answer)
            if questions is not None:
                questions.append(question)
            answer = ask(master, question)
    except StopIteration as end:
        assert isinstance(end.value, Compared)
        return end.value


def extent(log: Log) -> Extent:
    return Extent(log.begin, log.end)


def compared(slave: Log, master: Log, questions: list[LogQuery] | None = None) -> Compared:
    return run(compare(slave, extent(slave), extent(master)), master, questions)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same search with blocks of 64 bytes, four at a time."""
    _shrink(monkeypatch)


def _shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(divergence, "BLOCK", 64)
    patch.setattr(divergence, "PAGE", 8)
    patch.setattr(divergence, "BLOCKS_AT_ONCE", 4)
    patch.setattr(divergence, "_SURE", 2)


def records(seed: int, count: int) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.randint(1, 30)) for _ in range(count)]


def test_the_beginning_of_the_master_s_log_is_known_by_one_question() -> None:
    master = Log([os.urandom(1 << 20) for _ in range(5)])
    slave = Log([master.data[: 3 << 20], master.data[3 << 20 : (3 << 20) + 500]])
    questions: list[LogQuery] = []
    assert compared(slave, master, questions) == Compared(Finding.SAME, slave.end)
    assert len(questions) == 1
    assert isinstance(questions[0], Sums) and questions[0].ranges == tail(0, slave.end)


def test_a_tail_covers_the_last_64_blocks() -> None:
    ranges = tail(5, 100 << 20)
    assert ranges[-1] == (99 << 20, 100 << 20) and len(ranges) == 64
    assert tail(5, (1 << 20) + 7) == ((5, 1 << 20), (1 << 20, (1 << 20) + 7))
    assert tail(0, 0) == ()


@given(st.integers(0, 1 << 30), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 3))
def test_the_cut_is_behind_the_last_record_that_both_have(
    seed: int, shared: int, mine: int, theirs: int, lost: int
) -> None:
    """Both logs go on from a shared beginning; the master has lost its oldest records, as retention would."""
    with pytest.MonkeyPatch.context() as patch:
        _shrink(patch)
        common = records(seed, shared)
        slave = Log(common + records(seed + 1, mine))
        lost = min(lost, len(common))
        master = Log(common[lost:] + records(seed + 2, theirs), sum(map(len, common[:lost])))
        found = compared(slave, master)
    if slave.end == 0:
        assert found.finding is Finding.SAME
        return
    low, top = master.begin, min(slave.end, master.end)
    first = low
    while first < top and slave.read(first, 1) == master.read(first, 1):
        first += 1
    if slave.end < master.begin:
        assert found.finding is Finding.BEHIND
    elif first == slave.end:
        assert found == Compared(Finding.SAME, slave.end)
    elif slave.boundary(first) <= low:
        assert found.finding is Finding.STRANGERS
    else:
        assert found.common == slave.boundary(first)
        assert found.finding is (Finding.LONGER if first == master.end else Finding.DIVERGED)


@pytest.mark.usefixtures("small")
def test_a_record_whose_last_byte_differs_is_cut_whole() -> None:
    start = records(1, 20)
    slave, master = Log([*start, b"the same but for thiS"]), Log([*start, b"the same but for this"])
    assert compared(slave, master) == Compared(Finding.DIVERGED, sum(map(len, start)))


@pytest.mark.usefixtures("small")
def test_padding_that_is_the_same_in_every_log_does_not_mislead() -> None:
    start = records(1, 20)
    padding = bytes(60)  # less than two blocks
    mine = start + [part for n in range(40) for part in (*records(100 + n, 3), padding)]
    theirs = start + [part for n in range(40) for part in (*records(900 + n, 3), padding)]
    slave, master = Log(mine), Log(theirs)
    first = next(at for at in range(slave.end) if slave.read(at, 1) != master.read(at, 1))
    assert compared(slave, master).common == slave.boundary(first)


@pytest.mark.usefixtures("small")
def test_a_long_search_asks_few_questions() -> None:
    start = records(1, 1000)
    slave, master = Log(start + records(2, 4000)), Log(start + records(3, 4000))
    questions: list[LogQuery] = []
    found = compared(slave, master, questions)
    assert found == Compared(Finding.DIVERGED, sum(map(len, start)))
    assert slave.end > 60_000 and len(questions) < 20


def test_an_empty_slave_has_nothing_to_compare() -> None:
    assert compared(Log([]), Log([b"abc"], 4096)) == Compared(Finding.SAME, 0)


def test_a_slave_that_ends_where_the_master_begins_goes_on() -> None:
    assert compared(Log([b"abcd"]), Log([b"efgh"], 4)) == Compared(Finding.SAME, 4)


def test_logs_without_a_common_byte_are_for_a_person_to_judge() -> None:
    assert compared(Log([b"abcd"]), Log([b"efgh"])).finding is Finding.STRANGERS
    assert compared(Log([b"abcd"]), Log([])).finding is Finding.STRANGERS, (
        "an empty master takes nothing away"
    )


def test_a_master_that_contradicts_itself_is_not_believed() -> None:
    slave, master = Log([b"abcd" * 2000]), Log([b"abcd" * 1000 + b"efgh" * 1000])
    search = compare(slave, extent(slave), extent(master))
    next(search)
    search.send([0])
    with pytest.raises(RemoteProtocolError, match="contradict"):
        search.send(list(sums_of(slave, divergence.pieces(0, 8000, 4096))))


@pytest.mark.parametrize("answer", [[], [None], b"bytes"])
def test_sums_that_are_missing_end_the_search(answer: Any) -> None:
    slave = Log([b"abcd"])
    search = compare(slave, extent(slave), extent(slave))
    next(search)
    with pytest.raises(RemoteProtocolError, match="gave no checksums"):
        search.send(answer)


def test_bytes_are_asked_for_by_the_page() -> None:
    slave, master = Log([b"a" * 9000]), Log([b"a" * 5000 + b"b" * 4000])
    questions: list[LogQuery] = []
    compared(slave, master, questions)
    assert questions[-1] == Bytes(4096, 8192)
