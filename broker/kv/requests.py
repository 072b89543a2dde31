"""Serve the codes of the key-value store: 30100 to 30107.

    30100 session     open a session; the outcome counts its id                               the leader
    30104 write       operations of a session, applied together and once                      the leader
    30101 get, 30102 multi_get, 30103 scan                                                    every member
    30105 regions, 30107 status                                                               every member
    30106 split       cut the region that has a key in two, at that key                       the leader

A read at any member sees every write that was answered before the read began: it waits for a round of the leader's
heartbeats (read-index), then for this member to have applied as much as was committed then. With `unsafe` it reads what
this member has, which may be old. Who cannot serve answers 14 and names the leader's address in `leader`.

Requests name a region and its epoch as their client knows them. Of another epoch, or for keys that are elsewhere, they
are refused here, and once more when their entry is applied: a region may be cut in between. The refusal has the regions
as they are, in `regions`. A write that was applied before the cut is no such case: its outcome is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from broker.context import BrokerContext
from broker.kv.region import Busy, Done, KvRegion, NotLeader
from broker.kv.regions import KvRegions
from broker.remoting.origins import origin_of
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Handlers, Request, Session
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import CorruptRecord
from ropewalk.format.headers import H, HeaderError, KvHeader, KvWriteHeader, json_decoder
from ropewalk.format.kv.commands import (
    KNOWS_NO_LEADER,
    OpenSession,
    Outcome,
    Status,
    Write,
    encode_found,
    encode_outcome,
    encode_write,
)
from ropewalk.format.kv.items import (
    OPERATIONS_MAX,
    RESULTS_SIZE_MAX,
    DeleteRange,
    Operation,
    decode_operations,
    decode_values,
    key_refusal,
    refusal_of,
)

__all__ = ["KvRequests"]

_WRONG_EPOCH: Final = Outcome(Status.WRONG_EPOCH)
_NO_KV: Final = (
    "this broker serves no key-value store; members of a DLedger group do, each with ropewalkKvRegions"
)
_REMOVED: Final = (
    "this member is none of the group any more, and hears of nothing new: ask another, and stop this one"
)
_UNKNOWN: Final = (
    "TERM_CHANGED: this member does not lead the region any more; it is unknown whether the write will be kept. Send "
    "it again under the same session and number"
)


class KvRequests:
    """The handlers of one broker."""

    def __init__(self, context: BrokerContext, regions: Callable[[], KvRegions | None]) -> None:
        """`regions` returns the regions that are served here; None where there are none."""
        self._context = context
        self._regions = regions

    def register(self, handlers: Handlers) -> None:
        """Enter the handlers."""
        for code, handler in {
            RequestCode.ROPEWALK_KV_SESSION: self.session,
            RequestCode.ROPEWALK_KV_GET: self.get,
            RequestCode.ROPEWALK_KV_MULTI_GET: self.get,
            RequestCode.ROPEWALK_KV_SCAN: self.scan,
            RequestCode.ROPEWALK_KV_WRITE: self.write,
            RequestCode.ROPEWALK_KV_REGIONS: self.regions,
            RequestCode.ROPEWALK_KV_SPLIT: self.split,
            RequestCode.ROPEWALK_KV_STATUS: self.status,
        }.items():
            handlers.hot[code] = _guarded(handler)

    # -- writes --------------------------------------------------------------------------------------

    def session(self, session: Session, request: Request) -> None:
        """Open a session."""
        region = self._of(_header(KvHeader, request))
        if region is None:
            self._moved(session, request, encode_outcome(_WRONG_EPOCH))
        else:
            origin = origin_of(session.peer_host)
            self._propose(
                session,
                request,
                region,
                lambda done: region.propose(lambda stamp: OpenSession(stamp, origin), done),
            )

    def write(self, session: Session, request: Request) -> None:
        """Append a session's write; the answer leaves when it is applied. HOT."""
        header, body = _header(KvWriteHeader, request), request.body
        try:
            operations = decode_operations(body)
        except CorruptRecord as exc:
            raise _illegal(str(exc)) from None
        if (why := refusal_of(operations)) is not None:
            raise _illegal(why)
        region = self._of(header)
        if region is None or not _has(region, operations):
            known = self._outcome_of(header)
            if known is not None:
                _answer(session, request, encode_outcome(known))
            else:
                self._moved(session, request, encode_outcome(_WRONG_EPOCH))
            return

        def make(stamp: int) -> Write:
            return Write(stamp, header.session, header.seq, header.lowest, header.epoch, operations)

        def encode(write: Write) -> bytes:
            return encode_write(write, body)

        self._propose(session, request, region, lambda done: region.propose(make, done, encode))

    def split(self, session: Session, request: Request) -> None:
        """Cut a region in two at a key; the answer counts the id of the new region."""
        keys = _keys(request)
        region = self._of(_header(KvHeader, request))
        if region is None or len(keys) != 1 or not region.machine.region.has(keys[0]):
            self._moved(session, request, encode_outcome(_WRONG_EPOCH))
            return
        regions = self._own()
        if (why := regions.split_refusal(region, keys[0])) is not None:
            raise _illegal(why)
        self._propose(session, request, region, lambda done: regions.split(region, keys[0], done))

    def _propose(
        self, session: Session, request: Request, region: KvRegion, propose: Callable[[Done], None]
    ) -> None:
        def done(outcome: Outcome | None) -> None:
            if outcome is None:
                _refuse(
                    session,
                    request,
                    RequestRefused(ResponseCode.SYSTEM_ERROR, _UNKNOWN, self._leader(region)),
                )
            elif outcome.status is Status.WRONG_EPOCH:
                self._moved(session, request, encode_outcome(outcome))
            else:
                _answer(session, request, encode_outcome(outcome))

        if self._context.stopping:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down")
        request.forget()
        try:
            propose(done)
        except NotLeader:
            raise self._elsewhere(region) from None
        except Busy as exc:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{exc}") from None

    def _outcome_of(self, header: KvWriteHeader) -> Outcome | None:
        """Return the outcome of a write that was applied before its region was cut; None if it was not, and never will.

        Also None where this member has not applied so much as the client knows of.
        """
        region = self._own().get(header.region)
        if region is None or region.machine.region.epoch <= header.epoch:
            return None
        return region.machine.sessions.known(header.session, header.seq)

    # -- reads ---------------------------------------------------------------------------------------

    def get(self, session: Session, request: Request) -> None:
        """Answer with the values of keys."""
        keys = _keys(request)

        def look(region: KvRegion) -> Sequence[bytes | None]:
            return [region.machine.get(key) for key in keys]

        self._look(session, request, keys, look)

    def scan(self, session: Session, request: Request) -> None:
        """Answer with keys and values of a range, in turn."""
        bounds = [bound or b"" for bound in _values(request)]
        limit = _header(KvHeader, request).limit
        if len(bounds) != 2 or not 0 < limit <= OPERATIONS_MAX:
            raise _illegal(f"a scan has a start, an end and a limit of 1 to {OPERATIONS_MAX}")

        def look(region: KvRegion) -> Sequence[bytes | None]:
            return [each for pair in region.machine.scan(bounds[0], bounds[1], limit) for each in pair]

        self._look(session, request, bounds[:1], look)

    def _look(
        self,
        session: Session,
        request: Request,
        keys: Iterable[bytes],
        look: Callable[[KvRegion], Sequence[bytes | None]],
    ) -> None:
        """Answer a read of these keys, or from this key on, which are one region's. HOT."""
        header = _header(KvHeader, request)

        def answer() -> None:
            region = self._of(header)
            if region is None or not all(map(region.machine.region.has, keys)):
                self._moved(session, request, encode_found(Status.WRONG_EPOCH))
                return
            found = look(region)
            if sum(len(value) for value in found if value is not None) > 2 * RESULTS_SIZE_MAX:
                _answer(session, request, encode_found(Status.TOO_LARGE))
            else:
                _answer(session, request, encode_found(Status.OK, found))

        own = self._own()
        if header.unsafe and own.is_removed:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, _REMOVED)
        region = own.get(header.region)
        if header.unsafe or region is None:
            answer()
            return
        asked = region

        def done(ok: bool) -> None:
            if ok:
                answer()
            else:
                _refuse(session, request, self._elsewhere(asked))

        request.forget()
        asked.read(done)

    # -- people --------------------------------------------------------------------------------------

    def regions(self, session: Session, request: Request) -> None:
        """Answer with the regions, and where the leader of each is."""
        _answer(session, request, self._table())

    def status(self, session: Session, request: Request) -> None:
        """Answer with the regions as this member sees them."""
        broker = self._context
        document = {
            "cluster": broker.config.broker_cluster_name,
            "brokerName": broker.config.broker_name,
            "address": ":".join(map(str, broker.address)),
            "regions": [region.status() for region in self._own()],
        }
        _answer(session, request, msgspec.json.encode(document))

    def _table(self) -> bytes:
        return msgspec.json.encode({"regions": self._own().table(), **self._own().identity()})

    # -- which one -----------------------------------------------------------------------------------

    def _own(self) -> KvRegions:
        regions = self._regions()
        if regions is None:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, _NO_KV)
        return regions

    def _of(self, header: KvHeader) -> KvRegion | None:
        """Return the region of a request; None if it is cut otherwise than the client knows, or not here yet."""
        region = self._own().get(header.region)
        return region if region is not None and region.machine.region.epoch == header.epoch else None

    def _moved(self, session: Session, request: Request, body: bytes) -> None:
        """Answer that keys are elsewhere, with the regions as they are."""
        _answer(session, request, body, {"regions": self._table().decode()})

    def _leader(self, region: KvRegion) -> dict[str, str]:
        standing, known = region.ledger.standing, region.machine.leader
        elsewhere = standing.leader is not None and standing.leader != region.ledger.me.id
        return {"leader": known} if elsewhere and known else {}

    def _elsewhere(self, region: KvRegion) -> RequestRefused:
        standing = region.ledger.standing
        where = f"the leader it knows is {standing.leader}" if standing.leader else KNOWS_NO_LEADER
        return RequestRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"{region.ledger.me.id} cannot serve this for region {region.machine.region.id}: {where}; nothing was done",
            self._leader(region),
        )


