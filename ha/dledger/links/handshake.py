"""`Handshake`: one end of an introduction (`ha.dledger.links.hello`), over a connection that is to be a link.

    dialer      is told CHALLENGE, sends HELLO, is told WELCOME
    acceptor    sends CHALLENGE, is told HELLO, sends WELCOME; the dialer may refuse it all the same

Either end is judged by the host of the other one before anything that it says changes a state. Bytes behind the
introduction are those of the link, and are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ha.dledger.links.hello import (
    CHALLENGE_SIZE,
    Identity,
    Introduction,
    IntroductionConnection,
    IntroductionFrames,
    Proof,
    Step,
    encode,
    prove,
    read_introduction,
)
from ha.raft.types import Link, MemberId
from ropewalk.errors import RemoteProtocolError

__all__ = ["Handshake", "Host"]


class Host(Protocol):
    """The member that introduces itself."""

    me: Identity

    def introduction(self, to: MemberId, kind: Link, challenge: bytes) -> Introduction:
        """Return the introduction of this member to a peer."""

    def judge(self, found: Introduction, proof: Proof, dialed: MemberId) -> str | None:
        """Return the reason in words why a peer is refused, or None; `dialed` is the member that was looked for."""


class Handshake:
    """The introduction of two members, as either end goes through it."""

    def __init__(
        self,
        host: Host,
        connection: IntroductionConnection,
        dialed: tuple[MemberId, Link] | None,
        challenge: bytes,
        accepted: Callable[[Introduction], bool],
        refused: Callable[[str, MemberId], None],
    ) -> None:
        """`dialed`: the member that this end has connected to; None: it was connected to, and sends its challenge.

        `accepted` is told the introduction of a peer, and returns whether the link is up; `refused` is told why one
        end refuses the other, and the peer ("" if that is not known).
        """
        self._host = host
        self._connection = connection
        self._dials = dialed is not None
        self._peer, self._kind = dialed or ("", Link.CONTROL)
        self._challenge = challenge
        self._peers_challenge: bytes | None = None
        self._on_accepted = accepted
        self._on_refused = refused
        self._frames: IntroductionFrames | None = IntroductionFrames()
        """The messages of a peer that is not introduced yet."""
        self._last_word: IntroductionFrames | None = None
        """The first bytes from a dialer that was welcomed: it may refuse all the same."""
        self._is_ended = False
        if not self._dials:
            connection.send(encode(Step.CHALLENGE, challenge))

    @property
    def is_over(self) -> bool:
        """Return whether all that comes is the link's."""
        return self._frames is None and self._last_word is None

    def receive(self, data: bytes) -> bytes:
        """Take the bytes that belong to the introduction; return those behind it.

        Raises `RemoteProtocolError` for a peer to hang up on.
        """
        if self._frames is not None:
            data = self._introduced(data, self._frames)
        if data and self._last_word is not None:
            data = self._welcomed(data, self._last_word)
        return data

    def _introduced(self, data: bytes, frames: IntroductionFrames) -> bytes:
        frames.feed(data)
        while not self._is_ended and (message := frames.next_message()) is not None:
            if self._step(*message):
                self._frames = None
                return frames.rest
        return b""

    def _welcomed(self, data: bytes, last_word: IntroductionFrames) -> bytes:
        """Return the first bytes from a dialer that was welcomed, unless they refuse this member."""
        last_word.feed(data)
        if last_word.are_of_a_link:
            self._last_word = None
            return last_word.rest
        if (message := last_word.next_message()) is not None:
            step, body = message
            if step is not Step.REFUSED:
                raise RemoteProtocolError(f"a {step.name} that nothing asked for")
            self._refused(body.decode("utf-8", "replace"), self._peer)
        return b""

    def _step(self, step: Step, body: bytes) -> bool:
        """Go on with a message of the peer; return whether the link is up."""
        if step is Step.REFUSED and self._dials:
            self._refused(body.decode("utf-8", "replace"), self._peer)
        elif step is Step.CHALLENGE and self._dials and self._peers_challenge is None:
            if len(body) != CHALLENGE_SIZE:
                raise RemoteProtocolError(f"a challenge of {len(body)} bytes")
            self._peers_challenge = body
            self._introduce(Step.HELLO, body, self._host.me.secret)
        elif step is (Step.WELCOME if self._dials else Step.HELLO):
            found, proof, secret = read_introduction(step, body, self._host.me, self._challenge)
            why = self._host.judge(found, proof, self._peer)
            if why is None:
                return self._accept(found, secret)
            # Also to an acceptor that has sent its welcome: a member that lost its store, and that all others dial,
            # would hear of it from nobody else.
            self._connection.send(encode(Step.REFUSED, why.encode()[:2048]))
            self._connection.push()
            self._refused(why, self._peer or found.id)
        else:
            raise RemoteProtocolError(f"a {step.name} that nothing asked for")
        return False

    def _accept(self, found: Introduction, secret: str) -> bool:
        if not self._dials:
            self._peer, self._kind = found.id, Link(found.kind)
            self._introduce(Step.WELCOME, found.challenge, secret)
            self._last_word = IntroductionFrames()
        is_up = self._on_accepted(found)
        self._is_ended = not is_up
        return is_up

    def _introduce(self, step: Step, challenge: bytes, secret: str) -> None:
        """Send the introduction of this member, with the proof for the peer's challenge."""
        introduction = self._host.introduction(self._peer, self._kind, self._challenge)
        self._connection.send(prove(step, introduction, secret, challenge))

    def _refused(self, why: str, peer: MemberId) -> None:
        self._is_ended = True
        self._on_refused(why, peer)
