"""A DLedger member with damage in front of the flushed or the committed end of its log: it mends before it opens.

It has links to the others and nothing else: it neither votes nor campaigns, answers no entries and serves no client.
Over the links it asks for the bytes that belong to the damaged places, and gives others what is good here, who may be
in the same need. Every place that has its bytes again is on disk before the next is asked for, so a kill loses
nothing of that. One member with a good copy is enough. When all others have said that theirs is no better, the start
is refused: only a person can decide then.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
import trio

from broker.remoting.connection import Connection
from broker.remoting.shell import Shell
from broker.replication.block_repair import Fetch
from broker.replication.dledger.blocks import BlockGiver, LedgerBlocks, NoGoodCopy
from ha.dledger import tasks
from ha.dledger.links.hello import Identity
from ha.dledger.links.link import PeerLink
from ha.dledger.links.peers import Peers
from ha.group.block_repair import RepairRefused, Span
from ha.raft.types import Link, MemberId, Message
from ropewalk.format.dledger.frame import Kind
from ropewalk.format.sidecar import BLOCK_SIZE
from store.entries.damage import find_damage
from store.entries.files import NOTHING, CommitNote, LedgerFiles
from store.integrity.block_repair import put_back
from store.integrity.checksums import Checksums, Damaged
from store.io.disk import Disk, StoreLocked
from store.io.workers import Completions, Worker
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.placing import ENTRY

__all__ = ["ImpairedMember"]

log = structlog.get_logger("broker.dledger")

PAUSE_S: Final = 0.2
SAY_AGAIN_S: Final = 30.0
LINGER_S: Final = 2.0
"""How long a member that is about to give up still answers the others."""


class ImpairedMember:
    """The links of a member that mends its log. `LinkEvents` to them, which hears nothing of what they say."""

    def __init__(
        self,
        identity: Callable[[bytes], Identity],
        addresses: Mapping[MemberId, tuple[str, int]],
        known: Mapping[MemberId, bytes],
        readmitted: frozenset[MemberId],
        root: Path,
        directory: Path,
        segment_size: int,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """`identity` tells that of a member with this incarnation; `directory` has the log's files."""
        self._disk = Disk()
        self._root = root
        self._files = LedgerFiles(directory.parent, root / "ropewalk" / "dledger", self._disk)
        self._log = CommitLog(directory, segment_size, self._disk, ENTRY)
        self._checksums = Checksums(root / "ropewalk" / "checksums", BLOCK_SIZE, self._log, self._disk)
        self._now = now_ms
        self._completions = Completions(wake)
        self._note = CommitNote(NOTHING)
        me = identity(self._files.load_incarnation())
        ballot = self._files.load_ballot()
        self.term = ballot[0] if ballot is not None else 0
        """The term of the ballot that is on disk."""
        told = {id: f"{host}:{port}" for id, (host, port) in addresses.items()}
        self.peers = Peers(me, told, known, readmitted, self, now_ms, secrets.token_bytes)
        self.mended = 0
        """Places that have their bytes again."""

    def accept(self, connection: Connection) -> PeerLink:
        """Return the session of a connection to this member's port."""
        return self.peers.accept(connection)

    async def run(self, shell: Shell, why: StoreDamaged) -> None:
        """Mend the log. Raises `StoreDamaged` where that cannot be done: `why`, or with what the others said."""
        with self._opened(why):
            places = await trio.to_thread.run_sync(self._find)
            if not places:
                raise why
            worker = Worker("ropewalk-blocks", self._completions)
            giver = BlockGiver(
                self._log,
                self._checksums.frozen,
                lambda place: None,
                lambda: (self._checksums.covered_end, self._note.commit[2]),
                worker,
            )
            self.peers.blocks.give = giver.give
            log.error("impaired: the log is damaged, and is mended from other members", reason=str(why))
            refused: StoreDamaged | None = None
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tasks.run, self, shell, random.Random())
                    while places and refused is None:
                        refused = await self._mend_all(places)
                        places = await trio.to_thread.run_sync(self._find)
                    nursery.cancel_scope.cancel()
            finally:
                self.peers.close()
                shell.flush()
                worker.stop()
        if refused is not None:
            raise refused
        log.warning("the log is whole again", places=self.mended)

    @contextmanager
    def _opened(self, why: StoreDamaged) -> Iterator[None]:
        try:
            fd = self._disk.lock(self._root / "lock")
        except StoreLocked:
            raise why from None  # the log could be opened: the damage is elsewhere
        try:
            self._log.load()
            self._checksums.load()
            if (note := self._files.load_commit()) is not None:
                self._note = note
            yield
        finally:
            self._log.close(keep_spare=True)
            self._disk.close()
            self._disk.unlock(fd)

    def _find(self) -> tuple[Damaged, ...]:
        return find_damage(self._log, self._checksums, self._note.commit, self._note.rows)

    async def _mend_all(self, places: tuple[Damaged, ...]) -> StoreDamaged | None:
        """Mend these places; return the error of one of which no other member has good bytes."""
        source = LedgerBlocks(self.peers, lambda: None)
        left, said_at = list(places), trio.current_time()
        refusals: dict[MemberId, RepairRefused] = {}
        while left:
            place = left[0]
            for member in source.members(place):
                try:
                    async with source.asking(member) as fetch:
                        await self._mend(place, fetch)
                except RepairRefused as exc:
                    refusals[member] = exc
                    continue
                log.warning("damaged bytes were repaired", offset=place.offset, end=place.end, member=member)
                self.mended += 1
                left.pop(0)
                refusals.clear()
                break
            else:
                told = "; ".join(f"{member}: {text}" for member, text in refusals.items())
                if all(isinstance(refusals.get(member), NoGoodCopy) for member in self.peers.members):
                    await trio.sleep(LINGER_S)
                    return self._lost(place, told)
                if trio.current_time() - said_at >= SAY_AGAIN_S:
                    said_at = trio.current_time()
                    log.error(
                        "still impaired", offset=place.offset, reason=told or "no other member is linked"
                    )
                await trio.sleep(PAUSE_S)

        return None

    def _lost(self, place: Damaged, told: str) -> StoreDamaged:
        segment = self._log.find(place.offset)
        assert segment is not None, place
        return StoreDamaged(
            f"damaged bytes in {segment.file.path} at byte {place.start} to {place.stop} (log offset {place.offset}), "
            f"and no other member has good ones ({told}). Nothing was changed there. `ropewalk store verify "
            f"{self._root}` lists all damage; docs/operate/dledger.md tells how a group goes on with a backup"
        )

    async def _mend(self, place: Damaged, fetch: Fetch) -> None:
        """Fetch the bytes of a place, and put them back."""
        segment = self._log.find(place.offset)
        assert segment is not None, place
        for start in range(place.start, place.stop, BLOCK_SIZE):
            stop = min(start + BLOCK_SIZE, place.stop)
            piece = Damaged(place.base_offset, start, stop, place.wanted, start)
            data = await fetch(Span(piece.offset, piece.end, place.wanted))
            await trio.to_thread.run_sync(put_back, segment, piece, data, self._root, self._disk)

    # -- news of the links -------------------------------------------------------------------------------

    def tick(self, late: int) -> None:
        """Keep the links alive, and send the bytes that were read for others."""
        self.peers.tick(self._now(), late)
        self._completions.run()

    def linked(self, peer: MemberId, number: int, kind: Link, up: bool) -> None:
        """Do nothing: a link that is up is asked for bytes."""

    def received(self, peer: MemberId, number: int, message: Message, body: bytes | memoryview) -> None:
        """Say nothing to any message: no vote, no entry."""

    def forwarded(self, link: PeerLink, kind: Kind, number: int, body: bytes) -> None:
        """Say nothing: this member is no leader, and has forwarded nothing."""

    is_empty = False

    def met(self, peer: MemberId, term: int, lost: bool) -> None:
        """Do nothing: the next start is introduced anew."""

    def noted(self) -> None:
        """Do nothing: the next start notes it."""
