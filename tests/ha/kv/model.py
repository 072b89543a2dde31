"""`KvMachine` beside plain dictionaries: clients that write, write again, and lose answers, and a leader's clock."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ha.kv.machine import KvMachine
from ha.kv.region import Region
from ropewalk.format.kv.commands import (
    OpenSession,
    Outcome,
    Status,
    Write,
    decode_command,
    encode_command,
)
from ropewalk.format.kv.items import (
    AcquireLock,
    ComparePut,
    Count,
    Delete,
    DeleteRange,
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

KEYS = st.sampled_from([b"a", b"b", b"bb", b"c"])
VALUES = st.sampled_from([b"", b"1", b"2"])
OPERATIONS = st.one_of(
    st.builds(Put, KEYS, VALUES),
    st.builds(PutIfAbsent, KEYS, VALUES),
    st.builds(ComparePut, KEYS, st.none() | VALUES, st.none() | VALUES),
    st.builds(Delete, KEYS),
    st.builds(DeleteRange, KEYS, KEYS | st.just(b"")),
    st.builds(NextSequence, KEYS, st.integers(0, 3)),
)
OWNERS = st.sampled_from([b"x", b"y"])


class Model:
    """A region, said as briefly as possible. It knows no sessions: each write is made once."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.sequences: dict[bytes, int] = {}
        self.locks: dict[bytes, tuple[bytes, int, int]] = {}
        self.clock = 0

    def do(self, index: int, operation: Operation) -> Result:
        values = self.values
        match operation:
            case Put(key, value):
                values[key] = value
                return Count(1)
            case PutIfAbsent(key, value):
                if key in values:
                    return Swapped(0, values[key])
                values[key] = value
                return Swapped(1, None)
            case ComparePut(key, expect, new):
                if values.get(key) != expect:
                    return Swapped(0, values.get(key))
                if new is None:
                    values.pop(key, None)
                else:
                    values[key] = new
                return Swapped(1, None)
            case Delete(key):
                return Count(int(values.pop(key, None) is not None))
            case DeleteRange(start, end):
                gone = [key for key in values if key >= start and (not end or key < end)]
                for key in gone:
                    del values[key]
                return Count(len(gone))
            case NextSequence(key, step):
                first = self.sequences.get(key, 0)
                self.sequences[key] = first + step
                return Count(first)
            case AcquireLock(key, owner, lease):
                if key in self.locks and self.locks[key][2] > self.clock:
                    return self._told(0, key)
                self.locks[key] = owner, index, self.clock + lease
                return self._told(1, key)
            case RenewLock(key, owner, token, lease):
                held = self.locks.get(key, (b"", -1, 0))
                if held[:2] != (owner, token) or held[2] <= self.clock:
                    return self._told(0, key)
                self.locks[key] = owner, token, self.clock + lease
                return self._told(1, key)
            case ReleaseLock(key, owner, token):
                if self.locks.get(key, (b"", -1, 0))[:2] != (owner, token):
                    return self._told(0, key)
                del self.locks[key]
                return Lease(1, owner, token, 0)
        raise AssertionError(operation)

    def _told(self, granted: int, key: bytes) -> Lease:
        if key not in self.locks:
            return Lease(0, b"", -1, 0)
        owner, token, ends = self.locks[key]
        return Lease(granted, owner, token, max(ends - self.clock, 0))


