"""`Blocks`: bytes of the log that one member asks of another, because its own copy of them is damaged.

    asks    --BLOCK-->          any member with a link, whether it leads, follows or is impaired itself
    asks    <--BLOCK_ANSWER--   the bytes (OK), or in words why not

Bytes that match the checksum that was kept of them are right whoever sends them. Where there is no checksum, a member
gives what it knows to be committed: that is the same on all members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ha.group.block_repair import Span
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.frame import OK, Frame, Kind, encode_head
from ropewalk.format.sidecar import block_sum

__all__ = ["Answer", "Blocks", "Refusal"]

PATIENCE_MS: Final = 10_000
_WORDS_MAX: Final = 1024
_FINAL: Final = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a member gives no bytes, in words."""

    text: str
    is_final: bool = False
    """Whether its copy is no better, and will not be."""


Answer = bytes | Refusal


class BlockLink(Protocol):
    """The control link to a member."""

    @property
    def is_up(self) -> bool:
        """Tell whether frames may be sent."""

    def send(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Owe the peer a frame."""

    def push(self) -> None:
        """Write owed bytes now, and not only when the turn ends."""


@dataclass(frozen=True, slots=True)
class _Asked:
    until: int
    link: BlockLink
    span: Span
    done: Callable[[Answer], None]


class Blocks:
    """The questions of this member that are under way, and its answers to those of others."""

    def __init__(self) -> None:
        self.give: Callable[[Span, Callable[[Answer], None]], None] = lambda span, answer: answer(
            Refusal("this member has no log to give from")
        )
        """Find bytes for another member; the answer may come later, on the loop."""
        self._number = 0
        self._asked: dict[int, _Asked] = {}

    def ask(self, link: BlockLink, span: Span, now: int, done: Callable[[Answer], None]) -> None:
        """Ask the member at the other end of a control link; `done` is told its answer, once."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._asked[self._number] = _Asked(now + PATIENCE_MS, link, span, done)
        wanted = -1 if span.wanted is None else span.wanted
        link.send(encode_head(Kind.BLOCK, 0, 0, self._number, (span.start, span.end, wanted, 0, 0, 0)))

    def received(self, link: BlockLink, frame: Frame) -> None:
        """Answer a question, or take an answer. Raises `RemoteProtocolError` for a question that makes no sense."""
        if frame.kind is Kind.BLOCK:
            self._give(link, frame)
            return
        asked = self._asked.pop(frame.count, None)
        if asked is None or asked.link is not link:
            return
        data = bytes(frame.body)
        if not frame.flags & OK:
            asked.done(Refusal(data.decode("utf-8", "replace")[:_WORDS_MAX], frame.numbers[0] == _FINAL))
        elif len(data) != asked.span.end - asked.span.start:
            asked.done(Refusal(f"it sent {len(data)} bytes for {asked.span.end - asked.span.start}"))
        elif asked.span.wanted is not None and block_sum(data) != asked.span.wanted:
            asked.done(Refusal("its bytes do not match the checksum kept here", is_final=True))
        else:
            asked.done(data)

    def _give(self, link: BlockLink, frame: Frame) -> None:
        start, end, wanted = frame.numbers[:3]
        if not 0 <= start < end:
            raise RemoteProtocolError(f"no log has bytes from {start} to {end}")
        number = frame.count

        def answer(found: Answer) -> None:
            if not link.is_up:
                return
            if isinstance(found, Refusal):
                body, flags, kind = found.text.encode()[:_WORDS_MAX], 0, _FINAL if found.is_final else 0
            else:
                body, flags, kind = found, OK, 0
            link.send(encode_head(Kind.BLOCK_ANSWER, flags, 0, number, (kind, 0, 0, 0, 0, 0), body), body)
            link.push()

        self.give(Span(start, end, None if wanted < 0 else wanted), answer)

    def tick(self, now: int) -> None:
        """Give up the questions whose time has passed, or whose link is gone."""
        over = [number for number, each in self._asked.items() if now >= each.until or not each.link.is_up]
        for number in over:
            self._asked.pop(number).done(Refusal("it did not answer"))
