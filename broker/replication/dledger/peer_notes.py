"""`PeerNotes`: the incarnations that a member of a group knows, as they are noted on its disk.

    <root>/ropewalk/dledger/peers.json     of each peer the one that was heard first, or again after it was let in with
                                           an empty log; the own one once it votes after that

They tell a member that lost its log, and must not vote with an empty one, from a member that did not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from broker.state.json_file import StoreConfigDamaged
from ha.dledger.links.peers import Peers
from ha.raft.types import MemberId
from store.io.disk import Disk
from store.io.workers import Worker

__all__ = ["PeerNotes"]


class _Readmitted(msgspec.Struct):
    """A member that was let in again after it had lost its log, with the incarnation that it has since."""

    readmitted: str
    """Empty until it is heard."""


class PeerNotes:
    """The file of known incarnations, and its content at the start."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        """Begin with nothing known; `load` reads the file in `folder`."""
        self.known: dict[MemberId, bytes] = {}
        self.readmitted: frozenset[MemberId] = frozenset()
        self._path = folder / "peers.json"
        self._disk = disk

    def load(self) -> None:
        """Read the file, if there is one. Raises `StoreConfigDamaged`."""
        data = self._disk.read_file(self._path)
        if data is None:
            return
        try:
            noted = msgspec.json.decode(data, type=dict[str, str | _Readmitted])
            texts = {id: each if isinstance(each, str) else each.readmitted for id, each in noted.items()}
            self.known = {id: bytes.fromhex(text) for id, text in texts.items() if text}
        except (msgspec.MsgspecError, ValueError) as exc:
            raise StoreConfigDamaged(
                f"{self._path} cannot be read ({exc}). It tells a member that lost its log from one that did not: put "
                "back a copy, or remove it if no member of the group was ever wiped"
            ) from exc
        self.readmitted = frozenset(id for id, each in noted.items() if not isinstance(each, str))

    def write(self, peers: Peers, worker: Worker, done: Callable[[], None]) -> None:
        """Write the incarnations that the links know now, on `worker`; `done` is called when they are on disk."""
        noted = {
            id: _Readmitted(peers.known.get(id, b"").hex())
            if id in peers.readmitted
            else peers.known[id].hex()
            for id in sorted({*peers.known, *peers.readmitted})
        }
        data = msgspec.json.encode(noted)
        worker.submit(lambda: self._disk.replace_file(self._path, data), lambda _done: done())
