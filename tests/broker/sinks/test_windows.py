"""The window core beside a plain model: rows are stored once, whatever is repeated, reordered or late."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.sinks.records import apply_states, decode_claims, encode_claims, encode_states
from broker.sinks.windows import (
    Busy,
    Fenced,
    Sink,
    SinkTable,
    Task,
    TooManyRows,
    WrongBatch,
    WrongCount,
    WrongOwner,
)
from ropewalk.client.core.produce.row_identity import (
    RowIdentity,
    Writer,
    check_sink_id,
    key_of,
    parse_identity,
    row_prefix,
)

NOW = 1_000


def task(epoch: int = 1, attempt: int = 0, batch: int = 0, partition: int = 0, query: str = "q") -> Task:
    return Task("S", epoch, attempt, query, batch, partition, "T")


class Log:
    """The log of a broker, as far as sinks are in it: rows and claims, in their order."""

    def __init__(self) -> None:
        self.records: list[tuple[RowIdentity, bool]] = []

    def append(self, table: SinkTable, one: Task, keys: Sequence[bytes], log_end: int = 0) -> list[bytes]:
        """Append rows as the service does; the keys of those that were not known."""
        table.admit(one, log_end, NOW)
        matched = table.match(one, keys)
        claimed = [keys[index] for index in matched.claimed]
        table.claim(one, claimed)
        self.records += [(identity, True) for identity in decode_claims(encode_claims(one, claimed))]
        new = list(keys) if matched.new is None else [keys[index] for index in matched.new]
        table.stored(one, new)
        self.records += [(RowIdentity("S", one.query, one.batch, one.writer, key), False) for key in new]
        return new

    def restart(self, table: SinkTable) -> SinkTable:
        """Return the table that a start reads from the log."""
        fresh = SinkTable()
        apply_states(fresh.sinks, encode_states(table.sinks.values()))
        for identity, is_claim in self.records:
            fresh.restore(identity, is_claim=is_claim)
        return fresh

    def contents(self, batch: int = 0) -> Counter[bytes]:
        """The rows that consumers see."""
        return Counter(
            identity.content
            for identity, is_claim in self.records
            if not is_claim and identity.batch == batch
        )


def append(table: SinkTable, one: Task, keys: list[bytes], log_end: int = 0) -> list[bytes]:
    return Log().append(table, one, keys, log_end)


def commit(
    table: SinkTable, epoch: int, batch: int, rows: int, query: str = "q", topic: str = "T"
) -> Sink | None:
    return table.commit("S", epoch, query, batch, rows, topic, "", "", NOW)


def keys_of(rows: Iterable[int]) -> list[bytes]:
    """The keys of a task's rows: content and ordinal."""
    seen: Counter[int] = Counter()
    keys = []
    for row in rows:
        keys.append(b"%016d%04d" % (row, seen[row]))
        seen[row] += 1
    return keys


class RunOfABatch:
    """The tasks of one run: each sends requests of three rows, one after the other, in attempts that may fail."""

    def __init__(self, chance: random.Random, batch: list[int], epoch: int, first_attempt: int) -> None:
        self.chance = chance
        self.epoch = epoch
        self.attempt = first_attempt
        rows = chance.sample(batch, len(batch))
        cuts = sorted(chance.randrange(len(rows) + 1) for _ in range(chance.randrange(4)))
        self.parts = [rows[start:stop] for start, stop in pairwise((0, *cuts, len(rows)))]
        self.waiting = {partition: self.next_attempt(partition) for partition in range(len(self.parts))}

    def next_attempt(self, partition: int) -> tuple[Task, list[list[bytes]]]:
        self.attempt += 1
        rows = self.parts[partition]
        keys = keys_of(self.chance.sample(rows, len(rows)))
        requests = [keys[at : at + 3] for at in range(0, len(keys), 3)]
        return task(self.epoch, self.attempt, partition=partition), requests

    def step(self) -> tuple[Task, list[bytes]] | None:
        """Return the next request of any task; None where it had none left, and is done."""
        partition = self.chance.choice(sorted(self.waiting))
        if self.chance.random() < 0.1:  # this attempt fails, and another one begins
            self.waiting[partition] = self.next_attempt(partition)
        one, requests = self.waiting[partition]
        if not requests:
            del self.waiting[partition]
            return None
        return one, requests.pop(0)


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 4), max_size=14))
def test_a_batch_that_is_cut_otherwise_in_each_run_is_stored_once(
    chance: random.Random, batch: list[int]
) -> None:
    """Runs end anywhere; tasks fail, requests come twice, the broker starts again; equal rows are anywhere."""
    table, log = SinkTable(), Log()
    first_attempt, last = 0, chance.randrange(4)
    for number in range(last + 1):
        run = RunOfABatch(chance, batch, table.init("S", "T", "", 0, NOW).announced, first_attempt)
        while run.waiting and (number == last or chance.random() < 0.9):
            sent = run.step()
            if sent is None:
                continue
            for _ in range(1 + (chance.random() < 0.2)):
                log.append(table, *sent)
            if chance.random() < 0.15:
                table = log.restart(table)
        first_attempt = run.attempt
    assert commit(table, run.epoch, 0, len(batch)) is not None
    assert log.contents() == Counter(b"%016d" % row for row in batch)


