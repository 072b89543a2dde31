"""Queue allocation among the members of a group: the AVG rule of RocketMQ's clients, to the letter. Pure.

Every member of a group computes the whole division from the same two lists, the topic's queues and the group's client
ids, each sorted, and takes its own part. Nobody hands queues out, so members in several languages share a topic only
if they all compute the same: this module copies Java's arithmetic, not merely its idea.

    8 queues, 3 members:   0 1 2 | 3 4 5 | 6 7
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

Q = TypeVar("Q")


def allocate_queues(queues: Collection[Q], members: Collection[str], me: str) -> list[Q]:
    """My part of the queues, which must be sortable. Empty if I am no member, or if there are too many of us."""
    ids = sorted(members, key=sort_key)
    if me not in ids or not queues:
        return []
    ordered = sorted(queues)  # type: ignore[type-var]
    return [ordered[position] for position in share_of(len(ordered), len(ids), ids.index(me))]


def share_of(queues: int, members: int, index: int) -> range:
    """Return the positions, among so many sorted queues, of the member at `index` of so many sorted members."""
    rest = queues % members
    size = 1 if queues <= members else queues // members + (1 if 0 <= index < rest else 0)
    start = index * size if index < rest else index * size + rest
    return range(start, min(start + size, queues))


def sort_key(text: str) -> bytes:
    """Java compares strings by UTF-16 units, which differs from ours beyond the basic plane."""
    return text.encode("utf-16-be", "surrogatepass")
