"""Runs of ends: that the fast way and the readable way decide, store and answer the same."""

import json
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from store.append import Message
from tests.broker.harness import Client, InProcess, request
from tests.broker.send_pairs import Pair, comparable, counted, facts, records_of
from tests.broker.transactions.transacting import COMMIT, HALF, OPS, ROLLBACK, UNKNOWN, Producer
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
END = 37
_halves = st.lists(
    st.tuples(
        st.sampled_from([b"", b"x", b"y" * 200]),
        st.integers(0, 3),
        st.sampled_from(
            [
                {},
                {},
                {"TAGS": "A"},
                {"DELAY": "3"},
                {"DELAY": "0"},
                {"TIMER_DELAY_SEC": "3600"},
                {"TIMER_DELIVER_MS": str(START_MS - 5)},
                {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"},
                {"WAIT": "false"},
            ]
        ),
    ),
    min_size=1,
    max_size=8,
)
_ends = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from([COMMIT, COMMIT, COMMIT, ROLLBACK, UNKNOWN, 4]),
        st.sampled_from(
            [
                {},
                {},
                {},
                {},
                {"producerGroup": "other"},
                {"tranStateTableOffset": 99_999},
                {"tranStateTableOffset": -1},
                {"commitLogOffset": 7},
                {"fromTransactionCheck": True},
                {"commitOrRollback": "x"},
                {"msgId": None},
            ]
        ),
        st.sampled_from([0, 0, 2]),
        st.sampled_from(["end", "end", "end", "send"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(halves=_halves, ends=_ends)
def test_ends_of_one_read_have_the_outcome_of_ends_one_by_one(
    pair: Pair,
    halves: list[tuple[bytes, int, dict[str, str]]],
    ends: list[tuple[int, int, dict[str, object], int, str]],
) -> None:
    seen = []
    for running in (pair.fast, pair.plain):
        producer = Producer(running)
        headers = [
            producer.half(body, queue_id=queue_id, UNIQ_KEY=f"KEY{n}", **properties)
            for n, (body, queue_id, properties) in enumerate(halves)
        ]
        before, mark = counted(running), running.broker.store.log.end_offset
        stream = b"".join(
            request(
                END,
                {**headers[which % len(headers)], "commitOrRollback": decision, **changes},
                opaque=n,
                flag=flag,
            )
            if kind == "end"
            else producer.half_frame(b"between", n)
            for n, (which, decision, changes, flag, kind) in enumerate(ends)
        )
        producer.client.feed(stream)
        running.settle()
        workers = running.broker.reader._workers
        running.until(lambda workers=workers: not any(worker.pending for worker in workers))  # type: ignore[misc]
        answers = sorted((comparable(running, c, True) for c in producer.client.answers()), key=json.dumps)
        new = [facts(r, True) for r in records_of(running) if r.offset >= mark]
        ops = [(r.body, r.properties) for r in running.stored(OPS, last=40) if r.offset >= mark]
        transactions = running.broker.transactions
        open_now = sorted(transactions.halves.by_offset)
        counts = transactions.counts
        told = dict(counts.committed), dict(counts.rolled_back), transactions.halves.counts
        seen.append((answers, new, ops, open_now, told, counted(running) - before))
    assert seen[0] == seen[1]


def test_the_messages_of_one_read_are_committed_by_one_append(running: InProcess) -> None:
    producer = Producer(running)
    headers = [producer.half(b"%d" % n, queue_id=n % 4, UNIQ_KEY=f"K{n}") for n in range(20)]
    store = running.broker.store
    puts: list[int] = []
    put = store.put

    def counting(batch: Sequence[Message], born_host: bytes) -> list[tuple[int, int]]:
        puts.append(len(batch))
        return put(batch, born_host)

    store.put = counting
    producer.client.feed(b"".join(request(END, {**header, "commitOrRollback": COMMIT}) for header in headers))
    running.settle()
    assert puts == [20, 1], "the messages, and the operation record"
    assert [m.body for m in running.stored("T", 1)] == [b"1", b"5", b"9", b"13", b"17"]
    assert len(producer.client.answers()) == 20


def test_a_half_that_two_requests_of_a_read_commit_is_stored_once(client: Client) -> None:
    running = client.owner
    producer = Producer(running)
    header = producer.half(b"once")
    end = {**header, "commitOrRollback": COMMIT}
    producer.client.feed(request(END, end, opaque=1) + request(END, end, opaque=2))
    running.settle()
    assert [(c.opaque, c.code) for c in producer.client.answers()] == [(1, 0), (2, 1)]
    assert [m.body for m in running.stored("T")] == [b"once"] and len(running.stored(HALF)) == 1