def _has(region: KvRegion, operations: Iterable[Operation]) -> bool:
    """Return whether all operations are on keys of a region."""
    cut = region.machine.region
    return all(
        cut.has_range(each.start, each.end) if isinstance(each, DeleteRange) else cut.has(each.key)
        for each in operations
    )


def _keys(request: Request) -> list[bytes]:
    """Return the keys in the body of a request."""
    keys = [key for key in _values(request) if key is not None]
    if not 0 < len(keys) <= OPERATIONS_MAX:
        raise _illegal(f"a read has 1 to {OPERATIONS_MAX} keys, this one has {len(keys)}")
    for key in keys:
        if (why := key_refusal(key)) is not None:
            raise _illegal(why)
    return keys


def _values(request: Request) -> list[bytes | None]:
    try:
        return decode_values(request.body)
    except CorruptRecord as exc:
        raise _illegal(str(exc)) from None


def _header(cls: type[H], request: Request) -> H:
    try:
        return request.header(cls, json_decoder(cls).decode)
    except HeaderError as exc:
        raise _illegal(str(exc)) from None


def _illegal(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, why)


def _answer(session: Session, request: Request, body: bytes, ext: dict[str, str] | None = None) -> None:
    code = ResponseCode.SUCCESS
    session.outbox.send_frame(request, code, request.reply(code, None, ext, body))


def _refuse(session: Session, request: Request, refused: RequestRefused) -> None:
    frame = request.reply(refused.code, refused.remark, refused.ext)
    session.outbox.send_frame(request, refused.code, frame)


def _guarded(handler: Callable[[Session, Request], None]) -> Callable[[Session, Request], None]:
    """Return the handler with its refusals turned into answers."""

    def handle(session: Session, request: Request) -> None:
        try:
            handler(session, request)
        except RequestRefused as refused:
            _refuse(session, request, refused)

    return handle
