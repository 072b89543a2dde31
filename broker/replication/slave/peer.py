"""`Peer`: a connection to another member of the group; `Trust`: which members this broker believes, and in what.

    the group has a secret     a member that proves its answers (version 2) is believed in everything. One that proves
                               its questions alone, being of an older release, is listened to at an address that this
                               broker knows, and changes no role and cuts no log. Nobody else is listened to
    it has none                a member at an address that this broker knows is believed; others are listened to

An address is known by settings, by this broker's role on disk, or by the policy of the group. A name server's word
makes none known: anybody can register there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import structlog

from broker.turns import in_turns
from ha.group.hello import MemberStatusMessage, RangesRequest, decode_untrusted, encode
from ropewalk.client.aio.connection import AsyncConnection
from ropewalk.client.core.connection import Unreachable
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.fastjson import FastjsonError
from ropewalk.format.remoting import FRAME_SIZE_MAX, Command
from ropewalk.format.sliced_json import loads_in_slices
from ropewalk.member_proof import NONCE_SIZE, Asker

__all__ = [
    "CALL_S",
    "NotSame",
    "Peer",
    "Trust",
    "is_refusal",
    "read_answer",
    "reading_answers",
    "timer_counts",
]

log = structlog.get_logger("broker.ha")

CALL_S = 2.0
TABLE_ENTRIES_MAX: Final = 1_000_000
"""Entries in a table of a RocketMQ master: its consumer offsets have no bound of their own."""
_TOLD_MAX: Final = 64
_told: set[tuple[str, str]] = set()
"""Peers, and the kinds of trouble that reading their answers has made, as they were logged."""


class NotSame(OSError):
    """A refusal to follow this master, or to follow it now: the text says why."""


def is_refusal(exc: Exception) -> bool:
    """Return whether an error means that one end refuses the other, and not that an answer is missing."""
    silent = isinstance(exc, Unreachable | OutcomeUnknown)
    return isinstance(exc, NotSame) or (isinstance(exc, RopewalkError) and not silent)


@contextmanager
def reading_answers(address: str) -> Iterator[None]:
    """Turn every trouble with a peer's answers into a `NotSame`: however odd they are, no task ends by them."""
    try:
        yield
    except (RopewalkError, OSError):
        raise
    except Exception as exc:
        kind = type(exc).__name__
        if (address, kind) not in _told and len(_told) < _TOLD_MAX:
            _told.add((address, kind))
            log.exception("an answer that cannot be used", peer=address)
        raise NotSame(f"{address} answered what cannot be used: {kind}: {exc}") from exc


class Trust:
    """The rules by which one broker believes others."""

    def __init__(
        self,
        secret: str,
        cluster: str,
        broker_name: str,
        known: Callable[[], Collection[str]],
        *,
        takes_version1: bool = True,
    ) -> None:
        """`known` returns the addresses of members that no name server has told."""
        self.secret = secret
        self._group = cluster, broker_name
        self._known = known
        self._takes_version1 = takes_version1
        self._spoke2: set[str] = set()
        """The addresses that have spoken version 2: nobody speaks an older one there any more."""

    def is_known(self, address: str) -> bool:
        """Return whether this broker knows a member at this address, and not from a name server."""
        return address in self._known()

    def asker(self, link: AsyncConnection) -> Asker:
        """Return this broker's end of a connection."""
        cluster, broker_name = self._group
        dialed = str(link.address)
        socket = str(link.remote_address) if self.secret else ""
        return Asker(
            self.secret, dialed, socket, os.urandom(NONCE_SIZE), cluster=cluster, broker_name=broker_name
        )

    def check_listened_to(self, address: str, version: int) -> None:
        """Raise `NotSame` where a member that speaks this version of the proof is not listened to."""
        if not self.secret or version == 2:
            if version == 2:
                self._spoke2.add(address)
            return
        what = "knows of no ropewalkSecret" if version == 0 else "proves its questions and not its answers"
        why = f"{address} {what}, and is not listened to"
        if not self._takes_version1:
            raise NotSame(f"{why}: only proofs of version 2 are taken")
        if address in self._spoke2:
            raise NotSame(f"{why}: it proved its answers before")
        if not self.is_known(address):
            raise NotSame(
                f"{why} at an address that only a name server tells: upgrade it and give it the group's secret, or set "
                "ropewalkMasterAddress where it is the master"
            )


class Peer:
    """A connection to another member. What it answers is proven where both ends speak version 2."""

    def __init__(self, link: AsyncConnection, asker: Asker, *, is_known: bool) -> None:
        self._link = link
        self._asker = asker
        self.is_proven = asker.version == 2
        """Whether its answers are proven."""
        self.may_lead = self.is_proven or (is_known and not asker.has_secret)
        """Whether its word may change the role of this broker, or cut its log."""

    @classmethod
    async def of(cls, link: AsyncConnection, trust: Trust) -> Peer | None:
        """Ask for the peer's challenge; return None for a RocketMQ broker. Raises `NotSame` for a stranger."""
        address = str(link.address)
        asker = trust.asker(link)
        answer = await link.call(asker.question(), CALL_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            if trust.secret:
                raise NotSame(f"{address} is a RocketMQ broker: this group has a ropewalkSecret")
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise NotSame(f"{address}: {answer.remark}")
        asker.challenged(answer.body)
        trust.check_listened_to(address, asker.version)
        return cls(link, asker, is_known=trust.is_known(address))

    async def ask(self, code: int, message: msgspec.Struct, timeout_s: float = CALL_S) -> bytes:
        """Ask a question and return the body of the answer.

        Raises `NotSame` with the peer's words if it says no, and `NotProven` where the answer should be proven and is
        not.
        """
        question = self._asker.prove(Command(code, {}, encode(message)))
        answer = await self._link.call(question, timeout_s)
        self._asker.check(question, answer)
        if answer.code != ResponseCode.SUCCESS:
            raise NotSame(f"{self._link.address}: {answer.remark or f'code {answer.code}'}")
        return answer.body

    async def timer_counts(self) -> dict[str, Any] | None:
        """Ask for the pending timer messages by topic (61)."""
        return await timer_counts(self._link)

    async def status(self) -> MemberStatusMessage:
        return decode_untrusted(
            MemberStatusMessage, await self.ask(RequestCode.ROPEWALK_MEMBER_STATUS, RangesRequest([]))
        )


async def read_answer(answer: Command) -> Any:
    """Read the JSON of a peer's answer, which may be as large as a frame, between the turns of others.

    Raises `FastjsonError`.
    """
    return await in_turns(loads_in_slices(answer.body, FRAME_SIZE_MAX, TABLE_ENTRIES_MAX))


async def timer_counts(link: AsyncConnection) -> dict[str, Any] | None:
    """Ask a master for its pending timer messages by topic; None where its wheel is switched off."""
    answer = await link.call(Command(RequestCode.GET_TIMER_METRICS), CALL_S)
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        value = await read_answer(answer)
    except FastjsonError as exc:
        raise NotSame(f"{link.address} answered {RequestCode.GET_TIMER_METRICS}: {exc}") from exc
    return value if isinstance(value, dict) else None
