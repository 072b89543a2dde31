"""`KvCore`: the conversations of a client of the key-value store.

A write goes to the leader of the region that has its keys. An attempt that got no answer is sent again, to whichever
member leads then, under the same session and number: the store applies it once, and answers every attempt alike. So a
write that returns was done once. `OutcomeUnknown` is left for a write of which time ran out before any answer came, or
whose session the store has dropped in between.

A read may go to any member, and sees every write that was answered before it began.

A request that was routed by an older cut is refused with the regions as they are, and goes on by those: a write under
its session and number still, for the region that was cut off knows all sessions. The refusal also tells that no earlier
attempt was applied, and that none will be. Reads and deletions of ranges are done region by region; a write that is
done as a whole has all its keys in one region.

Between two attempts a client pauses, twice as long each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ropewalk.client.admin.cluster import ClusterSteps, document_in
from ropewalk.client.admin.results import BrokerMember
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import command_of
from ropewalk.client.core.steps import Pause, Steps, ask
from ropewalk.client.kv.operations import (
    Text,
    as_bytes,
    checked_key,
    compare_and_put_of,
    counted,
    delete_of,
    elsewhere,
    keys_of,
    milliseconds,
    put_if_absent_of,
    put_of,
    sequence_of,
    swapped,
)
from ropewalk.client.kv.routes import Route, Routes
from ropewalk.client.kv.trial import ATTEMPT_S, PAUSE_FIRST_S, PAUSE_MAX_S, Trial
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
from ropewalk.format import fastjson
from ropewalk.format.headers import KvHeader, KvWriteHeader
from ropewalk.format.kv.commands import Outcome, Status, decode_found, decode_outcome
from ropewalk.format.kv.items import (
    RANGE_KEYS_MAX,
    AcquireLock,
    Count,
    Delete,
    DeleteRange,
    Guard,
    Lease,
    Operation,
    Put,
    ReleaseLock,
    RenewLock,
    Result,
    encode_items,
    encode_values,
    refusal_of,
)
from ropewalk.format.remoting import Command

__all__ = ["Fenced", "KvCore", "KvLock", "KvStatus"]

KV_TIMEOUT_S: Final = 10.0
_PAGE: Final = 1000
_NO_KV: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.ILLEGAL_OPERATION)

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


class _Session:
    """A session in the region that it was opened in, and in those that were cut off it since."""

    __slots__ = ("_last_seq", "id", "unanswered")

    def __init__(self, id: int) -> None:
        self.id = id
        self.unanswered: set[int] = set()
        """The numbers of writes that are under way."""
        self._last_seq = 0

    def next_seq(self) -> int:
        """Return the number of the next write, which is under way from now on."""
        self._last_seq += 1
        self.unanswered.add(self._last_seq)
        return self._last_seq


class _Moved(TryLater):
    """A refusal of a request that was routed by another cut than the member knows."""

    def __init__(self, is_final: bool) -> None:
        """`is_final`: the request's epoch is over, so no earlier attempt was applied, and none will be."""
        super().__init__("the regions of the key-value store were cut anew")
        self.is_final = is_final