@given(
    st.randoms(use_true_random=False),
    st.lists(st.lists(st.integers(0, 4), max_size=8), min_size=2, max_size=4),
)
def test_a_plan_that_gives_other_rows_is_refused_or_was_not_seen_to(
    chance: random.Random, batches: list[list[int]]
) -> None:
    """Each run has rows of its own, and is killed anywhere but the last: its rows are there, or the commit says no."""
    table, log = SinkTable(), Log()
    first_attempt = 0
    for number, batch in enumerate(batches, 1):
        run = RunOfABatch(chance, batch, table.init("S", "T", "", 0, NOW).announced, first_attempt)
        while run.waiting and (number == len(batches) or chance.random() < 0.8):
            if (sent := run.step()) is not None:
                log.append(table, *sent)
        first_attempt = run.attempt
    wanted = Counter(b"%016d" % row for row in batches[-1])
    try:
        commit(table, run.epoch, 0, wanted.total())
    except WrongCount as exc:
        assert "not deterministic" in str(exc)
        assert log.contents() > wanted
    else:
        assert log.contents() == wanted


def test_a_new_epoch_fences_the_one_before_it_for_appends_and_commits() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    assert append(table, task(1), [b"a" * 20]) == [b"a" * 20]
    assert table.init("S", "T", "", 0, NOW).announced == 2
    # It begins with its first request: an init does not say whose it is.
    assert append(table, task(1), [b"c" * 20]) == [b"c" * 20]
    assert append(table, task(2), [b"a" * 20]) == []
    with pytest.raises(Fenced, match="epoch 1 of sink S is over: epoch 2 has begun"):
        table.admit(task(1, attempt=9), 0, NOW)
    with pytest.raises(Fenced):
        commit(table, 1, 0, 1)
    assert append(table, task(2), [b"a" * 20, b"b" * 20]) == [b"b" * 20]


def test_a_committed_batch_takes_nothing_more_and_its_commit_can_be_repeated() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 20])
    assert commit(table, 1, 0, 1) is not None
    with pytest.raises(Fenced, match="batch 0 of sink S was committed"):
        table.admit(task(attempt=5), 0, NOW)
    assert commit(table, 1, 0, 1) is None
    assert append(table, task(batch=1), [b"a" * 20]) == [b"a" * 20]
    # A repeated commit of the batch before takes nothing away from the open one.
    assert commit(table, 1, 0, 1) is None
    assert table.rows == 1


@pytest.mark.parametrize("is_committed", [True, False])
def test_another_query_is_refused_and_disturbs_nobody(is_committed: bool) -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 20])
    if is_committed:
        commit(table, 1, 0, 1)
    after = task(batch=int(is_committed))
    epoch = table.init("S", "T", "", 0, NOW).announced
    for query, words in (
        ("other", "checkpoint of query q, give option sinkId a new name"),
        ("-", "a batch write"),
    ):
        with pytest.raises(WrongOwner, match=words):
            table.admit(task(epoch, query=query), 0, NOW)
        with pytest.raises(WrongOwner, match="ropewalk admin sink forget S"):
            commit(table, epoch, 0, 0, query)
    assert append(table, after, [b"b" * 20]) == [b"b" * 20]
    assert commit(table, 1, after.batch, 1 + (not is_committed)) is not None


