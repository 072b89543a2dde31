"""`KvMachine`, rule by rule."""

from __future__ import annotations

from ha.kv.machine import ITEM_BYTES, KvMachine
from ha.kv.region import Region
from ha.kv.sessions import WINDOW
from ropewalk.format.kv.commands import OpenSession, OpenTerm, Outcome, Status, Write
from ropewalk.format.kv.items import (
    RANGE_KEYS_MAX,
    RESULTS_SIZE_MAX,
    AcquireLock,
    ComparePut,
    Count,
    Delete,
    DeleteRange,
    Guard,
    Lease,
    NextSequence,
    Operation,
    Put,
    PutIfAbsent,
    ReleaseLock,
    RenewLock,
    Result,
    Swapped,
)


class Client:
    """A session of a machine; each write is an entry of its log."""

    def __init__(self, machine: KvMachine | None = None, memory_max: int = 1 << 20, origin: str = "") -> None:
        self.machine = machine or KvMachine(Region(0), memory_max)
        self.id = self.machine.applied + 1
        self.machine.apply(self.id, OpenSession(self.machine.clock_ms, origin))
        self.seq = 0

    def entry(self, write: Write) -> Outcome:
        return self.machine.apply(self.machine.applied + 1, write)

    def write(
        self, *operations: Operation, stamp: int = 0, seq: int = 0, lowest: int = 0, epoch: int = 1
    ) -> Outcome:
        if not seq:
            self.seq = seq = self.seq + 1
        return self.entry(Write(stamp, self.id, seq, lowest or seq, epoch, operations))

    def result(self, operation: Operation, stamp: int = 0) -> Result:
        outcome = self.write(operation, stamp=stamp)
        assert outcome.status is Status.OK
        return outcome.results[0]

    def lease(self, operation: Operation, stamp: int) -> Lease:
        found = self.result(operation, stamp)
        assert isinstance(found, Lease)
        return found


def test_values_are_put_compared_and_deleted() -> None:
    client = Client()
    assert client.result(Put(b"a", b"1")) == Count(1)
    assert client.result(PutIfAbsent(b"a", b"2")) == Swapped(0, b"1")
    assert client.result(PutIfAbsent(b"b", b"2")) == Swapped(1, None)
    assert client.result(ComparePut(b"a", b"0", b"3")) == Swapped(0, b"1")
    assert client.result(ComparePut(b"a", b"1", b"3")) == Swapped(1, None)
    assert client.result(ComparePut(b"b", b"2", None)) == Swapped(1, None)
    assert client.result(ComparePut(b"b", None, None)) == Swapped(1, None)
    assert client.result(Delete(b"b")) == Count(0)
    assert client.result(Delete(b"a")) == Count(1)
    assert client.machine.scan(b"", b"", 10) == []


def test_a_range_ends_before_its_end_and_an_empty_end_is_behind_every_key() -> None:
    client = Client()
    client.write(*(Put(key, key) for key in (b"a", b"b", b"b\0", b"c", b"\xff\xff")))
    assert [key for key, _ in client.machine.scan(b"b", b"c", 10)] == [b"b", b"b\0"]
    assert [key for key, _ in client.machine.scan(b"b", b"", 10)] == [b"b", b"b\0", b"c", b"\xff\xff"]
    assert [key for key, _ in client.machine.scan(b"", b"", 2)] == [b"a", b"b"]
    assert client.machine.scan(b"c", b"b", 10) == []
    assert client.result(DeleteRange(b"b", b"c")) == Count(2)
    assert client.result(DeleteRange(b"", b"")) == Count(3)


def test_a_long_range_is_deleted_from_its_front_so_many_keys_at_a_time() -> None:
    client = Client(memory_max=1 << 30)
    for start in range(0, RANGE_KEYS_MAX + 5, 500):
        client.write(*(Put(b"%06d" % number, b"") for number in range(start, start + 500)))
    assert client.result(DeleteRange(b"", b"")) == Count(RANGE_KEYS_MAX)
    assert client.machine.scan(b"", b"", 1) == [(b"%06d" % RANGE_KEYS_MAX, b"")]
    assert client.result(DeleteRange(b"", b"")) == Count(500)


def test_a_sequence_hands_every_number_out_once_and_step_0_only_looks() -> None:
    client = Client()
    assert client.result(NextSequence(b"s", 0)) == Count(0)
    assert client.machine.sequences == {}
    assert client.result(NextSequence(b"s", 5)) == Count(0)
    assert client.result(NextSequence(b"s", 1)) == Count(5)
    assert client.result(NextSequence(b"s", 0)) == Count(6)
    assert client.result(NextSequence(b"s", 2**63 - 1)) == Count(6)
    assert client.result(NextSequence(b"s", 1)) == Count(2**63 - 1)


