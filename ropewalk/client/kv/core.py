"""`KvCore`: the conversations of a client of the key-value store.

A write goes to the region's leader. An attempt that got no answer is sent again, to whichever member leads then, under
the same session and number: the store applies it once, and answers every attempt alike. So a write that returns was
done once. `OutcomeUnknown` is left for a write of which time ran out before any answer came, or whose session the store
has dropped in between.

A read may go to any member, and sees every write that was answered before it began.

Between two attempts a client pauses, twice as long each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ropewalk.client.admin.cluster import ClusterSteps, document_in
from ropewalk.client.admin.results import BrokerMember
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import command_of
from ropewalk.client.core.steps import Pause, Steps, ask
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import (
    CorruptRecord,
    LocalProtocolError,
    OutcomeUnknown,
    Rejected,
    RemoteProtocolError,
    RopewalkError,
    TryLater,
    error_for,
)
from ropewalk.format.headers import KvHeader, KvWriteHeader
from ropewalk.format.kv.commands import Outcome, Status, decode_found, decode_outcome
from ropewalk.format.kv.items import (
    RANGE_KEYS_MAX,
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
    encode_items,
    encode_values,
    key_refusal,
    refusal_of,
)
from ropewalk.format.remoting import Command

__all__ = ["Fenced", "KvCore", "KvLock", "KvStatus"]

KV_TIMEOUT_S: Final = 10.0
_ATTEMPT_S: Final = 2.0
"""How long an attempt waits: a member that was stopped answers nobody, and another one may lead by then."""
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_PAGE: Final = 1000
_NO_KV: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.ILLEGAL_OPERATION)

Text = str | bytes
T = TypeVar("T")


class Fenced(Rejected):
    """A refusal of a write whose guarding lock was granted to another owner, or given back; nothing was stored."""


@dataclass(frozen=True, slots=True)
class KvLock:
    """A lock that was granted."""

    name: bytes
    owner: bytes
    token: int
    """The fencing token: a later grant of this lock has a higher one. Whatever the lock protects should refuse lower
    ones than it has seen."""
    lease: float
    """Seconds that the lease lasts from the grant or a renewal on."""


@dataclass(frozen=True, slots=True)
class KvStatus:
    """A region as one member sees it."""

    member: BrokerMember
    values: Mapping[str, Any]
    """`role`, `term`, `leader`, `end`, `committed`, `applied`, `keys`, `usedBytes`, ..."""


@dataclass(slots=True)
class _Cut:
    """The region and its members, as far as they are known."""

    region: int
    epoch: int
    leader: str
    members: tuple[str, ...]


class KvCore(ClusterSteps):
    """A client of the key-value store, with at most one session."""

    def __init__(
        self,
        name_servers: str,
        *,
        clock: Callable[[], float],
        timeout_s: float,
        broker: str | None,
        start: int,
    ) -> None:
        """`broker` names the group that has the store, where there are several; `start` spreads clients on members."""
        super().__init__(name_servers, clock=clock, timeout_s=min(timeout_s, _ATTEMPT_S))
        self._clock = clock
        self._broker = broker
        self._whole_s = timeout_s
        self._cut: _Cut | None = None
        self._failures = 0
        """How many attempts failed since the last that was served: after a round of all members, all are looked up."""
        self._reader = start
        """Which member is read from."""
        self._session = -1
        self._last_seq = 0
        self._unanswered: set[int] = set()
        self._locks = 0

    def renew(self) -> None:
        """Forget the session: in a child process it is the parent's, who goes on numbering its writes."""
        self._session = -1
        self._unanswered = set()

    # -- reads -------------------------------------------------------------------------------------------

    def get(self, key: Text, *, unsafe: bool = False) -> Steps[bytes | None]:
        """Return the value of a key, the newest there is; None if it has none.

        unsafe: read what a member has, however old, without asking the leader.
        """
        values = yield from self._read(RequestCode.ROPEWALK_KV_GET, [checked_key(key)], unsafe=unsafe)
        return values[0]

    def multi_get(self, keys: Iterable[Text], *, unsafe: bool = False) -> Steps[dict[Text, bytes | None]]:
        """Return the values of keys, as they were together at one moment; None for those that have none."""
        named = list(keys)
        if not named:
            return {}
        values = yield from self._read(
            RequestCode.ROPEWALK_KV_MULTI_GET, [checked_key(each) for each in named], unsafe=unsafe
        )
        return dict(zip(named, values, strict=True))

    def scan(
        self, start: Text = b"", end: Text = b"", *, limit: int | None = None, unsafe: bool = False
    ) -> Steps[list[tuple[bytes, bytes]]]:
        """Return keys and values from `start` to before `end`, in order; an empty end is behind every key.

        Up to a thousand pairs are of one moment; what is longer is read in pages, each newer than the one before.
        """
        found: list[tuple[bytes, bytes]] = []
        begin, last = _bytes("start", start), _bytes("end", end)
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(limit - len(found), _PAGE)
            values = yield from self._read(
                RequestCode.ROPEWALK_KV_SCAN, [begin, last], unsafe=unsafe, limit=size
            )
            page = [
                (key, value)
                for key, value in zip(values[::2], values[1::2], strict=True)
                if key is not None and value is not None
            ]
            found += page
            if not page:
                break
            begin = page[-1][0] + b"\0"
        return found

    def _read(
        self, code: int, values: list[bytes], *, unsafe: bool, limit: int = _PAGE
    ) -> Steps[list[bytes | None]]:
        trial = _Trial(self._clock, self._whole_s)
        while True:
            with trial.attempt():
                cut = yield from self._known_cut()
                address = cut.members[self._reader % len(cut.members)]
                header = KvHeader(cut.region, cut.epoch, unsafe, limit)
                body = encode_values(values)
                try:
                    answer = yield from ask(address, command_of(code, header, body), trial.seconds)
                    if answer.code != ResponseCode.SUCCESS:
                        raise error_for(answer.code, answer.remark)
                except RopewalkError:
                    self._reader += 1
                    self._failures += 1
                    raise
                self._failures = 0
                status, found = _decoded(decode_found, answer)
                if status is Status.OK:
                    return found
                self._refuse(status)
            yield from trial.pause()

    # -- writes ------------------------------------------------------------------------------------------

    def put(self, key: Text, value: Text, *, guard: KvLock | None = None) -> Steps[None]:
        """Store a value. Raises `Fenced` if the lock `guard` was granted to another owner, or given back, meanwhile."""
        yield from self._write(put_of(key, value), guard=guard)

    def put_if_absent(self, key: Text, value: Text) -> Steps[bytes | None]:
        """Store a value where there is none; return None then, else the value that is there."""
        (result,) = yield from self._write(put_if_absent_of(key, value))
        return swapped(result).value

    def compare_and_put(self, key: Text, expect: Text | None, value: Text | None) -> Steps[bool]:
        """Store a value if the key has the expected one, and return whether it did; None stands for no value."""
        (result,) = yield from self._write(compare_and_put_of(key, expect, value))
        return bool(swapped(result).done)

    def delete(self, key: Text) -> Steps[bool]:
        """Delete a key, and return whether it was there."""
        return (yield from self._count(delete_of(key))) > 0

    def delete_range(self, start: Text, end: Text) -> Steps[int]:
        """Delete the keys from `start` to before `end`, and return how many; an empty end is behind every key.

        Up to ten thousand keys go at one moment, what is more in turn.
        """
        operation = DeleteRange(_bytes("start", start), _bytes("end", end))
        count = 0
        while True:
            deleted = yield from self._count(operation)
            count += deleted
            if deleted < RANGE_KEYS_MAX:
                return count

    def batch(
        self,
        *,
        put: Mapping[Text, Text] | None = None,
        delete: Iterable[Text] = (),
        guard: KvLock | None = None,
    ) -> Steps[None]:
        """Store and delete several keys, all of them or none; `guard` as for `put`."""
        puts = [Put(checked_key(key), _bytes("value", value)) for key, value in (put or {}).items()]
        yield from self._write(*puts, *(Delete(checked_key(key)) for key in delete), guard=guard)

    def sequence(self, name: Text, count: int = 1) -> Steps[range]:
        """Return the next numbers of a sequence; every number is handed out once."""
        first = yield from self._count(sequence_of(name, count))
        return range(first, first + count)

    def _count(self, operation: Operation) -> Steps[int]:
        (result,) = yield from self._write(operation)
        return counted(result)

    def read_each(self, keys: Sequence[bytes], *, unsafe: bool = False) -> Steps[list[bytes | None]]:
        """Return the values of keys that were asked for apart, in one request if that will do."""
        try:
            values = yield from self.multi_get(dict.fromkeys(keys), unsafe=unsafe)
        except Rejected:  # together they are too large for an answer
            values = {}
            for key in dict.fromkeys(keys):
                values[key] = yield from self.get(key, unsafe=unsafe)
        return [values[key] for key in keys]

    def write_each(self, operations: Sequence[Operation]) -> Steps[list[Result | RopewalkError]]:
        """Do operations that were asked for apart, in one request if that will do; return the outcome of each.

        A refusal is of those alone that it is due to.
        """
        try:
            return list((yield from self._write(*operations)))
        except Rejected as exc:
            if len(operations) == 1:
                return [exc]
        outcomes: list[Result | RopewalkError] = []
        for each in operations:
            outcomes += yield from self._outcome_of(each)
        return outcomes

    def _outcome_of(self, operation: Operation) -> Steps[list[Result | RopewalkError]]:
        try:
            return list((yield from self._write(operation)))
        except RopewalkError as exc:
            return [exc]

    # -- locks -------------------------------------------------------------------------------------------

    def acquire(self, name: Text, *, lease: float = 10.0, wait: float = 0.0) -> Steps[KvLock | None]:
        """Take a lock for `lease` seconds; None if another owner has it for the next `wait` seconds.

        The lease ends by the store's clock, whether its holder knows or sleeps: only the token, compared by what the
        lock protects, keeps a late one out. Nothing renews it by itself.
        """
        lock_name, until = checked_key(name), self._clock() + wait
        yield from self._open_session()
        self._locks += 1
        owner = b"%d:%d" % (self._session, self._locks)
        pause_s = _PAUSE_FIRST_S
        while True:
            found = yield from self._lease(AcquireLock(lock_name, owner, _milliseconds(lease)))
            if found.granted:
                return KvLock(lock_name, owner, found.token, lease)
            left = until - self._clock()
            if left <= 0:
                return None
            yield Pause(min(left, pause_s, max(found.left_ms / 1000, 0.001)))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def renew_lock(self, lock: KvLock) -> Steps[bool]:
        """Have a lock's lease begin anew; False if it was over: the lock is lost, whoever has it now."""
        found = yield from self._lease(
            RenewLock(lock.name, lock.owner, lock.token, _milliseconds(lock.lease))
        )
        return bool(found.granted)

    def release(self, lock: KvLock) -> Steps[bool]:
        """Give a lock back; False if another owner was granted it meanwhile."""
        found = yield from self._lease(ReleaseLock(lock.name, lock.owner, lock.token))
        return bool(found.granted)

    def _lease(self, operation: Operation) -> Steps[Lease]:
        (result,) = yield from self._write(operation)
        assert isinstance(result, Lease)
        return result

    # -- a write -----------------------------------------------------------------------------------------

    def _write(self, *operations: Operation, guard: KvLock | None = None) -> Steps[tuple[Result, ...]]:
        if guard is not None:
            operations = (Guard(guard.name, guard.token), *operations)
        if (why := refusal_of(operations)) is not None:
            raise LocalProtocolError(why)
        body = encode_items(operations)
        trial = _Trial(self._clock, self._whole_s)
        while True:
            yield from self._open_session(trial)
            session = self._session
            self._last_seq += 1
            seq = self._last_seq
            self._unanswered.add(seq)
            try:
                results = yield from self._attempts(trial, session, seq, body)
            finally:
                if session == self._session:
                    self._unanswered.discard(seq)
            if results is not None:
                return results
            if session == self._session:
                self._session = -1  # the store has dropped it, and nothing of this write was done

    def _attempts(
        self, trial: _Trial, session: int, seq: int, body: bytes
    ) -> Steps[tuple[Result, ...] | None]:
        """Send a write until its outcome is known; None if it has to be sent in another session."""
        while True:
            with trial.attempt():
                cut = yield from self._known_cut()
                lowest = min(self._unanswered) if session == self._session else seq
                header = KvWriteHeader(cut.region, cut.epoch, session=session, seq=seq, lowest=lowest)
                command = command_of(RequestCode.ROPEWALK_KV_WRITE, header, body)
                outcome = yield from self._at_leader(cut, command, trial)
                if outcome.status is Status.OK:
                    return outcome.results
                if outcome.status is Status.SESSION_EXPIRED and not trial.in_doubt:
                    return None
                if outcome.status in (Status.SESSION_EXPIRED, Status.STALE) and trial.in_doubt:
                    trial.over = True
                    raise OutcomeUnknown("the session of this write has ended before its outcome was known")
                self._refuse(outcome.status)
            yield from trial.pause()

    def _open_session(self, trial: _Trial | None = None) -> Steps[None]:
        trial = trial or _Trial(self._clock, self._whole_s)
        while self._session < 0:
            with trial.attempt():
                cut = yield from self._known_cut()
                command = command_of(RequestCode.ROPEWALK_KV_SESSION, KvHeader(cut.region, cut.epoch))
                outcome = yield from self._at_leader(cut, command, trial)
                (result,) = outcome.results
                assert isinstance(result, Count)
                self._have_session(result.number)
                trial.in_doubt = False  # of a session nobody can be in doubt: an unused one is harmless
            if self._session < 0:
                yield from trial.pause()

    def _have_session(self, number: int) -> None:
        if self._session < 0:  # else another task was faster
            self._session, self._last_seq, self._unanswered = number, 0, set()

    def _at_leader(self, cut: _Cut, command: Command, trial: _Trial) -> Steps[Outcome]:
        """Ask the leader as far as it is known; an answer that names another one is an error that tells so."""
        address = cut.leader or cut.members[0]
        try:
            answer = yield from ask(address, command, trial.seconds)
        except (Unreachable, OutcomeUnknown):
            self._next_leader(cut, address, "")
            raise
        if answer.code == ResponseCode.SYSTEM_ERROR:  # appended by a leader that leads no more
            self._next_leader(cut, address, answer.ext.get("leader", ""))
            error = OutcomeUnknown(answer.remark or "the outcome is unknown")
            error.code, error.remark = answer.code, answer.remark
            raise error
        if answer.code != ResponseCode.SUCCESS:
            if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                self._next_leader(cut, address, answer.ext.get("leader", ""))
            raise error_for(answer.code, answer.remark)
        cut.leader, self._failures = address, 0
        return _decoded(decode_outcome, answer)

    def _next_leader(self, cut: _Cut, asked: str, hint: str) -> None:
        self._failures += 1
        if hint and hint != asked:
            cut.leader = hint
        else:
            at = cut.members.index(asked) if asked in cut.members else -1
            cut.leader = cut.members[(at + 1) % len(cut.members)]

    def _refuse(self, status: Status) -> None:
        """Raise the error of a request that was refused."""
        match status:
            case Status.WRONG_EPOCH:
                self._cut = None
                raise TryLater("the regions of the key-value store were cut anew")
            case Status.FULL:
                error: RopewalkError = Rejected("the region is full (kvMemoryMax): nothing was stored")
            case Status.TOO_LARGE:
                error = Rejected("the answer would be too large: ask for less at once")
            case Status.FENCED:
                error = Fenced(
                    "somebody else was granted the lock since, or it was given back: nothing was stored"
                )
            case _:
                error = TryLater(
                    f"the write was refused ({status.name}): too many writes of this client are under way"
                )
        raise error

    # -- where the store is ------------------------------------------------------------------------------

    def _known_cut(self) -> Steps[_Cut]:
        cut = self._cut
        if cut is None:
            cut = self._cut = yield from self._find()
        elif self._failures >= len(cut.members):
            self._failures = 0
            with suppress(RopewalkError):  # else what was known serves again as soon as a member does
                cut = self._cut = yield from self._find()
        return cut

    def _find(self) -> Steps[_Cut]:
        """Ask name servers for brokers, and those for the region. Raises `Rejected` where there is no store."""
        self.forget_skipped()
        members = yield from self.selected(broker=self._broker)
        answers = yield from self.query_all(members, RequestCode.ROPEWALK_KV_REGIONS, none_for=_NO_KV)
        serving = {member.address for member, _answer in answers} | {
            *self.skipped
        }  # who is away may come back
        groups = {member.broker_name for member, _answer in answers}
        if not answers:
            where = f"broker {self._broker}" if self._broker else "no broker"
            raise Rejected(
                f"there is no key-value store ({where} has one): the members of a DLedger group serve it, each with "
                "ropewalkKvRegions = 1"
            )
        if len(groups) > 1:
            raise Rejected(
                f"several groups have a key-value store, name one by broker=: {', '.join(sorted(groups))}"
            )
        told = [region for _member, answer in answers for region in document_in(answer).get("regions") or ()]
        newest = max(told, key=lambda each: (int(each["epoch"]), bool(each["leader"])))
        group = sorted({each.address for each in members if each.broker_name in groups} & serving)
        return _Cut(int(newest["id"]), int(newest["epoch"]), str(newest["leader"]), tuple(group))

    def status(self) -> Steps[tuple[KvStatus, ...]]:
        """Return the region as each member that answers sees it."""
        members = yield from self.selected(broker=self._broker)
        answers = yield from self.query_all(members, RequestCode.ROPEWALK_KV_STATUS, none_for=_NO_KV)
        return tuple(
            KvStatus(member, region)
            for member, answer in answers
            for region in document_in(answer).get("regions") or ()
        )


