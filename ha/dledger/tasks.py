"""The trio tasks of a member: dial the peers that it has to dial, and tell it the time.

A link that is down is dialed again after 20 ms, then after twice as long each time, up to half a second: the peer may
be in the middle of a restart, and votes wait for the link.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from ha.dledger.links.hello import CHALLENGE_SIZE
from ha.dledger.links.link import Connection, PeerLink
from ha.dledger.links.peers import INTRODUCTION_MS, Peers
from ha.dledger.links.probe import IntroductionProbe
from ha.raft.types import Link, MemberId
from ropewalk.client.core.addresses import BadAddress, parse_address

TICK_S = 0.02
_DIAL_S = 2.0
_AGAIN_FIRST_S = 0.02
_AGAIN_MAX_S = 0.5


class Linked(Protocol):
    """A member with links that are to be kept."""

    @property
    def peers(self) -> Peers:
        """Return the links to them."""

    def tick(self, late: int) -> None:
        """Tell that time went on; `late`: how many milliseconds later than it was asked for."""


class Dialer(Protocol):
    """The sockets of the process, as `broker.remoting.shell.Shell` has them."""

    async def dial(
        self,
        host: str,
        port: int,
        make_session: Callable[[Connection], PeerLink | IntroductionProbe],
        timeout_s: float,
    ) -> object:
        """Connect to a peer, and serve the connection with the session that is made for it. Raises OSError."""

    def flush(self) -> None:
        """Write the bytes that sessions owe."""


async def run(ledger: Linked, shell: Dialer, rng: random.Random, sharing: Sequence[Linked] = ()) -> None:
    """Be a member until cancelled, and one of the groups that share its links, more of which may come.

    Raises `MemberFailed`.
    """
    async with trio.open_nursery() as nursery:
        kept: set[tuple[MemberId, Link]] = set()
        while True:
            for peer in ledger.peers.dialed_members:
                for kind in Link:
                    if (peer, kind) not in kept:
                        kept.add((peer, kind))
                        nursery.start_soon(_keep_linked, ledger, shell, rng, peer, kind, kept)
            await _tick((ledger, *sharing), shell)


async def probe_member(
    peers: Peers, shell: Dialer, member: MemberId, address: str, done: Callable[[str | None], None]
) -> None:
    """Probe an address for a member: tell `done` None if it or nothing listens there, and the reason otherwise."""
    over = trio.Event()
    asked: list[IntroductionProbe] = []
    answers: list[str | None] = []

    def session(connection: Connection) -> IntroductionProbe:
        def answered(why: str | None) -> None:
            answers.append(why)
            over.set()

        challenge = peers.draw(CHALLENGE_SIZE)
        asked.append(IntroductionProbe(connection, peers.me, member, challenge, peers.book.newest, answered))
        return asked[0]

    with trio.move_on_after(INTRODUCTION_MS / 1000) as scope:
        try:
            host, port = parse_address(address)
            await shell.dial(host, port, session, _DIAL_S)
        except (BadAddress, OSError):
            answers.append(None)
        else:
            await over.wait()
    if scope.cancelled_caught and asked:
        asked[0].end("the process there says nothing: it is no member of a DLedger group, or does not run")
    why = answers[0] if answers else None
    done(f"{member} is not what listens at {address}: {why}" if why is not None else None)
    shell.flush()


async def _tick(ledgers: Sequence[Linked], shell: Dialer) -> None:
    due = trio.current_time() + TICK_S
    await trio.sleep_until(due)
    late = int(max(trio.current_time() - due, 0.0) * 1000)
    for ledger in ledgers:
        ledger.tick(late)
    shell.flush()


async def _keep_linked(
    ledger: Linked,
    shell: Dialer,
    rng: random.Random,
    peer: MemberId,
    kind: Link,
    kept: set[tuple[MemberId, Link]],
) -> None:
    """Keep a link up until its peer is a member no more; it is in `kept` until then."""
    peers, again_s, times = ledger.peers, _AGAIN_FIRST_S, 0
    while places := peers.book.places(peer) if peer in peers.members else ():
        gone = trio.Event()
        began = trio.current_time()
        place = places[times % len(places)]
        try:
            host, port = parse_address(place)
            await shell.dial(host, port, partial(_session, ledger, peer, kind, gone.set), _DIAL_S)
        except (BadAddress, OSError) as exc:
            times += 1
            why = exc.strerror or exc if isinstance(exc, OSError) else exc
            if (status := peers.status.get(peer)) is not None:
                status.why = f"{place}: {why}"
        else:
            await gone.wait()
            times += (
                peers.link(peer, kind) is None and trio.current_time() - began < 1.0
            )  # refused, or not it
        if trio.current_time() - began > 5.0:
            again_s = _AGAIN_FIRST_S
        await trio.sleep(again_s * (0.5 + rng.random() / 2))
        again_s = min(2 * again_s, _AGAIN_MAX_S)
    kept.discard((peer, kind))


def _session(
    ledger: Linked, peer: MemberId, kind: Link, on_gone: Callable[[], None], connection: Connection
) -> PeerLink:
    return ledger.peers.dialed(connection, peer, kind, on_gone)