def test_a_forgotten_sink_fences_what_is_on_its_way_and_takes_any_query() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 20])
    assert table.forget("S", NOW) is not None
    assert table.forget("S", NOW) is None
    assert table.count == 0
    with pytest.raises(Fenced, match="the sink was forgotten"):
        table.admit(task(attempt=3), 0, NOW)
    with pytest.raises(Fenced, match="the sink was forgotten"):
        commit(table, 1, 0, 1)
    epoch = table.init("S", "T", "", 0, NOW).announced
    with pytest.raises(Fenced):
        table.admit(task(attempt=3), 0, NOW)
    assert append(table, task(epoch, query="other"), [b"a" * 20]) == [b"a" * 20]
    assert table.count == 1


@pytest.mark.parametrize(("rows", "says"), [(1, "not deterministic"), (3, "lost with a master")])
def test_a_commit_of_another_number_of_rows_is_refused(rows: int, says: str) -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 20, b"b" * 20])
    with pytest.raises(WrongCount, match=says):
        commit(table, 1, 0, rows)
    assert table.rows == 2
    assert commit(table, 1, 0, 2) is not None


def test_an_epoch_that_a_lost_master_began_is_adopted() -> None:
    table = SinkTable()
    assert table.admit(task(7), 500, NOW)
    assert (table.sinks["S"].epoch, table.sinks["S"].since) == (7, 500)
    with pytest.raises(Fenced):
        table.admit(task(6), 600, NOW)


def test_only_rows_of_the_open_batch_come_back_from_the_log() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 20])
    commit(table, 1, 0, 1)
    table.init("S", "T", "", 100, NOW)
    table.restore(RowIdentity("S", "q", 0, Writer(1, 0, 0), b"a" * 20))
    table.restore(RowIdentity("S", "q", 1, Writer(1, 0, 0), b"b" * 20))
    table.restore(RowIdentity("other", "q", 1, Writer(1, 0, 0), b"b" * 20))
    assert table.rows == 1


def test_a_batch_over_the_limit_is_refused_and_loses_nothing() -> None:
    table = SinkTable(rows_max=2)
    append(table, task(), [b"a" * 20, b"b" * 20])
    assert append(table, task(), [b"a" * 20]) == []
    with pytest.raises(TooManyRows, match="maxOffsetsPerTrigger"):
        append(table, task(), [b"c" * 20])
    assert table.rows == 2


def test_idle_sinks_expire_and_forgotten_ones_stay_away() -> None:
    table = SinkTable()
    table.init("old", "T", "", 0, NOW)
    table.init("new", "T", "", 0, NOW + 10)
    table.init("S", "T", "", 70, NOW)
    append(table, task(), [b"a" * 20])
    assert table.expire(NOW + 1, 70) == ["old"]
    assert table.expire(NOW + 1, 71) == ["S"]  # retention has taken rows of the open batch
    table.init("old", "T", "", 0, NOW)
    assert table.expire(NOW + 1) == ["old"]
    states: dict[str, Sink] = {}
    apply_states(states, encode_states(table.sinks.values()))
    apply_states(states, encode_states((), gone=("new",)))
    assert not states


@given(st.text("abc/9-._", min_size=1, max_size=8), st.integers(0, 1 << 40), st.integers(0, 9999))
def test_an_identity_is_read_as_it_was_written(sink_id: str, batch: int, partition: int) -> None:
    writer = Writer(7, partition, 21)
    prefix = row_prefix(sink_id, "0123abcd", batch, writer)
    text = b"TAGS\x01x\x02" + prefix + b"0123456789abcdef0001"
    assert key_of(text, prefix) == key_of(text + b"\x02", prefix) == b"0123456789abcdef0001"
    assert key_of(text[:-1], prefix) is None
    assert key_of(text, prefix.replace(b"RW_SINK", b"RW_KNIS")) is None
    value = text.decode().rpartition("\x01")[2]
    if check_sink_id(sink_id) is None:
        assert parse_identity(value) == (sink_id, "0123abcd", batch, writer, b"0123456789abcdef0001")