class _Trial:
    """The attempts of one call: the time that is left, the pauses, and whether one of them may have been applied."""

    def __init__(self, clock: Callable[[], float], whole_s: float) -> None:
        self.in_doubt = False
        self.over = False
        """Whether no other attempt may be made."""
        self._clock = clock
        self._until = clock() + whole_s
        self._pause_s = _PAUSE_FIRST_S
        self._failure: RopewalkError = OutcomeUnknown("time was up before the first attempt")

    @property
    def seconds(self) -> float:
        """Return how long the next attempt may take."""
        return max(min(self._until - self._clock(), _ATTEMPT_S), 0.001)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Note the failure of an attempt; raise it if another attempt would end alike, or time is up."""
        try:
            yield
        except (Rejected, RemoteProtocolError):
            raise
        except RopewalkError as exc:
            self.in_doubt = self.in_doubt or isinstance(exc, OutcomeUnknown)
            self._failure = exc
            if self.over or not self._may_go_on(exc):
                raise

    def _may_go_on(self, exc: RopewalkError) -> bool:
        transient = Unreachable | OutcomeUnknown | TryLater
        is_elsewhere = exc.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)
        return isinstance(exc, transient) or is_elsewhere

    def pause(self) -> Steps[None]:
        """Pause before the next attempt. Raises the last failure, or `OutcomeUnknown`, when time is up."""
        if self._clock() + self._pause_s >= self._until:
            if self.in_doubt and not isinstance(self._failure, OutcomeUnknown):
                raise OutcomeUnknown(f"an attempt got no answer, and no other one did: {self._failure}")
            raise self._failure
        yield Pause(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


def _decoded(decode: Callable[[bytes], T], answer: Command) -> T:
    try:
        return decode(answer.body)
    except CorruptRecord as exc:
        raise RemoteProtocolError(str(exc)) from exc


def put_of(key: Text, value: Text) -> Put:
    """Return the operation of `put`."""
    return Put(checked_key(key), _bytes("value", value))


def put_if_absent_of(key: Text, value: Text) -> PutIfAbsent:
    """Return the operation of `put_if_absent`."""
    return PutIfAbsent(checked_key(key), _bytes("value", value))


def compare_and_put_of(key: Text, expect: Text | None, value: Text | None) -> ComparePut:
    """Return the operation of `compare_and_put`."""
    return ComparePut(
        checked_key(key),
        None if expect is None else _bytes("expect", expect),
        None if value is None else _bytes("value", value),
    )


def delete_of(key: Text) -> Delete:
    """Return the operation of `delete`."""
    return Delete(checked_key(key))


def sequence_of(name: Text, count: int) -> NextSequence:
    """Return the operation of `sequence`."""
    return NextSequence(checked_key(name), count)


def swapped(result: Result) -> Swapped:
    """Return the result of `put_if_absent` or `compare_and_put` with its type."""
    assert isinstance(result, Swapped)
    return result


def counted(result: Result) -> int:
    """Return the number of a result that counts."""
    assert isinstance(result, Count)
    return result.number


def _bytes(name: str, value: Text) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"{name} is text or bytes, and not {value!r}")
    return value


def checked_key(value: Text) -> bytes:
    """Return a key as bytes. Raises `LocalProtocolError` for one that the store does not take."""
    key = _bytes("key", value)
    if (why := key_refusal(key)) is not None:
        raise LocalProtocolError(why)
    return key


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)
