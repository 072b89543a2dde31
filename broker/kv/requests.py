"""Serve the codes of the key-value store: 30100 to 30107.

    30100 session     open a session; the outcome counts its id                               the leader
    30104 write       operations of a session, applied together and once                      the leader
    30101 get, 30102 multi_get, 30103 scan                                                    every member
    30105 regions, 30107 status                                                               every member

A read at any member sees every write that was answered before the read began: it waits for a round of the leader's
heartbeats (read-index), then for this member to have applied as much as was committed then. With `unsafe` it reads what
this member has, which may be old. Who cannot serve answers 14 and names the leader's address in `leader`.

Requests name the epoch of the region as their client knows it; of another one they are refused here, and once more when
their entry is applied: a region may be cut in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from broker.context import BrokerContext
from broker.kv.region import Busy, KvRegion, NotLeader
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Handlers, Session
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import CorruptRecord
from ropewalk.format.headers import H, HeaderError, KvHeader, KvWriteHeader, decode_header
from ropewalk.format.kv.commands import (
    Command as KvCommand,
)
from ropewalk.format.kv.commands import (
    OpenSession,
    Outcome,
    Status,
    Write,
    encode_found,
    encode_outcome,
)
from ropewalk.format.kv.items import (
    OPERATIONS_MAX,
    RESULTS_SIZE_MAX,
    Operation,
    decode_operations,
    decode_values,
    key_refusal,
    refusal_of,
)
from ropewalk.format.remoting import Command

__all__ = ["KvRequests"]

T = TypeVar("T")

_NO_KV: Final = (
    "this broker serves no key-value store; members of a DLedger group do, each with ropewalkKvRegions = 1"
)
_UNKNOWN: Final = (
    "TERM_CHANGED: this member does not lead the region any more; it is unknown whether the write will be kept. Send "
    "it again under the same session and number"
)


class KvRequests:
    """The handlers of one broker."""

    def __init__(self, context: BrokerContext, region: Callable[[], KvRegion | None]) -> None:
        """`region` returns the region that is served here; None where there is none."""
        self._context = context
        self._region = region

    def register(self, handlers: Handlers) -> None:
        """Enter the handlers."""
        for code, handler in {
            RequestCode.ROPEWALK_KV_SESSION: self.session,
            RequestCode.ROPEWALK_KV_GET: self.get,
            RequestCode.ROPEWALK_KV_MULTI_GET: self.get,
            RequestCode.ROPEWALK_KV_SCAN: self.scan,
            RequestCode.ROPEWALK_KV_WRITE: self.write,
            RequestCode.ROPEWALK_KV_REGIONS: self.regions,
            RequestCode.ROPEWALK_KV_STATUS: self.status,
        }.items():
            handlers.cold[code] = _guarded(handler)

    # -- writes --------------------------------------------------------------------------------------

    def session(self, session: Session, request: Command) -> None:
        """Open a session."""
        self._propose(session, request, _header(KvHeader, request), OpenSession)

    def write(self, session: Session, request: Command) -> Command | None:
        """Append a session's write; the answer leaves when it is applied."""
        header = _header(KvWriteHeader, request)
        operations: tuple[Operation, ...] = _read(lambda: decode_operations(request.body))
        if (why := refusal_of(operations)) is not None:
            raise _illegal(why)
        if header.epoch != self._of(header).machine.region.epoch:
            return request.reply(ResponseCode.SUCCESS, body=encode_outcome(Outcome(Status.WRONG_EPOCH)))
        self._propose(
            session,
            request,
            header,
            lambda stamp: Write(stamp, header.session, header.seq, header.lowest, header.epoch, operations),
        )
        return None

    def _propose(
        self, session: Session, request: Command, header: KvHeader, make: Callable[[int], KvCommand]
    ) -> None:
        region = self._of(header)

        def done(outcome: Outcome | None) -> None:
            if outcome is None:
                answer = request.reply(ResponseCode.SYSTEM_ERROR, _UNKNOWN, self._leader(region))
            else:
                answer = request.reply(ResponseCode.SUCCESS, body=encode_outcome(outcome))
            session.outbox.send(request, answer)

        if self._context.stopping:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down")
        try:
            region.propose(make, done)
        except NotLeader:
            raise self._elsewhere(region) from None
        except Busy as exc:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{exc}") from None

    # -- reads ---------------------------------------------------------------------------------------

    def get(self, session: Session, request: Command) -> Command | None:
        """Answer with the values of keys."""
        keys = [key for key in _read(lambda: decode_values(request.body)) if key is not None]
        if not 0 < len(keys) <= OPERATIONS_MAX:
            raise _illegal(f"a read has 1 to {OPERATIONS_MAX} keys, this one has {len(keys)}")
        for key in keys:
            if (why := key_refusal(key)) is not None:
                raise _illegal(why)

        def look(region: KvRegion) -> Sequence[bytes | None]:
            return [region.machine.get(key) for key in keys]

        return self._look(session, request, look)

    def scan(self, session: Session, request: Command) -> Command | None:
        """Answer with keys and values of a range, in turn."""
        bounds = [bound or b"" for bound in _read(lambda: decode_values(request.body))]
        limit = _header(KvHeader, request).limit
        if len(bounds) != 2 or not 0 < limit <= OPERATIONS_MAX:
            raise _illegal(f"a scan has a start, an end and a limit of 1 to {OPERATIONS_MAX}")

        def look(region: KvRegion) -> Sequence[bytes | None]:
            return [each for pair in region.machine.scan(bounds[0], bounds[1], limit) for each in pair]

        return self._look(session, request, look)

    def _look(
        self, session: Session, request: Command, look: Callable[[KvRegion], Sequence[bytes | None]]
    ) -> Command | None:
        header = _header(KvHeader, request)
        region = self._of(header)

        def answer() -> Command:
            if header.epoch != region.machine.region.epoch:
                return request.reply(ResponseCode.SUCCESS, body=encode_found(Status.WRONG_EPOCH))
            found = look(region)
            if sum(len(value) for value in found if value is not None) > 2 * RESULTS_SIZE_MAX:
                return request.reply(ResponseCode.SUCCESS, body=encode_found(Status.TOO_LARGE))
            return request.reply(ResponseCode.SUCCESS, body=encode_found(Status.OK, found))

        def done(ok: bool) -> None:
            if ok:
                reply = answer()
            else:
                refused = self._elsewhere(region)
                reply = request.reply(refused.code, refused.remark, refused.ext)
            session.outbox.send(request, reply)

        if header.unsafe:
            return answer()
        region.read(done)
        return None

    # -- people --------------------------------------------------------------------------------------

    def regions(self, session: Session, request: Command) -> Command:
        """Answer with the regions, and where the leader of each is."""
        region = self._own()
        cut, machine = region.machine.region, region.machine
        document = {
            "id": cut.id,
            "start": cut.start.hex(),
            "end": cut.end.hex(),
            "epoch": cut.epoch,
            "leader": machine.leader if region.ledger.standing.leader is not None else "",
        }
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode({"regions": [document]}))

    def status(self, session: Session, request: Command) -> Command:
        """Answer with the regions as this member sees them."""
        broker = self._context
        document = {
            "cluster": broker.config.broker_cluster_name,
            "brokerName": broker.config.broker_name,
            "address": ":".join(map(str, broker.address)),
            "regions": [self._own().status()],
        }
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(document))

    # -- which one -----------------------------------------------------------------------------------

    def _own(self) -> KvRegion:
        region = self._region()
        if region is None:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, _NO_KV)
        return region

    def _of(self, header: KvHeader) -> KvRegion:
        region = self._own()
        if header.region != region.machine.region.id:
            raise _illegal(f"there is no region {header.region} here")
        return region

    def _leader(self, region: KvRegion) -> dict[str, str]:
        standing, known = region.ledger.standing, region.machine.leader
        elsewhere = standing.leader is not None and standing.leader != region.ledger.me.id
        return {"leader": known} if elsewhere and known else {}

    def _elsewhere(self, region: KvRegion) -> RequestRefused:
        standing = region.ledger.standing
        where = f"the leader it knows is {standing.leader}" if standing.leader else "it knows no leader"
        return RequestRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"{region.ledger.me.id} cannot serve this for region {region.machine.region.id}: {where}; nothing was done",
            self._leader(region),
        )


def _guarded(
    handler: Callable[[Session, Command], Command | None],
) -> Callable[[Session, Command], Command | None]:
    """Return the handler with its refusals turned into answers."""

    def handle(session: Session, request: Command) -> Command | None:
        try:
            return handler(session, request)
        except RequestRefused as refused:
            return request.reply(refused.code, refused.remark, refused.ext)

    return handle


def _header(cls: type[H], request: Command) -> H:
    try:
        return decode_header(cls, request.ext)
    except HeaderError as exc:
        raise _illegal(str(exc)) from None


def _read(decode: Callable[[], T]) -> T:
    try:
        return decode()
    except CorruptRecord as exc:
        raise _illegal(str(exc)) from None


def _illegal(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, why)
