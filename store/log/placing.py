"""Placing of records in a log: side by side as in RocketMQ's, or each behind the head of an entry as in DLedger's.

    PLAIN    | record | record | ... | blank     of RocketMQ: size, magic |
    ENTRY    | head | record | head | record | ... | filler   of DLedger: -1, size |

A record's *place* is where its head begins, which is the record itself under PLAIN. Queue entries, message ids and the
record's own offset field name the record; what walks the log goes from place to place. Nothing else in the store knows
the difference: it asks for `head_size`, the bytes of a filler, and the largest record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.format.dledger.entry import ENTRY_SIZE_MAX, HEAD_SIZE, encode_filler_head
from ropewalk.format.record import encode_blank


@dataclass(frozen=True, slots=True)
class Placing:
    """The bytes around the records of a log. Sizes in bytes."""

    head_size: int
    """Of what stands in front of each record."""
    record_size_max: int
    filler: Callable[[int], bytes]
    """The head of the filler of the last so many bytes of a segment; the rest of it is zeros."""


PLAIN = Placing(0, 0x7FFFFFFF, encode_blank)
ENTRY = Placing(HEAD_SIZE, ENTRY_SIZE_MAX - HEAD_SIZE, encode_filler_head)