def test_a_write_that_stands_in_the_log_twice_is_applied_once_and_answered_alike() -> None:
    client = Client()
    first = client.write(NextSequence(b"s", 1), seq=1)
    assert client.write(NextSequence(b"s", 1), seq=1) == first
    assert client.write(NextSequence(b"s", 1), seq=2, lowest=1).results == (Count(1),)
    assert client.write(NextSequence(b"s", 1), seq=1, lowest=1) == first


def test_a_write_below_the_lowest_unanswered_one_is_stale_whatever_it_was() -> None:
    client = Client()
    client.write(Put(b"a", b"1"), seq=1)
    client.write(Put(b"a", b"2"), seq=2, lowest=2)
    assert client.write(Put(b"a", b"late"), seq=1, lowest=1).status is Status.STALE
    assert client.machine.get(b"a") == b"2"


def test_a_write_too_far_ahead_of_the_lowest_unanswered_one_is_refused() -> None:
    client = Client()
    assert client.write(Put(b"a", b"1"), seq=WINDOW + 1, lowest=1).status is Status.STALE
    assert client.write(Put(b"a", b"1"), seq=WINDOW, lowest=1).status is Status.OK


def test_outcomes_are_released_by_a_lowest_unanswered_one_that_jumps_far_ahead() -> None:
    client = Client()
    empty = client.machine.sessions.bytes
    for seq in (1, 2, WINDOW):
        client.write(NextSequence(b"s", 1), seq=seq, lowest=1)
    client.write(NextSequence(b"s", 1), seq=10**12, lowest=10**12)
    client.write(Put(b"a", b"1"), seq=1, lowest=1)
    assert client.machine.sessions.bytes - empty == 200, "one outcome is kept, with one result"


def test_the_session_that_was_idle_for_the_longest_goes_first() -> None:
    machine = KvMachine(Region(0), 1 << 20, sessions_max=2)
    first, second = Client(machine), Client(machine)
    first.write(Put(b"a", b"1"))
    third = Client(machine)
    assert second.write(Put(b"a", b"2")).status is Status.SESSION_EXPIRED
    assert first.write(Put(b"a", b"3")).status is third.write(Put(b"b", b"4")).status is Status.OK


def test_sessions_that_a_stranger_opens_drop_none_of_those_that_write() -> None:
    """A stranger opens sessions by the ten thousand; clients of other addresses and of its own go on."""
    machine = KvMachine(Region(0), 1 << 20, sessions_max=100)
    near, far = Client(machine, origin="10.0.0.9"), Client(machine, origin="10.0.0.1")
    for client in (near, far):
        client.write(Put(b"a", b"1"))
    for _ in range(1_000):
        Client(machine, origin="10.0.0.9")
    young = Client(machine, origin="10.0.0.1")
    for number in range(70):
        Client(machine, origin="10.0.0.9" if number % 2 else f"10.0.1.{number}")
    assert len(machine.sessions) == 100
    for client in (near, far, young):
        assert client.write(Put(b"a", b"1")).status is Status.OK


def test_of_sessions_that_wrote_the_origin_with_most_loses_the_one_that_was_idle_for_the_longest() -> None:
    """A stranger opens sessions and writes by each of them, so that they look like those of clients."""
    machine = KvMachine(Region(0), 1 << 20, sessions_max=100)
    clients = [Client(machine, origin="10.0.0.1") for _ in range(40)]
    for client in clients:
        client.write(Put(b"a", b"1"))
    last = None
    for _ in range(500):
        last = Client(machine, origin="10.0.0.9")
        last.write(Delete(b"b"))
    assert all(client.write(Put(b"a", b"2")).status is Status.OK for client in clients)
    assert last is not None and last.write(Delete(b"b")).status is Status.OK


def test_another_epoch_does_nothing_and_its_number_may_be_sent_again() -> None:
    client = Client()
    assert client.write(Put(b"a", b"1"), seq=1, epoch=2).status is Status.WRONG_EPOCH
    assert client.machine.get(b"a") is None
    assert client.write(Put(b"a", b"1"), seq=1).status is Status.OK


def test_what_would_pass_the_memory_bound_is_refused_whole_and_deletes_go_on() -> None:
    client = Client(memory_max=4 * ITEM_BYTES)
    assert client.write(Put(b"a", b"1")).status is Status.OK
    assert client.write(Put(b"b", b"2"), Put(b"c", bytes(4 * ITEM_BYTES))).status is Status.FULL
    assert client.machine.scan(b"", b"", 9) == [(b"a", b"1")]
    assert client.write(Put(b"a", b"2")).status is Status.OK, "what does not grow is taken"
    assert client.write(Delete(b"a")).status is Status.OK


def test_a_write_that_was_refused_stays_refused_when_it_comes_again() -> None:
    client = Client(memory_max=4 * ITEM_BYTES)
    client.write(Put(b"a", b"1"))
    big = Put(b"b", bytes(3 * ITEM_BYTES))
    assert client.write(big, seq=2).status is Status.FULL
    client.write(Delete(b"a"), seq=3, lowest=2)
    assert client.write(big, seq=2, lowest=2).status is Status.FULL, (
        "its client was told that nothing was stored"
    )


