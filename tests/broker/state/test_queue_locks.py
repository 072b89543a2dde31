"""Queue locks: the table by itself, and codes 41 and 42 over it."""

import json
from itertools import pairwise
from typing import Any

import pytest

from broker.state import queue_locks as locks
from broker.state.queue_locks import EXPIRY_MS, LockedQueue, LockRequest, LockTable
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import Client, InProcess
from tests.support.links import From

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def queues(*ids: int) -> tuple[LockedQueue, ...]:
    return tuple(LockedQueue("b", queue_id, "T") for queue_id in ids)


def wish(client_id: str, *ids: int, group: str = "g") -> LockRequest:
    return LockRequest(group, client_id, queues(*ids))


def expire(table: LockTable, now_ms: int) -> None:
    for _ in table.expire(now_ms):
        pass


@pytest.fixture
def table() -> LockTable:
    return LockTable()


def test_a_free_queue_is_locked_and_another_client_gets_the_rest(table: LockTable) -> None:
    assert table.lock(wish("a", 0, 1), 0) == list(queues(0, 1))
    assert table.lock(wish("b", 1, 2), 0) == list(queues(2))
    assert len(table) == 3


def test_an_owner_renews_its_lock(table: LockTable) -> None:
    table.lock(wish("a", 0), 0)
    assert table.lock(wish("a", 0), EXPIRY_MS) == list(queues(0))
    assert table.lock(wish("b", 0), EXPIRY_MS + 1) == []


def test_a_lock_lasts_a_minute_and_not_a_moment_longer(table: LockTable) -> None:
    table.lock(wish("a", 0), 0)
    assert table.lock(wish("b", 0), EXPIRY_MS) == []
    assert table.held("g", EXPIRY_MS)
    assert not table.held("g", EXPIRY_MS + 1)
    assert table.lock(wish("b", 0), EXPIRY_MS + 1) == list(queues(0))
    assert table.lock(wish("a", 0), EXPIRY_MS + 1) == []


def test_groups_do_not_disturb_each_other(table: LockTable) -> None:
    table.lock(wish("a", 0), 0)
    assert table.lock(wish("b", 0, group="other"), 0) == list(queues(0))
    assert not table.held("third", 0)


def test_unlocking_gives_up_ones_own_and_nobody_elses(table: LockTable) -> None:
    table.lock(wish("a", 0), 0)
    table.unlock(wish("b", 0))
    assert table.held("g", 0)
    table.unlock(wish("a", 0, 7))
    assert not table.held("g", 0)
    assert len(table) == 0
    table.unlock(wish("a", 0, group="never seen"))


def test_a_queue_named_twice_is_locked_once(table: LockTable) -> None:
    assert table.lock(wish("a", 0, 0), 0) == list(queues(0))
    assert len(table) == 1
    table.unlock(wish("a", 0, 0))
    assert len(table) == 0


def test_what_has_expired_is_forgotten(table: LockTable) -> None:
    table.lock(wish("a", 0), 0)
    table.lock(wish("a", 1), 10)
    expire(table, EXPIRY_MS + 5)
    assert len(table) == 1
    expire(table, EXPIRY_MS + 11)
    assert len(table) == 0


def test_an_address_that_has_as_many_locks_as_are_free_gets_no_more_of_them_and_others_do() -> None:
    table = LockTable(locks_max=10)
    greedy, honest = From("192.0.2.1"), From("192.0.2.2")
    assert table.lock(wish("a", *range(9)), 0, greedy) == list(queues(*range(5)))
    assert table.lock(wish("z", 0, 1, group="other"), 0, honest) == list(queues(0, 1))
    assert table.lock(wish("a", 7), 0, greedy) == []
    expire(table, 60_001)
    assert table.lock(wish("a", 7), 60_001, greedy) == list(queues(7))


def test_a_table_that_is_full_locks_only_what_it_knows() -> None:
    table = LockTable(locks_max=2)
    assert table.lock(wish("a", 0, 1, 2), 0) == list(queues(0, 1))
    assert table.lock(wish("z", 5, group="other"), 0) == []
    assert table.lock(wish("a", 0, 1, 2), 1) == list(queues(0, 1))


# -- the codes ------------------------------------------------------------------------------------------


