"""`Peer`: a connection to another member of the group, over which questions are proven where there is a secret."""

from __future__ import annotations

from typing import Any

import msgspec

from ha.group.hello import (
    Challenge,
    MemberStatusMessage,
    RangesRequest,
    decode_untrusted,
    encode,
    proof_of,
)
from ropewalk.client.aio.connection import AsyncConnection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command

__all__ = ["CALL_S", "NotSame", "Peer", "timer_counts"]

CALL_S = 2.0


class NotSame(OSError):
    """A refusal to follow this master, or to follow it now: the text says why."""


class Peer:
    """A connection to another member, over which questions are proven where the group has a secret."""

    def __init__(self, link: AsyncConnection, secret: str, challenge: Challenge) -> None:
        self._link = link
        self._secret = secret
        self._challenge = challenge.challenge

    @classmethod
    async def of(cls, link: AsyncConnection, secret: str) -> Peer | None:
        """Ask for the peer's challenge; return None for a RocketMQ broker."""
        answer = await link.call(Command(RequestCode.ROPEWALK_CHALLENGE), CALL_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise NotSame(f"{link.address}: {answer.remark}")
        return cls(link, secret, decode_untrusted(Challenge, answer.body))

    async def ask(self, code: int, message: msgspec.Struct, timeout_s: float = CALL_S) -> bytes:
        """Ask a question and return the body of the answer. Raises `NotSame` with the peer's words if it says no."""
        body = encode(message)
        ext = {"proof": proof_of(self._secret, self._challenge, code, body)} if self._secret else {}
        answer = await self._link.call(Command(code, ext, body), timeout_s)
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


async def timer_counts(link: AsyncConnection) -> dict[str, Any] | None:
    """Ask a master for its pending timer messages by topic; None where its wheel is switched off."""
    answer = await link.call(Command(RequestCode.GET_TIMER_METRICS), CALL_S)
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        value = fastjson.loads(answer.body)
    except fastjson.FastjsonError as exc:
        raise NotSame(f"{link.address} answered {RequestCode.GET_TIMER_METRICS}: {exc}") from exc
    return value if isinstance(value, dict) else None