def test_when_all_is_deleted_only_sessions_use_memory() -> None:
    client = Client()
    lock = client.lease(AcquireLock(b"l", b"me", 1000), 0)
    client.write(Put(b"a", b"22"), Put(b"a", b"1"), Put(b"b", b""), ComparePut(b"b", b"", b"333"))
    assert client.machine.used_bytes > client.machine.sessions.bytes
    client.write(ReleaseLock(b"l", b"me", lock.token))
    client.write(DeleteRange(b"", b""))
    assert client.machine.used_bytes == client.machine.sessions.bytes


def test_results_that_no_answer_holds_are_refused_before_anything_is_done() -> None:
    client = Client(memory_max=64 << 20)
    value = bytes(1 << 20)
    count = RESULTS_SIZE_MAX // len(value) + 1
    for number in range(count):
        client.write(Put(b"k%d" % number, value))
    writes = [PutIfAbsent(b"k%d" % number, b"x") for number in range(count)]
    assert client.write(Put(b"new", b"1"), *writes).status is Status.TOO_LARGE
    assert client.machine.get(b"new") is None


def test_a_lock_is_held_until_its_lease_is_over_by_the_leaders_stamps() -> None:
    client = Client()
    mine = client.lease(AcquireLock(b"job", b"me", 100), 1000)
    assert mine.granted and mine.left_ms == 100
    taken = client.lease(AcquireLock(b"job", b"you", 100), 1099)
    assert (taken.granted, taken.owner, taken.token, taken.left_ms) == (0, b"me", mine.token, 1)
    yours = client.lease(AcquireLock(b"job", b"you", 100), 1100)
    assert yours.granted and yours.token > mine.token


def test_a_stamp_that_falls_moves_no_clock_back() -> None:
    client = Client()
    client.lease(AcquireLock(b"job", b"me", 100), 1000)
    client.write(Put(b"a", b"1"), stamp=1100)
    assert client.lease(AcquireLock(b"job", b"you", 100), 500).granted
    assert client.machine.clock_ms == 1100


def test_a_lease_is_renewed_by_its_owner_and_token_while_it_lasts() -> None:
    client = Client()
    mine = client.lease(AcquireLock(b"job", b"me", 100), 1000)
    assert not client.lease(RenewLock(b"job", b"you", mine.token, 100), 1050).granted
    assert not client.lease(RenewLock(b"job", b"me", mine.token - 1, 100), 1050).granted
    renewed = client.lease(RenewLock(b"job", b"me", mine.token, 100), 1050)
    assert renewed.granted and renewed.token == mine.token and renewed.left_ms == 100
    assert not client.lease(RenewLock(b"job", b"me", mine.token, 100), 1150).granted, "it was over"


def test_a_lock_that_was_given_back_is_free_and_its_next_token_is_higher() -> None:
    client = Client()
    mine = client.lease(AcquireLock(b"job", b"me", 100), 1000)
    assert not client.lease(ReleaseLock(b"job", b"you", mine.token), 1000).granted
    assert client.lease(ReleaseLock(b"job", b"me", mine.token), 1000).granted
    again = client.lease(AcquireLock(b"job", b"me", 100), 1000)
    assert again.granted and again.token > mine.token


def test_a_guarded_write_is_refused_once_another_one_was_granted_the_lock() -> None:
    client = Client()
    mine = client.lease(AcquireLock(b"job", b"me", 100), 1000)
    assert client.write(Guard(b"job", mine.token), Put(b"a", b"mine"), stamp=1200).status is Status.OK, (
        "its lease is over, but nobody was granted the lock since"
    )
    yours = client.lease(AcquireLock(b"job", b"you", 100), 1200)
    assert client.write(Put(b"a", b"late"), Guard(b"job", mine.token)).status is Status.FENCED
    assert client.machine.get(b"a") == b"mine"
    assert client.write(Guard(b"job", yours.token), Put(b"a", b"yours")).status is Status.OK
    client.write(ReleaseLock(b"job", b"you", yours.token))
    assert client.write(Guard(b"job", yours.token), Put(b"a", b"?")).status is Status.FENCED


def test_machines_that_applied_the_same_entries_have_the_same_digest_and_others_have_not() -> None:
    one, other = Client(), Client()
    for client in (one, other):
        client.machine.apply(client.machine.applied + 1, OpenTerm(5, "127.0.0.1:1"))
        client.write(Put(b"a", b"1"))
        client.lease(AcquireLock(b"job", b"me", 100), 1000)
    assert one.machine.digest() == other.machine.digest()
    one.write(Put(b"a", b"2"))
    assert one.machine.digest() != other.machine.digest()
