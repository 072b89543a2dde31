"""Terms vouched for by records: an entry's CRC is over its body alone, and its head says which term it is of.

The first entry of each term has a record of topic `rmq_sys_ROPEWALK_TERM`, whose body names that term. So an entry of
another term than the one before it has such a record. One elsewhere changes the members of the group
(`ropewalk.format.dledger.configuration`), and names its term too. DLedger writes none: its
logs are believed as they are, which is what it does itself. So are those of the key-value store's regions, whose
commands of all kinds have one topic.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.configuration import Configuration
from ropewalk.format.dledger.entry import HEAD_SIZE, EntryHead, configuration_in
from ropewalk.format.names import KV_TOPIC, TERM_TOPIC
from ropewalk.format.record import decode_record
from store.log.segment import Segment
from store.recovery.record_scan import ScannedRecord, scan_record

_TERM_TOPIC: Final = TERM_TOPIC.encode()
_CONFIGURATION_SIZE_MAX: Final = 64 << 10


def term_is_vouched_for(segment: Segment, position: int, head: EntryHead, term_before: int) -> bool:
    """Tell whether the term of a whole entry can be true, behind an entry of `term_before`.

    Bytes that are no record say nothing, nor do commands of a key-value store.
    """
    seen = scan_record(segment, position)
    if not isinstance(seen, ScannedRecord) or seen.topic == KV_TOPIC:
        return True
    if seen.topic != TERM_TOPIC:
        return head.term == term_before
    return _named_term(segment.map[position + HEAD_SIZE : position + head.size]) == head.term


def configuration_at(segment: Segment, position: int, size: int) -> Configuration | None:
    """Return the configuration that a whole entry of so many bytes carries; None if it carries none."""
    if size > _CONFIGURATION_SIZE_MAX:
        return None
    entry = bytes(segment.map[position : position + size])
    if _TERM_TOPIC not in entry:
        return None
    seen = scan_record(segment, position)
    if not isinstance(seen, ScannedRecord) or seen.topic != TERM_TOPIC:
        return None
    try:
        return configuration_in(entry)
    except CorruptRecord:
        return None  # it opens a term, and says no more


def _named_term(record: bytes) -> int:
    """Return the term that a record says it opens; -1 if it says none."""
    try:
        found = msgspec.json.decode(decode_record(record).body)
        return int(found["term"])
    except (CorruptRecord, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return -1
