"""`RegionRequests`: requests of a key-value client to the region that has a key, at its leader or at any member.

Where the store is, name servers and members are asked. A request that was routed by an older cut is refused with the
regions as they are, and goes on by those; the refusal also tells that no earlier attempt was applied, and that none
will be. A leader that is gone, or leads no more, is followed by the one that it names, or by the next member in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from ropewalk.client.admin.cluster import ClusterSteps, document_in
from ropewalk.client.admin.results import read_kv_region, read_number, read_objects, read_texts
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.steps import Steps, ask
from ropewalk.client.kv.results import Fenced, KvStatus
from ropewalk.client.kv.routes import Route, Routes
from ropewalk.client.kv.trial import ATTEMPT_S, Trial
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import (
    CorruptRecord,
    OutcomeUnknown,
    Rejected,
    RemoteProtocolError,
    RopewalkError,
    TryLater,
    error_for,
)
from ropewalk.format import fastjson
from ropewalk.format.kv.commands import Outcome, Status, decode_outcome
from ropewalk.format.remoting import Command

__all__ = ["Moved", "RegionRequests", "decoded"]

_NO_KV: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.ILLEGAL_OPERATION)

T = TypeVar("T")


class Moved(TryLater):
    """A refusal of a request that was routed by another cut than the member knows."""

    def __init__(self, is_final: bool) -> None:
        """`is_final`: the request's epoch is over, so no earlier attempt was applied, and none will be."""
        super().__init__("the regions of the key-value store were cut anew")
        self.is_final = is_final


class RegionRequests(ClusterSteps):
    """The routes of a client, and single attempts at the members that they name."""

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

    # -- attempts ----------------------------------------------------------------------------------------

    def _at_leader(
        self, routes: Routes, region: int, epoch: int, command: Command, trial: Trial
    ) -> Steps[Outcome]:
        """Ask the leader as far as it is known; an answer that names another one is an error that tells so."""
        route = routes.get(region)
        if route is None:
            self._failures += 1
            raise TryLater(f"the members of the key-value store that answer lack region {region}")
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
        outcome = decoded(decode_outcome, answer)
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

    def _moved(self, answer: Command, routes: Routes, region: int, epoch: int) -> Moved:
        """Learn from a refusal where the keys are; return the error to raise."""
        told = _regions_in(answer)
        routes.learn(told)
        if not told:
            self._routes = None
        return Moved(any(int(each["id"]) == region and int(each["epoch"]) > epoch for each in told))

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
        """Ask name servers for brokers, and those for the regions.

        Raises `Rejected` where there is no store, and `TryLater` where no member tells of a region.
        """
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
        told = [(member, document_in(answer)) for member, answer in answers]
        removed = {member.address for member, document in told if _is_removed(document, told)}
        serving -= removed
        group = sorted({each.address for each in members if each.broker_name in groups} & serving)
        routes = Routes(tuple(group))
        for _member, document in told:
            routes.learn(read_objects(document, "regions"))
        if not len(routes):
            raise TryLater(
                "the members of the key-value store that answer lack a part of it, and tell of no region"
            )
        return routes

    def status(self) -> Steps[tuple[KvStatus, ...]]:
        """Return each region as each member that answers sees it."""
        members = yield from self.selected(broker=self._broker)
        answers = yield from self.query_all(members, RequestCode.ROPEWALK_KV_STATUS, none_for=_NO_KV)
        return tuple(
            KvStatus(member, read_kv_region(region))
            for member, answer in answers
            for region in read_objects(document_in(answer), "regions")
        )


def decoded(decode: Callable[[bytes], T], answer: Command) -> T:
    """Return the decoded body of an answer. Raises `RemoteProtocolError`."""
    try:
        return decode(answer.body)
    except CorruptRecord as exc:
        raise RemoteProtocolError(str(exc)) from exc


def _is_removed(document: Mapping[str, Any], told: Iterable[tuple[object, Mapping[str, Any]]]) -> bool:
    """Return whether the newest members that anybody told of lack the one who told `document`."""
    known = [each for _member, each in told if "members" in each]
    newest = max(known, key=lambda each: read_number(each, "index"), default=None)
    members = read_texts(newest, "members") if newest is not None else ()
    return newest is not None and "member" in document and document["member"] not in members


def _regions_in(answer: Command) -> Sequence[Mapping[str, Any]]:
    """Return the regions that a refusal tells of. Raises `RemoteProtocolError`."""
    try:
        document = fastjson.loads(answer.ext.get("regions") or "{}")
        found = document.get("regions", ()) if isinstance(document, dict) else None
        if not isinstance(found, list | tuple) or not all(isinstance(each, dict) for each in found):
            raise ValueError("they are no list of objects")
    except ValueError as exc:
        raise RemoteProtocolError(f"the regions in an answer cannot be read: {exc}") from exc
    return found