class RegionWorld(RuleBasedStateMachine):
    """Two members that apply one log, and clients whose writes get into it once or more often."""

    def __init__(self) -> None:
        super().__init__()
        self.members = [KvMachine(Region(0), 1 << 20), KvMachine(Region(0), 1 << 20)]
        self.model = Model()
        self.index = -1
        self.stamp = 1000
        self.sessions: list[int] = []
        self.next_seq: dict[int, int] = {}
        self.sent: list[Write] = []
        self.outcomes: dict[tuple[int, int], Outcome] = {}
        self.tokens: list[int] = []
        self.answered: set[tuple[int, int]] = set()

    def entry(self, command: Write | OpenSession) -> Outcome:
        self.index += 1
        self.model.clock = max(self.model.clock, command.stamp_ms)
        read = decode_command(encode_command(command))
        told = [member.apply(self.index, read) for member in self.members]
        assert told[0] == told[1]
        return told[0]

    @initialize()
    def begin(self) -> None:
        self.open()

    @rule()
    def open(self) -> None:
        outcome = self.entry(OpenSession(self.stamp))
        assert outcome.results == (Count(self.index),)
        self.sessions.append(self.index)
        self.next_seq[self.index] = 1

    @rule(forward=st.integers(-300, 500))
    def time_goes_on(self, forward: int) -> None:
        """Another leader's clock may be behind."""
        self.stamp += forward

    def write(self, session: int, operations: tuple[Operation, ...]) -> Outcome:
        seq = self.next_seq[session]
        self.next_seq[session] = seq + 1
        open_seqs = [each for each in range(1, seq + 1) if (session, each) not in self.answered]
        write = Write(self.stamp, session, seq, min(open_seqs), 1, operations)
        self.sent.append(write)
        outcome = self.entry(write)
        expected = tuple(self.model.do(self.index, each) for each in operations)
        assert outcome == Outcome(Status.OK, expected), (write, outcome, expected)
        self.outcomes[session, seq] = outcome
        for result in outcome.results:
            if isinstance(result, Lease) and isinstance(operations[0], AcquireLock) and result.granted:
                assert all(result.token > token for token in self.tokens), (
                    "a token is given once, and they rise"
                )
                self.tokens.append(result.token)
        return outcome

    @rule(
        data=st.data(),
        operations=st.lists(OPERATIONS, min_size=1, max_size=4).map(tuple),
        answered=st.booleans(),
    )
    def write_values(self, data: st.DataObject, operations: tuple[Operation, ...], answered: bool) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        self.write(session, operations)
        if answered:
            self.answered.add((session, self.next_seq[session] - 1))

    @rule(data=st.data(), key=KEYS, owner=OWNERS, lease=st.integers(1, 400))
    def acquire(self, data: st.DataObject, key: bytes, owner: bytes, lease: int) -> None:
        self.write(data.draw(st.sampled_from(self.sessions)), (AcquireLock(key, owner, lease),))

    @rule(data=st.data(), key=KEYS, owner=OWNERS, lease=st.integers(1, 400), renew=st.booleans())
    def renew_or_release(
        self, data: st.DataObject, key: bytes, owner: bytes, lease: int, renew: bool
    ) -> None:
        token = data.draw(st.sampled_from([*self.tokens, 0]))
        operation = RenewLock(key, owner, token, lease) if renew else ReleaseLock(key, owner, token)
        self.write(data.draw(st.sampled_from(self.sessions)), (operation,))

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """The answer was lost, or the write was late: the same write gets into the log once more."""
        if not self.sent:
            return
        write = data.draw(st.sampled_from(self.sent))
        outcome = self.entry(write)
        known = self.outcomes[write.session, write.seq]
        if (write.session, write.seq) in self.answered:
            assert outcome in (known, Outcome(Status.STALE))
        else:
            assert outcome == known, (write, outcome, known)

    @invariant()
    def the_state_is_the_models(self) -> None:
        one, other = self.members
        assert dict(one.values) == self.model.values
        assert list(one.values) == sorted(self.model.values)
        assert {key: number for key, number in self.model.sequences.items() if number} == one.sequences
        assert {
            key: (each.owner, each.token, each.ends_ms) for key, each in one.locks.items()
        } == self.model.locks
        assert one.digest() == other.digest()


def check_model(examples: int) -> None:
    """Play histories, always the same ones. Raises `AssertionError` where machine and model differ."""
    run_state_machine_as_test(
        RegionWorld,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            derandomize=True,
            database=None,
            deadline=None,
        ),
    )