def body(client_id: str = "c1", *ids: int, group: str = "g") -> bytes:
    value = {
        "clientId": client_id,
        "consumerGroup": group,
        "mqSet": [{"brokerName": "b", "queueId": queue_id, "topic": "T"} for queue_id in ids],
        "onlyThisBroker": False,
    }
    return json.dumps(value).encode()


def granted(client: Client, data: bytes) -> Any:
    answer = client.call(LOCK, body=data)
    assert answer.code == ResponseCode.SUCCESS
    return json.loads(answer.body)["lockOKMQSet"]


def test_41_answers_the_queues_that_the_client_now_holds(running: InProcess) -> None:
    one, two = running.connect(), running.connect()
    assert granted(one, body("a", 0, 1)) == [
        {"brokerName": "b", "queueId": 0, "topic": "T"},
        {"brokerName": "b", "queueId": 1, "topic": "T"},
    ]
    assert granted(two, body("b", 0, 1)) == []
    assert granted(two, body("b")) == []


def test_42_frees_them(running: InProcess) -> None:
    one, two = running.connect(), running.connect()
    granted(one, body("a", 0))
    answer = one.call(UNLOCK, body=body("a", 0))
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"")
    assert len(granted(two, body("b", 0))) == 1


def test_42_is_sent_oneway_in_a_rebalance_and_not_answered(running: InProcess) -> None:
    client = running.connect()
    granted(client, body("a", 0))
    client.ask(UNLOCK, body=body("a", 0), flag=2)
    assert client.answers() == []
    assert len(running.broker.context.locks) == 0


def test_locks_outlive_their_connection(running: InProcess) -> None:
    one, two = running.connect(), running.connect()
    granted(one, body("a", 0))
    one.disconnect()
    assert granted(two, body("b", 0)) == []
    assert len(granted(running.connect(), body("a", 0))) == 1
    running.clock.ms += EXPIRY_MS + 1
    assert len(granted(two, body("b", 0))) == 1


def test_expired_locks_do_not_stay_in_memory(running: InProcess) -> None:
    granted(running.connect(), body("a", 0))
    running.clock.ms += EXPIRY_MS + 1
    running.broker.expire_clients()
    assert len(running.broker.context.locks) == 0


def test_a_null_set_of_queues_is_an_empty_one(client: Client) -> None:
    assert granted(client, b'{"clientId":"c","consumerGroup":"g","mqSet":null}') == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"clientId":"c"}',
        b'{"consumerGroup":"g"}',
        b'{"clientId":"","consumerGroup":"g"}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":{}}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":[7]}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"T","queueId":-1,"brokerName":"b"}]}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"T","queueId":1}]}',
        b'{"clientId":"c","consumerGroup":"' + b"g" * 2000 + b'"}',
    ],
)
@pytest.mark.parametrize("code", [LOCK, UNLOCK])
def test_a_body_that_is_no_lock_request_is_answered_with_an_error(
    client: Client, code: int, data: bytes
) -> None:
    answer = client.call(code, body=data)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


def test_a_body_beyond_all_measure_is_not_even_read() -> None:
    with pytest.raises(ValueError, match="bytes"):
        LockRequest.decode(bytes(locks.BODY_SIZE_MAX + 1))


def test_locks_with_long_names_have_a_bound_of_bytes_and_one_address_leaves_half_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger locked queues with names of a thousand characters by the hundred thousand."""
    monkeypatch.setattr(locks, "LOCKS_SIZE_MAX", 1 << 20)
    table = LockTable()
    for n in range(1_000):
        name = f"{n:04}" * 250
        table.lock(LockRequest(name, name, (LockedQueue(name, 0, name),)), 0, From("10.0.0.9"))
    assert 400_000 < table.size < 700_000
    assert table.lock(wish("a", 0), 0, From("10.0.0.1")) == list(queues(0))
    table.lock(wish("b" * 1_000, 0), EXPIRY_MS + 1, From("10.0.0.1"))
    expire(table, 2 * EXPIRY_MS + 9)
    assert (len(table), table.size) == (0, 0)


def test_expired_locks_are_dropped_in_steps(table: LockTable) -> None:
    table.lock(wish("a", *range(1_000)), 0)
    left = [len(table) for _ in table.expire(EXPIRY_MS + 5)]
    assert len(left) == 10 and max(before - after for before, after in pairwise([1_000, *left])) <= 100
    assert len(table) == 0
