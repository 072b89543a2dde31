"""Regions that are split beside one plain dictionary: clients that write and write again, and leaders' clocks."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ha.kv.machine import KvMachine
from ha.kv.region import REGIONS_MAX, Region
from ropewalk.format.kv.commands import (
    Command,
    OpenSession,
    Outcome,
    ReserveRegion,
    SplitRegion,
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
    """A store, said as briefly as possible. It knows no sessions and no regions: each write is made once."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.sequences: dict[bytes, int] = {}
        self.locks: dict[bytes, tuple[bytes, int, int]] = {}
        self.clock = 0
        """That of the region in which the next operation is done."""

    def do(self, number: int, operation: Operation) -> Result:
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
                self.locks[key] = owner, number, self.clock + lease
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


class Member:
    """A member's regions, by id."""

    def __init__(self) -> None:
        self.regions = {0: KvMachine(Region(0), 1 << 20)}

    def apply(self, region: int, index: int, command: Command) -> Outcome:
        machine = self.regions[region]
        outcome = machine.apply(index, command)
        self.regions.update({each.region.id: each for each in machine.born})
        machine.born.clear()
        return outcome

    def digests(self) -> dict[int, str]:
        return {id: each.digest() for id, each in sorted(self.regions.items())}


class RegionWorld(RuleBasedStateMachine):
    """Two members that apply the same logs, and clients whose writes get into them once or more often."""

    def __init__(self) -> None:
        super().__init__()
        self.members = [Member(), Member()]
        self.model = Model()
        self.logs: dict[int, list[Command]] = {0: []}
        self.stamp = 1000
        self.sessions: dict[int, list[int]] = {0: []}
        """Where each was opened."""
        self.next_seq: dict[int, int] = {}
        self.sent: list[Write] = []
        self.outcomes: dict[tuple[int, int], Outcome] = {}
        self.tokens: dict[bytes, list[int]] = {}
        self.answered: set[tuple[int, int]] = set()

    @property
    def regions(self) -> dict[int, KvMachine]:
        return self.members[0].regions

    def region_of(self, key: bytes) -> int:
        (found,) = [id for id, each in self.regions.items() if each.region.has(key)]
        return found

    def entry(self, region: int, command: Command) -> Outcome:
        log = self.logs[region]
        log.append(command)
        self.model.clock = max(self.regions[region].clock_ms, command.stamp_ms)
        read = decode_command(encode_command(command))
        told = [member.apply(region, len(log) - 1, read) for member in self.members]
        assert told[0] == told[1]
        return told[0]

    @initialize()
    def begin(self) -> None:
        self.open(0)

    def open(self, region: int) -> None:
        (opened,) = self.entry(region, OpenSession(self.stamp)).results
        assert isinstance(opened, Count) and opened.number not in self.next_seq, "an id is given once"
        self.sessions[region].append(opened.number)
        self.next_seq[opened.number] = 1

    @rule(data=st.data())
    def open_another(self, data: st.DataObject) -> None:
        self.open(data.draw(st.sampled_from(sorted(self.regions))))

    @rule(forward=st.integers(-300, 500))
    def time_goes_on(self, forward: int) -> None:
        """Another leader's clock may be behind."""
        self.stamp += forward

    @rule(data=st.data(), key=st.sampled_from([b"a", b"aa", b"b", b"bb", b"c", b"d"]))
    def cut(self, data: st.DataObject, key: bytes) -> None:
        self.split(data, key)

    def split(self, data: st.DataObject, key: bytes) -> None:
        """Cut a region at a key; the answer may get lost, and then it is asked for again."""
        parent = self.region_of(key)
        before = self.regions[parent].region
        reserve = ReserveRegion(self.stamp, parent, before.epoch)
        reserved = self.entry(0, reserve)
        if before.start == key or reserved.status is not Status.OK:
            assert before.start == key or len(self.regions) == REGIONS_MAX
            return
        assert self.entry(0, reserve) == reserved
        (id,) = reserved.results
        assert isinstance(id, Count) and id.number not in self.regions
        cut = SplitRegion(self.stamp, before.epoch, id.number, key)
        assert self.entry(parent, cut).status is Status.OK
        self.logs[id.number], self.sessions[id.number] = [], []
        if data.draw(st.booleans()):
            assert self.entry(parent, cut) == Outcome(Status.WRONG_EPOCH)
        lower, upper = self.regions[parent].region, self.regions[id.number].region
        assert (lower.start, lower.end, upper.start, upper.end) == (before.start, key, key, before.end)
        assert lower.epoch == upper.epoch == before.epoch + 1

    def write(self, operations: tuple[Operation, ...], data: st.DataObject) -> Outcome:
        region = self.region_of(_key_of(operations[0]))
        machine = self.regions[region]
        kept = [each for each in operations if machine.region.has(_key_of(each))]
        operations = tuple(_clipped(each, machine.region) for each in kept)
        if not self.sessions[region]:
            self.open(region)
        session = data.draw(st.sampled_from(self.sessions[region]))
        seq = self.next_seq[session]
        self.next_seq[session] = seq + 1
        open_seqs = [each for each in range(1, seq + 1) if (session, each) not in self.answered]
        write = Write(self.stamp, session, seq, min(open_seqs), machine.region.epoch, operations)
        self.sent.append(write)
        if data.draw(st.integers(0, 5)) == 0:
            old = Write(self.stamp, session, seq, min(open_seqs), machine.region.epoch - 1, operations)
            assert self.entry(region, old) == Outcome(Status.WRONG_EPOCH)
        outcome = self.entry(region, write)
        number = machine.origin + machine.applied
        expected = tuple(self.model.do(number, each) for each in operations)
        assert outcome == Outcome(Status.OK, expected), (write, outcome, expected)
        self.outcomes[session, seq] = outcome
        for result in outcome.results:
            if isinstance(result, Lease) and isinstance(operations[0], AcquireLock) and result.granted:
                tokens = self.tokens.setdefault(operations[0].key, [])
                assert all(result.token > token for token in tokens), (
                    f"a token is given once, and they rise: {result.token} after {tokens}"
                )
                tokens.append(result.token)
        if data.draw(st.booleans()):
            self.answered.add((session, seq))
        return outcome

    @rule(data=st.data(), operations=st.lists(OPERATIONS, min_size=1, max_size=4).map(tuple))
    def write_values(self, data: st.DataObject, operations: tuple[Operation, ...]) -> None:
        self.write(operations, data)

    @rule(data=st.data(), key=KEYS, owner=OWNERS, lease=st.integers(1, 400))
    def acquire(self, data: st.DataObject, key: bytes, owner: bytes, lease: int) -> None:
        self.write((AcquireLock(key, owner, lease),), data)

    @rule(data=st.data(), key=KEYS, owner=OWNERS, lease=st.integers(1, 400), renew=st.booleans())
    def renew_or_release(
        self, data: st.DataObject, key: bytes, owner: bytes, lease: int, renew: bool
    ) -> None:
        token = data.draw(st.sampled_from([*self.tokens.get(key, ()), 0]))
        operation = RenewLock(key, owner, token, lease) if renew else ReleaseLock(key, owner, token)
        self.write((operation,), data)

    @rule(data=st.data(), key=KEYS)
    def take_a_lock_before_and_after_a_cut(self, data: st.DataObject, key: bytes) -> None:
        self.write((AcquireLock(key, b"x", 1),), data)
        self.split(data, key)
        self.stamp += 500
        self.write((AcquireLock(key, b"y", 1),), data)

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """The answer was lost, or the write was late: it gets into a log once more, of the region that has its key."""
        if not self.sent:
            return
        write = data.draw(st.sampled_from(self.sent))
        region = self.region_of(_key_of(write.operations[0]))
        epoch = self.regions[region].region.epoch
        again = Write(self.stamp, write.session, write.seq, write.lowest, epoch, write.operations)
        outcome = self.entry(region, again)
        known = self.outcomes[write.session, write.seq]
        if (write.session, write.seq) in self.answered:
            assert outcome in (known, Outcome(Status.STALE))
        else:
            assert outcome == known, (write, outcome, known)

    @rule()
    def start_again(self) -> None:
        """A member begins with nothing and applies the logs: a region begins at the entry that cut it."""
        fresh = Member()
        missing = {id: list(enumerate(log)) for id, log in self.logs.items()}
        while any(missing.values()):
            for id in [each for each in missing if each in fresh.regions]:
                for index, command in missing.pop(id):
                    fresh.apply(id, index, command)
            missing = {id: log for id, log in missing.items() if log or id not in fresh.regions}
        assert fresh.digests() == self.members[1].digests()
        self.members[0] = fresh

    @invariant()
    def the_regions_are_the_models_map(self) -> None:
        one, other = self.members
        cuts = sorted((each.region for each in self.regions.values()), key=lambda region: region.start)
        assert cuts[0].start == cuts[-1].end == b""
        assert [each.end for each in cuts[:-1]] == [each.start for each in cuts[1:]]
        values: dict[bytes, bytes] = {}
        sequences: dict[bytes, int] = {}
        locks: dict[bytes, tuple[bytes, int, int]] = {}
        for cut in cuts:
            machine = one.regions[cut.id]
            assert list(machine.values) == sorted(machine.values)
            assert all(map(cut.has, [*machine.values, *machine.sequences, *machine.locks]))
            values |= machine.values
            sequences |= machine.sequences
            locks |= {key: (each.owner, each.token, each.ends_ms) for key, each in machine.locks.items()}
        assert values == self.model.values
        assert {key: number for key, number in self.model.sequences.items() if number} == sequences
        assert locks == self.model.locks
        assert one.digests() == other.digests()


def _key_of(operation: Operation) -> bytes:
    return operation.start if isinstance(operation, DeleteRange) else operation.key


def _clipped(operation: Operation, region: Region) -> Operation:
    """Return the part of a deletion that a region has, as a client asks for it."""
    if isinstance(operation, DeleteRange) and region.end and not b"" < operation.end <= region.end:
        return DeleteRange(operation.start, region.end)
    return operation


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
