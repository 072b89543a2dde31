"""`SessionWrites`: writes of a key-value client, each of which is done once however often it is sent.

A write goes to the leader of the region that has its keys. An attempt that got no answer is sent again, to whichever
member leads then, under the same session and number: the store applies it once, and answers every attempt alike. So a
write that returns was done once. `OutcomeUnknown` is left for a write of which time ran out before any answer came, or
whose session the store has dropped in between.

A region that was cut off knows all sessions of the one that it was cut from, so a write goes on there under its session
and number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ropewalk.client.core.messages import command_of
from ropewalk.client.core.steps import Steps
from ropewalk.client.kv.asking import Moved, RegionRequests
from ropewalk.client.kv.operations import elsewhere, keys_of, result_untrusted
from ropewalk.client.kv.results import KvLock
from ropewalk.client.kv.routes import Route
from ropewalk.client.kv.trial import Trial
from ropewalk.codes import RequestCode
from ropewalk.errors import LocalProtocolError, OutcomeUnknown, Rejected, RemoteProtocolError, RopewalkError
from ropewalk.format.headers import KvHeader, KvWriteHeader
from ropewalk.format.kv.commands import Status
from ropewalk.format.kv.items import Count, Guard, Operation, Result, encode_items, refusal_of

__all__ = ["SessionWrites"]


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


class SessionWrites(RegionRequests):
    """Writes under a session in each region that is written to."""

    def __init__(
        self,
        name_servers: str,
        *,
        clock: Callable[[], float],
        timeout_s: float,
        broker: str | None,
        start: int,
    ) -> None:
        super().__init__(name_servers, clock=clock, timeout_s=timeout_s, broker=broker, start=start)
        self._sessions: dict[int, _Session] = {}
        """By region."""

    def renew(self) -> None:
        """Forget the sessions: in a child process they are the parent's, who goes on numbering its writes."""
        self._sessions = {}

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
        newest = sent_count = 0
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
                    sent, sent_count = (route, body), len(operations)
                # Else keys were parted by a cut: the region that had all of them tells what became of the write.
                asked, body = sent
                newest = max(newest, asked.epoch)
                header = KvWriteHeader(
                    asked.id, asked.epoch, session=session.id, seq=seq, lowest=min(session.unanswered)
                )
                command = command_of(RequestCode.ROPEWALK_KV_WRITE, header, body)
                try:
                    outcome = yield from self._at_leader(routes, asked.id, asked.epoch, command, trial)
                except Moved as exc:
                    # Members that are behind may have told of an older cut since: that its epoch is over says nothing
                    # of an attempt that was routed by the newer one.
                    trial.in_doubt = trial.in_doubt and not (exc.is_final and asked.epoch == newest)
                    raise
                if outcome.status is Status.OK:
                    if len(outcome.results) != sent_count:
                        raise RemoteProtocolError(
                            f"the key-value store answered {len(outcome.results)} results to {sent_count} operations: "
                            "it is unknown what it did"
                        )
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
                    trial.in_doubt = False  # of a session nobody can be in doubt: an unused one is harmless
                    number = result_untrusted(Count, outcome.results).number
                    self._sessions.setdefault(route.id, _Session(number))  # unless a task was faster
            if self._session_of(key) is None:
                yield from trial.pause()
        return session

    def _session_of(self, key: bytes) -> _Session | None:
        return None if self._routes is None else self._sessions.get(self._routes.of(key).id)

    # -- writes that were asked for apart ----------------------------------------------------------------

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
