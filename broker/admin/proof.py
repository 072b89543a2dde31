"""`ProofDoor`: the entrance of all requests that only members of a group and its operators may make.

Where `ropewalkSecret` is set, a request behind the door has to be proven (`ropewalk.member_proof`), and its
answer, a refusal too, is proven in turn. Without a secret the door is open.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import structlog

import ropewalk
from broker.admin.base import Handler
from broker.admin.repeated import Repeated
from broker.context import BrokerContext
from broker.remoting.refused import RequestRefused
from broker.remoting.request import CommandRequest
from broker.remoting.session import Session, Stepwise
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.headers import HeaderError
from ropewalk.format.remoting import Command
from ropewalk.member_proof import (
    CHALLENGE_SIZE,
    NO_SECRET,
    NONCE_SIZE,
    Answerer,
    Challenge,
    NotProven,
    Seal,
    key_of,
)

__all__ = ["PROVEN_CODES", "ProofDoor"]

log = structlog.get_logger("broker.ha")

PROVEN_CODES: Final = frozenset(
    (
        RequestCode.ROPEWALK_SLAVE_HELLO,
        RequestCode.ROPEWALK_LOG_SUMS,
        RequestCode.ROPEWALK_LOG_BYTES,
        RequestCode.ROPEWALK_SYNC,
        RequestCode.ROPEWALK_MEMBER_STATUS,
        RequestCode.ROPEWALK_ACCEPT_EPOCH,
        RequestCode.ROPEWALK_RELEASE_EPOCH,
        RequestCode.ROPEWALK_PROMOTE,
        RequestCode.ROPEWALK_FOLLOW,
        RequestCode.ROPEWALK_FORGET_SLAVE,
        RequestCode.ROPEWALK_LOG_BLOCK,
        RequestCode.ROPEWALK_LEDGER_STATUS,
        RequestCode.ROPEWALK_LEDGER_TRANSFER,
        RequestCode.ROPEWALK_LEDGER_READMIT,
        RequestCode.ROPEWALK_LEDGER_CHANGE,
        RequestCode.ROPEWALK_LEDGER_FORCE,
        RequestCode.ROPEWALK_LEDGER_SNAPSHOT,
        RequestCode.ROPEWALK_LEDGER_TRUST,
    )
)
"""The codes behind the door: everything that members ask each other, and that an operator asks a group."""
_NOT_PROVEN: Final = (
    "this group has a ropewalkSecret, and the request does not prove that its sender knows it"
)


@dataclass(slots=True)
class _ProvenRequest(CommandRequest):
    """A request whose every answer carries the proof that belongs to it."""

    proof: Seal | None = None

    def reply(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        answer = CommandRequest.reply(self, code, remark, ext, body)
        return self.proof.seal(answer) if self.proof is not None else answer


class ProofDoor:
    """The door of one broker, with the challenges of its connections. The loop owns it."""

    def __init__(self, broker: BrokerContext) -> None:
        config = self._config = broker.config
        self._address = f"{broker.address[0]}:{broker.address[1]}"
        self._secrets = tuple(each for each in (config.ropewalk_secret, config.ropewalk_secret_also) if each)
        for secret in self._secrets:  # here, before anybody waits for it
            key_of(secret, config.broker_cluster_name)
        self._answerers: dict[Session, Answerer] = {}
        self._now_ms = broker.monotonic_ms
        self._unproven = Repeated()
        """The refusals by address: who has another secret may try for hours, several times a second."""

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.ROPEWALK_CHALLENGE: self.challenge}

    def forget(self, session: Session) -> None:
        """The connection is gone, and its challenge with it."""
        self._answerers.pop(session, None)

    def challenge(self, session: Session, request: Command) -> Command:
        """Answer with the numbers for proofs on this connection."""
        if not self._secrets:
            return request.reply(ResponseCode.SUCCESS, body=Challenge(version=ropewalk.__version__).encoded())
        config = self._config
        host, port = session.link.local
        answerer = self._answerers[session] = Answerer(
            self._secrets,
            config.broker_cluster_name,
            config.broker_name,
            (self._address, f"{host}:{port}", *config.ropewalk_address_aliases),
            challenge=os.urandom(CHALLENGE_SIZE),
            nonce=os.urandom(NONCE_SIZE),
            takes_version1=config.ropewalk_secret_v1,
        )
        try:
            found = answerer.challenge(request.ext, ropewalk.__version__)
        except NotProven as exc:
            del self._answerers[session]
            raise self._refusal(session, request, str(exc), "challenge") from exc
        return request.reply(ResponseCode.SUCCESS, body=found.encoded())

    def behind(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Return these handlers behind the door."""
        assert handlers.keys() <= PROVEN_CODES, handlers.keys() - PROVEN_CODES
        return {code: self._proven(handler) for code, handler in handlers.items()}

    def _proven(self, handler: Handler) -> Handler:
        def handle(session: Session, request: Command) -> Command | Stepwise | None:
            request = self._verified(session, request)
            try:
                return handler(session, request)
            except RequestRefused as refused:
                return request.reply(refused.code, str(refused))
            except RemoteProtocolError as exc:
                return request.reply(ResponseCode.INVALID_PARAMETER, str(exc))
            except HeaderError as exc:
                return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))

        return handle

    def _verified(self, session: Session, request: Command) -> Command:
        """Return the request with the seal for its answers. Raises `RequestRefused` where it is not proven."""
        if not self._secrets:
            return request
        answerer = self._answerers.get(session)
        try:
            if answerer is None:
                raise NotProven(NO_SECRET)
            seal = answerer.verify(request)
        except NotProven as exc:
            raise self._refusal(session, request, f"{_NOT_PROVEN}: {exc}", str(exc)) from exc
        return _ProvenRequest(
            request.code, request.ext, request.body, request.opaque, request.flag, request.remark, request.language,
            request.version, request.serialize_type, getattr(request, "read_at", 0.0), seal,
        )  # fmt: skip

    def _refusal(self, session: Session, request: Command, why: str, kind: str) -> RequestRefused:
        """Return the refusal, which the log tells once for each address and kind, and again while it goes on."""
        ip = session.link.peer[0]
        refused = self._unproven.count(ip, kind, self._now_ms())
        if refused:
            log.warning("no proof of ropewalkSecret", peer=ip, code=request.code, reason=why, refused=refused)
        return RequestRefused(ResponseCode.NO_PERMISSION, why)
