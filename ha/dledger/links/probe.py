"""`IntroductionProbe`: the question to a process which member it is, before an operator takes it into the group."""

from __future__ import annotations

from collections.abc import Callable

from ha.dledger.links.address_book import Membership
from ha.dledger.links.hello import (
    Identity,
    IntroductionConnection,
    IntroductionFrames,
    Step,
    introduction_of,
    prove,
    read_introduction,
    refusal_of,
)
from ha.raft.types import Link, MemberId
from ropewalk.errors import RemoteProtocolError

__all__ = ["IntroductionProbe"]


class IntroductionProbe:
    """The session of a connection that asks a process for its introduction and hangs up: no link comes of it.

    `done` is told None where it is the member that was looked for, and the reason in words otherwise.
    """

    has_backlog = False

    def __init__(
        self, connection: IntroductionConnection, me: Identity, named: MemberId, challenge: bytes, newest: Membership,
        done: Callable[[str | None], None],
    ) -> None:  # fmt: skip
        self._connection = connection
        self._me = me
        self._named = named
        self._challenge = challenge
        self._newest = newest
        self._done: Callable[[str | None], None] | None = done
        self._frames = IntroductionFrames()

    def receive(self, data: bytes) -> None:
        """Go on with the introduction."""
        self._frames.feed(data)
        try:
            while self._done is not None and (message := self._frames.next_message()) is not None:
                self._step(*message)
        except RemoteProtocolError as exc:
            self.end(f"there listens no member of a DLedger group: {exc}")

    def _step(self, step: Step, body: bytes) -> None:
        me = self._me
        if step is Step.CHALLENGE:
            hello = introduction_of(me, self._named, Link.CONTROL, self._challenge, self._newest)
            self._connection.send(prove(Step.HELLO, hello, me.secret, body))
            self._connection.push()
        elif step is Step.WELCOME:
            found, proof, _secret = read_introduction(step, body, me, self._challenge)
            why = refusal_of(found, proof, me, None)
            if why is None and found.id != self._named:
                why = f"there is {found.id}"
            self.end(why)
        else:
            self.end(body.decode("utf-8", "replace"))

    def end(self, why: str | None) -> None:
        """Hang up, and tell the outcome."""
        done, self._done = self._done, None
        if done is not None:
            self._connection.close()
            done(why)

    def resume(self) -> None:
        """Do nothing: nothing waits."""

    def closed(self) -> None:
        """Note that the connection has ended."""
        self.end("the process there hung up without a word: it is no member of a DLedger group")
