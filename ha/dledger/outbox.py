"""`Outbox`: the messages of one group to its peers, each in a frame with the bytes of the run in it.

A run that this member appended is among the bytes that are kept (`kept`): they go to every peer, and are read from no
disk. An older run came from the disk with the event that the message answers.
"""

from __future__ import annotations

import crc32c

from ha.dledger.kept import KeptBytes
from ha.dledger.links.frames import to_fields
from ha.dledger.links.peers import Peers
from ha.raft.types import Append, Event, Fetched, MemberId, Message, link_of
from ropewalk.format.dledger.frame import encode_head_with

__all__ = ["Outbox"]


class Outbox:
    """The way of a group's messages to its peers."""

    __slots__ = ("_group", "_peers", "kept")

    def __init__(self, group: int, peers: Peers) -> None:
        """Begin with no bytes; `group` is the number of the group on the links."""
        self.kept = KeptBytes()
        """The bytes of the runs that this member appended last."""
        self._group = group
        self._peers = peers

    def send(self, peer: MemberId, message: Message, event: Event, data: bytes | memoryview) -> None:
        """Owe a peer a message; one whose link is down is lost, as on any network. HOT.

        `event` is the one that the message follows from, and `data` the bytes that came with it.
        """
        link = self._peers.link(peer, link_of(message))
        if link is None:
            return
        frame, flags, count, numbers = to_fields(message)
        body: bytes | memoryview = b""
        checksum = 0
        if isinstance(message, Append) and (run := message.run) is not None:
            if isinstance(event, Fetched) and event.run == run:
                body, checksum = data, crc32c.crc32c(data)
            else:
                body, checksum = self.kept.get(run.first, run.count)
            assert len(body) == run.size, (run, len(body))
        link.send(encode_head_with(frame, flags, self._group, count, numbers, len(body), checksum), body)
