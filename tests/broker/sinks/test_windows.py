"""The window core beside a plain model: rows are stored once, whatever is repeated, reordered or late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.sinks.records import apply_states, encode_states
from broker.sinks.windows import Fenced, Sink, SinkTable, Task, TooManyRows, WrongCount, WrongQuery
from ropewalk.client.core.produce.row_identity import (
    RowIdentity,
    check_sink_id,
    key_of,
    parse_identity,
    row_prefix,
)

NOW = 1_000


def task(epoch: int = 1, attempt: int = 0, batch: int = 0, partition: int = 0, query: str = "q") -> Task:
    return Task("S", epoch, attempt, query, batch, partition, "T")


def append(table: SinkTable, one: Task, keys: list[bytes], log_end: int = 0) -> list[bytes]:
    """The keys that are appended."""
    table.admit(one, log_end, NOW)
    missing = table.missing(one, keys)
    new = keys if missing is None else [keys[index] for index in missing]
    table.stored(one, new)
    return new


def commit(table: SinkTable, epoch: int, batch: int, rows: int, query: str = "q") -> Sink | None:
    return table.commit("S", epoch, query, batch, rows, "", "", NOW)


KEYS = st.lists(st.integers(0, 12).map(lambda n: b"%016d" % n), unique=True, max_size=6)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans(), KEYS, st.booleans()),
        max_size=30,
    )
)
def test_rows_are_stored_once_whatever_is_repeated(
    steps: list[tuple[int, int, bool, list[bytes], bool]],
) -> None:
    """Against a model: a set for each partition, and the highest attempt; restarts come at any place."""
    table = SinkTable()
    epoch = table.init("S", "T", "", 0, NOW).announced
    model: dict[int, set[bytes]] = {}
    stored: list[tuple[int, bytes]] = []
    attempts: dict[int, int] = {}
    for partition, attempt, new_epoch, keys, restarts in steps:
        if new_epoch:
            epoch = table.init("S", "T", "", 0, NOW).announced
            attempts.clear()
        if restarts:
            fresh = SinkTable()
            apply_states(fresh.sinks, encode_states(table.sinks.values()))
            for at, key in stored:
                fresh.restore(RowIdentity("S", "q", 0, at, key), "T")
            table = fresh
            attempts.clear()
        one = task(epoch, attempt, partition=partition)
        if attempt < attempts.get(partition, attempt):
            with pytest.raises(Fenced, match="attempt"):
                table.admit(one, 0, NOW)
            continue
        attempts[partition] = attempt
        new = append(table, one, keys)
        known = model.setdefault(partition, set())
        assert set(new) == set(keys) - known
        known.update(keys)
        stored += [(partition, key) for key in new]
    assert len(stored) == len(set(stored)) == table.rows
    assert commit(table, epoch, 0, table.rows) is not None
    assert table.rows == 0


def test_a_new_epoch_fences_the_one_before_it_for_appends_and_commits() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    assert append(table, task(1), [b"a" * 16]) == [b"a" * 16]
    assert table.init("S", "T", "", 0, NOW).announced == 2
    # It begins with its first request: an init does not say whose it is.
    assert append(table, task(1), [b"c" * 16]) == [b"c" * 16]
    assert append(table, task(2), [b"a" * 16]) == []
    with pytest.raises(Fenced, match="epoch 1 of sink S is over: epoch 2 has begun"):
        table.admit(task(1, attempt=9), 0, NOW)
    with pytest.raises(Fenced):
        commit(table, 1, 0, 1)
    assert append(table, task(2), [b"a" * 16, b"b" * 16]) == [b"b" * 16]


def test_a_committed_batch_takes_nothing_more_and_its_commit_can_be_repeated() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 16])
    assert commit(table, 1, 0, 1) is not None
    with pytest.raises(Fenced, match="batch 0 of sink S was committed"):
        table.admit(task(attempt=5), 0, NOW)
    assert commit(table, 1, 0, 1) is None
    assert append(table, task(batch=1), [b"a" * 16]) == [b"a" * 16]
    # A repeated commit of the batch before takes nothing away from the open one.
    assert commit(table, 1, 0, 1) is None
    assert table.rows == 1


@pytest.mark.parametrize("is_committed", [True, False])
def test_another_query_is_refused_and_disturbs_nobody(is_committed: bool) -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 16])
    if is_committed:
        commit(table, 1, 0, 1)
    after = task(batch=int(is_committed))
    epoch = table.init("S", "T", "", 0, NOW).announced
    for query, words in (
        ("other", "checkpoint of query q, give option sinkId a new name"),
        ("-", "a batch write"),
    ):
        with pytest.raises(WrongQuery, match=words):
            table.admit(task(epoch, query=query), 0, NOW)
        with pytest.raises(WrongQuery, match="ropewalk admin sink forget S"):
            commit(table, epoch, 0, 0, query)
    assert append(table, after, [b"b" * 16]) == [b"b" * 16]
    assert commit(table, 1, after.batch, 1 + (not is_committed)) is not None


def test_a_forgotten_sink_fences_what_is_on_its_way_and_takes_any_query() -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 16])
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
    assert append(table, task(epoch, query="other"), [b"a" * 16]) == [b"a" * 16]
    assert table.count == 1


@pytest.mark.parametrize(("rows", "says"), [(1, "not deterministic"), (3, "lost with a master")])
def test_a_commit_of_another_number_of_rows_is_refused(rows: int, says: str) -> None:
    table = SinkTable()
    table.init("S", "T", "", 0, NOW)
    append(table, task(), [b"a" * 16, b"b" * 16])
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
    append(table, task(), [b"a" * 16])
    commit(table, 1, 0, 1)
    table.init("S", "T", "", 100, NOW)
    table.restore(RowIdentity("S", "q", 0, 0, b"a" * 16), "T")
    table.restore(RowIdentity("S", "q", 1, 0, b"b" * 16), "T")
    table.restore(RowIdentity("other", "q", 1, 0, b"b" * 16), "T")
    assert table.rows == 1


def test_a_batch_over_the_limit_is_refused_and_loses_nothing() -> None:
    table = SinkTable(rows_max=2)
    append(table, task(), [b"a" * 16, b"b" * 16])
    assert append(table, task(), [b"a" * 16]) == []
    with pytest.raises(TooManyRows, match="maxOffsetsPerTrigger"):
        append(table, task(), [b"c" * 16])
    assert table.rows == 2


def test_idle_sinks_expire_and_forgotten_ones_stay_away() -> None:
    table = SinkTable()
    table.init("old", "T", "", 0, NOW)
    table.init("new", "T", "", 0, NOW + 10)
    table.init("S", "T", "", 70, NOW)
    append(table, task(), [b"a" * 16])
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
    prefix = row_prefix(sink_id, "0123abcd", batch, partition)
    text = b"TAGS\x01x\x02" + prefix + b"0123456789abcdef"
    assert key_of(text, prefix) == key_of(text + b"\x02", prefix) == b"0123456789abcdef"
    assert key_of(text[:-1], prefix) is None
    assert key_of(text, prefix.replace(b"RW_SINK", b"RW_KNIS")) is None
    value = text.decode().rpartition("\x01")[2]
    if check_sink_id(sink_id) is None:
        assert parse_identity(value) == (sink_id, "0123abcd", batch, partition, b"0123456789abcdef")