class KvCore(ClusterSteps):
    """A client of the key-value store, with a session in each region that it writes to."""

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
        super().__init__(name_servers, clock=clock, timeout_s=min(timeout_s, ATTEMPT_S))
        self._clock = clock
        self._broker = broker
        self._whole_s = timeout_s
        self._routes: Routes | None = None
        self._failures = 0
        """How many attempts failed since the last that was served: after a round of all members, all are looked up."""
        self._reader = start
        """Which member is read from."""
        self._sessions: dict[int, _Session] = {}
        """By region."""
        self._locks = 0

    def renew(self) -> None:
        """Forget the sessions: in a child process they are the parent's, who goes on numbering its writes."""
        self._sessions = {}

    # -- reads -------------------------------------------------------------------------------------------

    def get(self, key: Text, *, unsafe: bool = False) -> Steps[bytes | None]:
        """Return the value of a key, the newest there is; None if it has none.

        unsafe: read what a member has, however old, without asking the leader.
        """
        name = checked_key(key)
        _route, values = yield from self._read(
            RequestCode.ROPEWALK_KV_GET, name, lambda route: [name], unsafe=unsafe
        )
        return values[0]

    def multi_get(self, keys: Iterable[Text], *, unsafe: bool = False) -> Steps[dict[Text, bytes | None]]:
        """Return the values of keys; None for those that have none.

        Those of one region are as they were together at one moment.
        """
        named = list(keys)
        wanted = list(dict.fromkeys(checked_key(each) for each in named))
        found: dict[bytes, bytes | None] = {}
        trial = Trial(self._clock, self._whole_s)
        while missing := [key for key in wanted if key not in found]:

            def those_of(route: Route, missing: list[bytes] = missing) -> list[bytes]:
                return [key for key in missing if route.has(key)]

            code = RequestCode.ROPEWALK_KV_MULTI_GET
            route, values = yield from self._read(code, missing[0], those_of, unsafe=unsafe, trial=trial)
            found.update(zip(those_of(route), values, strict=True))
        return {each: found[checked_key(each)] for each in named}

    def scan(
        self, start: Text = b"", end: Text = b"", *, limit: int | None = None, unsafe: bool = False
    ) -> Steps[list[tuple[bytes, bytes]]]:
        """Return keys and values from `start` to before `end`, in order; an empty end is behind every key.

        Up to a thousand pairs of one region are of one moment; what is longer is read in pages, each newer than the one
        before.
        """
        found: list[tuple[bytes, bytes]] = []
        begin, last = as_bytes("start", start), as_bytes("end", end)
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(limit - len(found), _PAGE)

            def part(route: Route, begin: bytes = begin) -> list[bytes]:
                return [begin, route.clip(last)]

            code = RequestCode.ROPEWALK_KV_SCAN
            route, values = yield from self._read(code, begin, part, unsafe=unsafe, limit=size)
            page = [
                (key, value)
                for key, value in zip(values[::2], values[1::2], strict=True)
                if key is not None and value is not None
            ]
            found += page
            if page:
                begin = page[-1][0] + b"\0"
            elif route.reaches(last):
                break
            else:
                begin = route.end
        return found

    def _read(
        self,
        code: int,
        key: bytes,
        make: Callable[[Route], list[bytes]],
        *,
        unsafe: bool,
        limit: int = _PAGE,
        trial: Trial | None = None,
    ) -> Steps[tuple[Route, list[bytes | None]]]:
        """Read from the region that has `key` what `make` says of that region; return the region, too."""
        trial = trial or Trial(self._clock, self._whole_s)
        while True:
            with trial.attempt():
                routes = yield from self._known_routes()
                route = routes.of(key)
                address = routes.members[self._reader % len(routes.members)]
                header = KvHeader(route.id, route.epoch, unsafe, limit)
                body = encode_values(make(route))
                try:
                    answer = yield from ask(address, command_of(code, header, body), trial.seconds)
                    if answer.code != ResponseCode.SUCCESS:
                        raise error_for(answer.code, answer.remark)
                except RopewalkError:
                    self._reader += 1
                    self._failures += 1
                    raise
                status, found = _decoded(decode_found, answer)
                if status is Status.WRONG_EPOCH:
                    moved = self._moved(answer, routes, route.id, route.epoch)
                    if not moved.is_final:  # that member has not applied what this client knows of
                        self._reader += 1
                        self._failures += 1
                    raise moved
                self._failures = 0
                if status is Status.OK:
                    return route, found
                self._refuse(status)
            yield from trial.pause()

    # -- writes ------------------------------------------------------------------------------------------

    def put(self, key: Text, value: Text, *, guard: KvLock | None = None) -> Steps[None]:
        """Store a value. Raises `Fenced` if the lock `guard` was granted to another owner, or given back, meanwhile.

        The lock's name and the key have to be in one region, else it raises `Rejected`.
        """
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

        Up to ten thousand keys of one region go at one moment, what is more in turn.
        """
        begin, last = as_bytes("start", start), as_bytes("end", end)
        count = 0
        while True:

            def part(route: Route, begin: bytes = begin) -> tuple[Operation, ...]:
                return (DeleteRange(begin, route.clip(last)),)

            route, (result,) = yield from self._write_at(begin, part)
            assert isinstance(result, Count)
            count += result.number
            if result.number >= RANGE_KEYS_MAX:
                continue
            if route.reaches(last):
                return count
            begin = route.end

    def batch(
        self,
        *,
        put: Mapping[Text, Text] | None = None,
        delete: Iterable[Text] = (),
        guard: KvLock | None = None,
    ) -> Steps[None]:
        """Store and delete several keys, all of them or none; `guard` as for `put`.

        Raises `Rejected` if they are not all in one region, and has done nothing then.
        """
        puts = [Put(checked_key(key), as_bytes("value", value)) for key, value in (put or {}).items()]
        yield from self._write(*puts, *(Delete(checked_key(key)) for key in delete), guard=guard)

    def sequence(self, name: Text, count: int = 1) -> Steps[range]:
        """Return the next numbers of a sequence; every number is handed out once."""
        first = yield from self._count(sequence_of(name, count))
        return range(first, first + count)

    def _count(self, operation: Operation) -> Steps[int]:
        (result,) = yield from self._write(operation)
        return counted(result)

    def read_each(self, keys: Sequence[bytes], *, unsafe: bool = False) -> Steps[list[bytes | None]]:
        """Return the values of keys that were asked for apart, in one request to each region if that will do."""
        try:
            values = yield from self.multi_get(dict.fromkeys(keys), unsafe=unsafe)
        except Rejected:  # together they are too large for an answer
            values = {}
            for key in dict.fromkeys(keys):
                values[key] = yield from self.get(key, unsafe=unsafe)
        return [values[key] for key in keys]

    def apart(self, keys: Sequence[bytes]) -> list[list[int]]:
        """Return the places of keys, region by region as far as those are known: requests for each may go at once."""
        if self._routes is None:
            return [list(range(len(keys)))]
        groups: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            groups.setdefault(self._routes.of(key).id, []).append(at)
        return list(groups.values())

    def write_each(self, operations: Sequence[Operation]) -> Steps[list[Result | RopewalkError]]:
        """Do operations that were asked for apart, in one request to each region; return the outcome of each.

        A refusal is of those alone that it is due to.
        """
        outcomes: dict[int, Result | RopewalkError] = {}
        while left := [at for at in range(len(operations)) if at not in outcomes]:
            tried: dict[int, None] = {}

            def part(
                route: Route, left: list[int] = left, tried: dict[int, None] = tried
            ) -> tuple[Operation, ...]:
                here = [at for at in left if route.has(keys_of(operations[at])[0])]
                tried.update(dict.fromkeys(here))
                return tuple(operations[at] for at in here)

            try:
                route, results = yield from self._write_at(keys_of(operations[left[0]])[0], part)
                here = (at for at in left if route.has(keys_of(operations[at])[0]))
                outcomes.update(zip(here, results, strict=True))
            except Rejected as exc:
                if len(tried) < 2:
                    outcomes[left[0]] = exc
                else:
                    for at in tried:
                        outcomes[at] = yield from self._outcome_of(operations[at])
            except RopewalkError as exc:  # before any attempt it is true of all
                outcomes.update(dict.fromkeys(tried or left, exc))
        return [outcomes[at] for at in range(len(operations))]

    def _outcome_of(self, operation: Operation) -> Steps[Result | RopewalkError]:
        try:
            (result,) = yield from self._write(operation)
        except RopewalkError as exc:
            return exc
        return result

    # -- locks -------------------------------------------------------------------------------------------

    def acquire(self, name: Text, *, lease: float = 10.0, wait: float = 0.0) -> Steps[KvLock | None]:
        """Take a lock for `lease` seconds; None if another owner has it for the next `wait` seconds.

        The lease ends by the store's clock, whether its holder knows or sleeps: only the token, compared by what the
        lock protects, keeps a late one out. Nothing renews it by itself.
        """
        lock_name, until = checked_key(name), self._clock() + wait
        session = yield from self._open_session(lock_name, Trial(self._clock, self._whole_s))
        self._locks += 1
        owner = b"%d:%d" % (session.id, self._locks)
        pause_s = PAUSE_FIRST_S
        while True:
            found = yield from self._lease(AcquireLock(lock_name, owner, milliseconds(lease)))
            if found.granted:
                return KvLock(lock_name, owner, found.token, lease)
            left = until - self._clock()
            if left <= 0:
                return None
            yield Pause(min(left, pause_s, max(found.left_ms / 1000, 0.001)))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def renew_lock(self, lock: KvLock) -> Steps[bool]:
        """Have a lock's lease begin anew; False if it was over: the lock is lost, whoever has it now."""
        found = yield from self._lease(RenewLock(lock.name, lock.owner, lock.token, milliseconds(lock.lease)))
        return bool(found.granted)

    def release(self, lock: KvLock) -> Steps[bool]:
        """Give a lock back; False if another owner was granted it meanwhile."""
        found = yield from self._lease(ReleaseLock(lock.name, lock.owner, lock.token))
        return bool(found.granted)

    def _lease(self, operation: Operation) -> Steps[Lease]:
        (result,) = yield from self._write(operation)
        assert isinstance(result, Lease)
        return result

    # -- splits ------------------------------------------------------------------------------------------

    def split(self, key: Text) -> Steps[int]:
        """Cut the region that has a key in two at that key, and return the id of the region that begins there.

        Where one begins there already, nothing is changed.
        """
        name = checked_key(key)
        trial = Trial(self._clock, self._whole_s)
        self._routes = None
        while True:
            with trial.attempt():
                routes = yield from self._known_routes()
                route = routes.of(name)
                if route.start == name:
                    return route.id
                header = KvHeader(route.id, route.epoch)
                command = command_of(RequestCode.ROPEWALK_KV_SPLIT, header, encode_values([name]))
                outcome = yield from self._at_leader(routes, route.id, route.epoch, command, trial)
                if outcome.status is Status.OK:
                    self._routes = None
                    (result,) = outcome.results
                    assert isinstance(result, Count)
                    return result.number
                self._refuse(outcome.status)
            yield from trial.pause()

    # -- a write -----------------------------------------------------------------------------------------

    def _write(self, *operations: Operation, guard: KvLock | None = None) -> Steps[tuple[Result, ...]]:
        if guard is not None:
            operations = (Guard(guard.name, guard.token), *operations)
        if (why := refusal_of(operations)) is not None:
            raise LocalProtocolError(why)
        _route, results = yield from self._write_at(keys_of(operations[0])[0], lambda route: operations)
        return results

    def _write_at(
        self, key: bytes, make: Callable[[Route], tuple[Operation, ...]]
    ) -> Steps[tuple[Route, tuple[Result, ...]]]:
        """Do in the region that has `key` what `make` says of that region; return the region, too."""
        trial = Trial(self._clock, self._whole_s)
        while True:
            session = yield from self._open_session(key, trial)
            seq = session.next_seq()
            try:
                done = yield from self._attempts(trial, session, seq, key, make)
            finally:
                session.unanswered.discard(seq)
            if done is not None:
                return done
            # The store has dropped it, or it is no session of this region; nothing of this write was done.
            self._sessions = {id: each for id, each in self._sessions.items() if each is not session}

    def _attempts(
        self,
        trial: Trial,
        session: _Session,
        seq: int,
        key: bytes,
        make: Callable[[Route], tuple[Operation, ...]],
    ) -> Steps[tuple[Route, tuple[Result, ...]] | None]:
        """Send a write until its outcome is known; None if it has to be sent in another session."""
        sent: tuple[Route, bytes] | None = None
        while True:
            with trial.attempt():
                routes = yield from self._known_routes()
                route = routes.of(key)
                operations = make(route)
                apart, body = elsewhere(route, operations), encode_items(operations)
                if sent is None or not trial.in_doubt or (apart is None and body == sent[1]):
                    if apart is not None:
                        raise Rejected(
                            f"{key!r} and {apart!r} are in different regions of the key-value store, and a write is "
                            "done in one: nothing was stored"
                        )
                    sent = route, body
                # Else keys were parted by a cut: the region that had all of them tells what became of the write.
                asked, body = sent
                header = KvWriteHeader(
                    asked.id, asked.epoch, session=session.id, seq=seq, lowest=min(session.unanswered)
                )
                command = command_of(RequestCode.ROPEWALK_KV_WRITE, header, body)
                try:
                    outcome = yield from self._at_leader(routes, asked.id, asked.epoch, command, trial)
                except _Moved as exc:
                    trial.in_doubt = trial.in_doubt and not exc.is_final
                    raise
                if outcome.status is Status.OK:
                    return asked, outcome.results
                if outcome.status is Status.SESSION_EXPIRED and not trial.in_doubt:
                    return None
                if outcome.status in (Status.SESSION_EXPIRED, Status.STALE) and trial.in_doubt:
                    trial.over = True
                    raise OutcomeUnknown("the session of this write has ended before its outcome was known")
                self._refuse(outcome.status)
            yield from trial.pause()

    def _open_session(self, key: bytes, trial: Trial) -> Steps[_Session]:
        """Return the session of the region that has a key."""
        while (session := self._session_of(key)) is None:
            with trial.attempt():
                routes = yield from self._known_routes()
                route = routes.of(key)
                if route.id not in self._sessions:
                    command = command_of(RequestCode.ROPEWALK_KV_SESSION, KvHeader(route.id, route.epoch))
                    outcome = yield from self._at_leader(routes, route.id, route.epoch, command, trial)
                    (result,) = outcome.results
                    assert isinstance(result, Count)
                    trial.in_doubt = False  # of a session nobody can be in doubt: an unused one is harmless
                    self._sessions.setdefault(route.id, _Session(result.number))  # unless a task was faster
            if self._session_of(key) is None:
                yield from trial.pause()
        return session

    def _session_of(self, key: bytes) -> _Session | None:
        return None if self._routes is None else self._sessions.get(self._routes.of(key).id)

    def _at_leader(
        self, routes: Routes, region: int, epoch: int, command: Command, trial: Trial
    ) -> Steps[Outcome]:
        """Ask the leader as far as it is known; an answer that names another one is an error that tells so."""
        route = routes.get(region)
        address = route.leader or routes.members[0]
        try:
            answer = yield from ask(address, command, trial.seconds)
        except (Unreachable, OutcomeUnknown):
            self._next_leader(routes, route, address, "")
            raise
        if answer.code == ResponseCode.SYSTEM_ERROR:  # appended by a leader that leads no more
            self._next_leader(routes, route, address, answer.ext.get("leader", ""))
            error = OutcomeUnknown(answer.remark or "the outcome is unknown")
            error.code, error.remark = answer.code, answer.remark
            raise error
        if answer.code != ResponseCode.SUCCESS:
            if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                self._next_leader(routes, route, address, answer.ext.get("leader", ""))
            raise error_for(answer.code, answer.remark)
        outcome = _decoded(decode_outcome, answer)
        if outcome.status is Status.WRONG_EPOCH:
            moved = self._moved(answer, routes, region, epoch)
            if not moved.is_final:
                self._next_leader(routes, route, address, "")
            raise moved
        route.leader, self._failures = address, 0
        return outcome

    def _next_leader(self, routes: Routes, route: Route, asked: str, hint: str) -> None:
        self._failures += 1
        if hint and hint != asked:
            route.leader = hint
        else:
            members = routes.members
            at = members.index(asked) if asked in members else -1
            route.leader = members[(at + 1) % len(members)]

    def _moved(self, answer: Command, routes: Routes, region: int, epoch: int) -> _Moved:
        """Learn from a refusal where the keys are; return the error to raise."""
        told = _regions_in(answer)
        routes.learn(told)
        if not told:
            self._routes = None
        return _Moved(any(int(each["id"]) == region and int(each["epoch"]) > epoch for each in told))

    def _refuse(self, status: Status) -> None:
        """Raise the error of a request that was refused."""
        match status:
            case Status.TOO_MANY:
                error: RopewalkError = Rejected("there are as many regions as a store may have")
            case Status.FULL:
                error = Rejected("the region is full (kvMemoryMax): nothing was stored")
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

    def _known_routes(self) -> Steps[Routes]:
        routes = self._routes
        if routes is None:
            routes = self._routes = yield from self._find()
        elif self._failures >= len(routes.members):
            self._failures = 0
            with suppress(RopewalkError):  # else what was known serves again as soon as a member does
                routes = self._routes = yield from self._find()
        return routes

    def _find(self) -> Steps[Routes]:
        """Ask name servers for brokers, and those for the regions. Raises `Rejected` where there is no store."""
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
                "ropewalkKvRegions"
            )
        if len(groups) > 1:
            raise Rejected(
                f"several groups have a key-value store, name one by broker=: {', '.join(sorted(groups))}"
            )
        group = sorted({each.address for each in members if each.broker_name in groups} & serving)
        routes = Routes(tuple(group))
        for _member, answer in answers:
            routes.learn(document_in(answer).get("regions") or ())
        return routes

    def status(self) -> Steps[tuple[KvStatus, ...]]:
        """Return each region as each member that answers sees it."""
        members = yield from self.selected(broker=self._broker)
        answers = yield from self.query_all(members, RequestCode.ROPEWALK_KV_STATUS, none_for=_NO_KV)
        return tuple(
            KvStatus(member, region)
            for member, answer in answers
            for region in document_in(answer).get("regions") or ()
        )


def _decoded(decode: Callable[[bytes], T], answer: Command) -> T:
    try:
        return decode(answer.body)
    except CorruptRecord as exc:
        raise RemoteProtocolError(str(exc)) from exc


def _regions_in(answer: Command) -> Sequence[Mapping[str, Any]]:
    """Return the regions that a refusal tells of. Raises `RemoteProtocolError`."""
    try:
        found: Sequence[Mapping[str, Any]] = fastjson.loads(answer.ext.get("regions") or "{}").get(
            "regions", ()
        )
    except fastjson.FastjsonError as exc:
        raise RemoteProtocolError(f"the regions in an answer cannot be read: {exc}") from exc
    return found
