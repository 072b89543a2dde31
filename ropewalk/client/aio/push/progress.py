"""The progress of a member: recorded at brokers, or in a file where every member gets everything.

It is recorded with every pull, every `commit_interval`, when a queue is given up, and at the end. A failure is told
once; there will be another time.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread

from ropewalk.client.aio.offset_file import load_offsets, save_offsets
from ropewalk.client.aio.push.member import Member, queue_fields
from ropewalk.client.aio.queue_reader import QueueReader
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.errors import OutcomeUnknown, RopewalkError


class Progress:
    """Records how far a member's queues are done."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._kept: dict[TopicQueue, int] = {}
        """The offsets of a broadcasting member, which no broker keeps."""

    async def open(self) -> None:
        """Load the offsets of the file, if there is one."""
        self._saving = anyio.Lock()
        if self._offsets_file is not None:
            self._kept = await anyio.to_thread.run_sync(load_offsets, self._offsets_file)

    def kept(self, queue: TopicQueue) -> int | None:
        """Return the offset that this program kept of a queue; None if it did not."""
        return self._kept.get(queue)

    async def commit_forever(self) -> None:
        while True:
            await anyio.sleep(self._member.options.commit_interval)
            for reader in list(self._member.readers.values()):
                if not reader.released:  # given up while we recorded others
                    await self.record(reader)

    async def record(self, reader: QueueReader) -> None:
        """Record the progress of a queue, if there is any. A failure is told; there will be another time."""
        async with reader.recording:
            offset = reader.cache.committable
            if offset == reader.committed or reader.topic_is_gone:
                return
            key = "progress" if self._member.options.broadcasting else ("progress", reader.queue)
            try:
                if self._member.options.broadcasting:
                    self._kept[reader.queue] = offset
                    if self._offsets_file is not None:
                        async with self._saving:  # several queues may be given up at once, and have one file
                            await anyio.to_thread.run_sync(save_offsets, self._offsets_file, dict(self._kept))
                else:
                    await self._member.links.drive(self._member.core.commit(reader.queue, offset))
            except (RopewalkError, OSError) as exc:
                if not isinstance(exc, (Unreachable, OutcomeUnknown)):
                    where = (
                        {"file": self._offsets_file}
                        if self._member.options.broadcasting
                        else queue_fields(reader.queue)
                    )
                    group = self._member.group
                    self._member.troubles.began(key, exc, "progress not saved", group=group, **where)
                return
            reader.committed = offset
            self._member.troubles.ended(key, "progress saved", group=self._member.group)

    @property
    def _offsets_file(self) -> Path | None:
        folder = self._member.options.offsets_folder
        if not self._member.options.broadcasting or folder is None:
            return None
        return Path(folder) / f"{self._member.group}.json"
