"""Records of the hidden topic `rmq_sys_ROPEWALK_SINK`: the states of sinks, as they change. Pure.

    tag S   the states of the sinks that changed
    tag T   a table of all sinks: whoever reads begins at the newest one
    tag C   rows of an open batch that an attempt claimed: earlier attempts had stored them

A body of states is JSON, a list of objects. Each state is whole, so a later one of the same sink replaces an earlier
one, and the table is written again before retention takes it away. `gone` names sinks that were forgotten. Claims are
read from where the oldest open batch began, as its rows are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from broker.sinks.windows import Sink, Task
from ropewalk.client.core.produce.row_identity import RowIdentity, Writer
from ropewalk.format.properties import P, encode_properties, tags_code

__all__ = [
    "CHANGE",
    "CLAIMS",
    "TABLE",
    "apply_states",
    "decode_claims",
    "encode_claims",
    "encode_states",
    "properties_of",
    "tag_code_of",
]

CHANGE: Final = "S"
TABLE: Final = "T"
CLAIMS: Final = "C"


class _State(msgspec.Struct, omit_defaults=True):
    sink_id: str
    epoch: int = 0
    brokers: str = ""
    query: str = ""
    batch: int = -1
    digest: str = ""
    since: int = -1
    topics: tuple[str, ...] = ()
    touched_ms: int = 0
    announced: int = 0
    is_forgotten: bool = False
    gone: bool = False
    is_topic_gone: bool = False


class _Claims(msgspec.Struct):
    sink_id: str
    query: str
    batch: int
    writer: tuple[int, int, int]
    keys: list[str]


_decode = msgspec.json.Decoder(list[_State]).decode
_decode_claims = msgspec.json.Decoder(_Claims).decode


def encode_states(sinks: Iterable[Sink], gone: Iterable[str] = ()) -> bytes:
    """Encode the body of a record."""
    states = [
        _State(
            sink.sink_id,
            sink.epoch,
            sink.brokers,
            sink.query,
            sink.batch,
            sink.digest,
            sink.since,
            sink.topics,
            sink.touched_ms,
            sink.announced,
            sink.is_forgotten,
            is_topic_gone=sink.is_topic_gone,
        )
        for sink in sinks
    ]
    return msgspec.json.encode([*states, *(_State(name, gone=True) for name in gone)])


def apply_states(sinks: dict[str, Sink], body: bytes) -> None:
    """Bring a table of sinks up to a record. Raises ValueError for a body that is none of ours."""
    for state in _decode(body):
        if state.gone:
            sinks.pop(state.sink_id, None)
            continue
        sinks[state.sink_id] = Sink(
            state.sink_id,
            state.epoch,
            state.brokers,
            state.query,
            state.batch,
            state.digest,
            state.since,
            state.topics,
            state.is_topic_gone,
            state.touched_ms,
            max(state.announced, state.epoch),
            state.is_forgotten,
        )


def encode_claims(task: Task, keys: Sequence[bytes]) -> bytes:
    """Encode the body of a record of claims."""
    names = [key.decode() for key in keys]
    return msgspec.json.encode(_Claims(task.sink_id, task.query, task.batch, task.writer, names))


def decode_claims(body: bytes) -> list[RowIdentity]:
    """Return the rows that a record of claims names. Raises ValueError for a body that is none of ours."""
    claims = _decode_claims(body)
    writer = Writer(*claims.writer)
    return [
        RowIdentity(claims.sink_id, claims.query, claims.batch, writer, key.encode()) for key in claims.keys
    ]


def properties_of(tag: str) -> bytes:
    """Return the property text of a record."""
    return encode_properties({P.TAGS: tag})


def tag_code_of(tag: str) -> int:
    """Return the tag hash of a record, as its queue entry holds it."""
    return tags_code(tag)
