"""`PullCommits`: the offsets that pulls commit at a follower, on their way to the leader.

    pull  -->  fresh  --every 100 ms, one batch at a time-->  sent  --the leader: they are on a quorum-->  forgotten
                                                                |
                                                                +--no such answer-->  again, with the next batch

A consumer commits by pulls where it takes the member for the leader, because its route is old. The follower's own table
is what the group's log says, so such a commit is the leader's to store. What is sent again may be older than a commit
that the leader has had from elsewhere since: it counts only where it is further. After five seconds nobody asks for it
any more, or an administrator's reset could be undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from broker.state.offsets import SEPARATOR
from ropewalk.errors import RemoteProtocolError

__all__ = ["PullCommits", "batch_untrusted"]

BATCH_MS: Final = 100
"""How long a commit waits for others to be forwarded with it, as a leader has it wait to be logged."""
KEEP_MS: Final = 5_000
BATCH_BYTES: Final = 12 << 10
"""A forwarded request has at most 16 KiB. What has no room waits for the next batch, which leaves at once."""
_NUMBER_BYTES: Final = 32

Key = tuple[str, str, int]
"""Topic, group, queue id."""


class PullCommits:
    """The commits of one follower that the leader has not confirmed yet."""

    __slots__ = ("_again", "_batch_at", "_fresh", "_sent")

    def __init__(self) -> None:
        self._fresh: dict[Key, tuple[int, int]] = {}
        """By queue: the offset, and when it was committed."""
        self._again: dict[Key, tuple[int, int]] = {}
        self._sent: dict[Key, tuple[int, int]] = {}
        self._batch_at = 0

    def note(self, group: str, topic: str, queue_id: int, offset: int, now: int) -> None:
        """Note a commit, the newest of its queue."""
        key = topic, group, queue_id
        self._fresh[key] = offset, now
        if self._again:
            self._again.pop(key, None)

    def keep(self, commits: Iterable[tuple[Key, int]], now: int) -> None:
        """Keep commits that this member took as the leader, and did not log any more."""
        self._again.update((key, (offset, now)) for key, offset in commits)

    def next_batch(self, now: int) -> dict[str, Any] | None:
        """Return the batch that is due now; None if there is none, or one is under way."""
        if self._sent or not (self._fresh or self._again) or now - self._batch_at < BATCH_MS:
            return None
        self._again = {key: each for key, each in self._again.items() if now - each[1] < KEEP_MS}
        room = [BATCH_BYTES]
        fresh, again = _take(self._fresh, room), _take(self._again, room)
        self._batch_at = now - BATCH_MS if self._fresh or self._again else now
        self._sent = {**again, **fresh}
        return {"offsets": _table(fresh), "again": _table(again)} if self._sent else None

    def answered(self, confirmed: bool) -> None:
        """Forget the batch that is under way, or have it sent again."""
        if not confirmed:
            self._again = {**self._sent, **self._again}
            for key in self._fresh:
                self._again.pop(key, None)
        self._sent = {}

    def take_all(self) -> dict[str, Any]:
        """Return all commits as one batch, and forget them: this member leads, and they are its own to store."""
        batch = {"offsets": _table(self._fresh), "again": _table({**self._sent, **self._again})}
        self._fresh, self._again, self._sent = {}, {}, {}
        return batch


def _take(commits: dict[Key, tuple[int, int]], room: list[int]) -> dict[Key, tuple[int, int]]:
    """Take the oldest commits for which there is room out of a table."""
    taken: dict[Key, tuple[int, int]] = {}
    pairs: set[tuple[str, str]] = set()
    for key, commit in commits.items():
        topic, group, _queue_id = key
        size = _NUMBER_BYTES + (0 if (topic, group) in pairs else len(topic) + len(group) + _NUMBER_BYTES)
        if size > room[0]:
            break
        room[0] -= size
        pairs.add((topic, group))
        taken[key] = commit
    for key in taken:
        del commits[key]
    return taken


def _table(commits: dict[Key, tuple[int, int]]) -> dict[str, dict[int, int]]:
    table: dict[str, dict[int, int]] = {}
    for (topic, group, queue_id), (offset, _at) in commits.items():
        table.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = offset
    return table


class _Batch(msgspec.Struct):
    offsets: dict[str, dict[int, int]] = {}
    again: dict[str, dict[int, int]] = {}


def batch_untrusted(body: bytes) -> dict[str, dict[str, dict[int, int]]]:
    """Return the batch that a follower has sent. Raises `RemoteProtocolError`."""
    try:
        batch = msgspec.json.decode(body, type=_Batch)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"the offsets of a follower cannot be read: {exc}") from exc
    return {"offsets": batch.offsets, "again": batch.again}