def test_a_speculative_attempt_that_is_given_up_takes_no_row_of_its_brother() -> None:
    table, log = SinkTable(), Log()
    table.init("S", "T", "", 0, NOW)
    log.append(table, task(attempt=1), keys_of([1, 2, 3]))
    log.append(table, task(attempt=2), keys_of([1]))  # begun when the other one was nearly done, and killed
    assert commit(table, 1, 0, 3) is not None
    assert log.contents().total() == 3


def test_another_topic_is_refused_by_name_until_the_sink_is_forgotten() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    table.init("S", "U", "", 0, NOW)  # nothing was written yet
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 20])
    for is_committed in (False, True):
        if is_committed:
            assert commit(table, 3, 0, 1) is not None
        for again in (table, Log().restart(table) if is_committed else table):
            with pytest.raises(WrongOwner, match="writes to topic T, and this is topic U"):
                again.init("S", "U", "", 0, NOW)
        with pytest.raises(WrongOwner, match="topic T, and this is topic U"):
            table.admit(task(3, batch=1)._replace(topic="U"), 0, NOW)
        with pytest.raises(WrongOwner, match="topic T, and this is topic U"):
            commit(table, 3, 1, 0, topic="U")
    table.forget("S", NOW)
    table.init("S", "U", "", 0, NOW)


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 20])
    assert table.topic_deleted("T") == [table.sinks["S"]]  # with the rows of a batch that nobody committed
    table.init("S", "T", "", 0, NOW)
    append(table, task(2), [b"a" * 20])
    assert commit(table, 2, 0, 1) is not None
    assert table.topic_deleted("U") == []
    table.topic_deleted("T")
    for again in (table, Log().restart(table)):
        with pytest.raises(WrongOwner, match=r"a topic T that was deleted.*another topic T: batches up to 0"):
            again.init("S", "T", "", 0, NOW)


def test_a_batch_that_version_0_1_began_is_refused_in_words() -> None:
    table = SinkTable()
    state = b'[{"sink_id":"S","epoch":3,"query":"q","batch":6,"since":50,"topics":["T"],"announced":3}]'
    apply_states(table.sinks, state)
    value = "S/q/7/0/0123456789abcdef"
    identity = parse_identity(value)
    assert identity is not None
    assert tuple(identity) == ("S", "q", 7, None, b"0123456789abcdef")
    table.restore(identity)
    with pytest.raises(WrongBatch, match=r"batch 7 of sink S was begun by version 0\.1 .*sink forget S"):
        table.init("S", "T", "", 0, NOW)
    table.forget("S", NOW)
    table.init("S", "T", "", 0, NOW)


def test_a_sink_that_version_0_1_committed_goes_on_with_the_topic_of_its_next_batch() -> None:
    table = SinkTable()
    apply_states(table.sinks, b'[{"sink_id":"S","epoch":3,"query":"q","batch":6,"announced":3}]')
    table.init("S", "T", "", 0, NOW)
    with pytest.raises(WrongOwner, match="writes to topic T, and this is topic U"):
        table.init("S", "U", "", 0, NOW)


def test_rows_of_an_earlier_run_are_counted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window may have millions of rows, and the loop serves others meanwhile."""
    monkeypatch.setattr("broker.sinks.windows.KEYS_PER_STEP", 10)
    table, log = SinkTable(), Log()
    table.init("S", "T", "", 0, NOW)
    for partition in range(3):
        log.append(table, task(partition=partition), keys_of(range(partition * 15, partition * 15 + 15)))
    epoch = table.init("S", "T", "", 0, NOW).announced
    again = task(epoch, 1, partition=7)
    steps = 0
    while True:
        try:
            assert log.append(table, again, keys_of(range(50))) == keys_of(range(50))[45:]
            break
        except Busy:
            steps += 1
    assert steps == 4
    assert commit(table, epoch, 0, 50) is not None
