"""Read every message that is there after a drill: asked of a broker as a consumer would, and read from the files of
stopped ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.client.core.messages import command_of, pull_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError, RopewalkError, error_for
from ropewalk.format.headers import GetMaxOffsetHeader, OffsetResponseHeader, QueueHeader, decode_header
from ropewalk.format.record import Record, decode_records
from store.offline.reader import Damage, LogFile, find_log_files, read_log
from tools.drill.audit import Found
from tools.drill.messages import identify

_PULL_COUNT = 512
_TIMEOUT_S = 5.0
_BLOCK = 1024 * 1024


def found_of(run: str, record: Record) -> Found:
    """A record as the audit sees it."""
    identity, intact = identify(run, record.body)
    return Found(record.queue_id, record.queue_offset, identity, intact)


async def pull_all(address: str, topic: str, run: str, queues: int) -> list[Found]:
    """Every message of the topic, as a consumer gets it. Raises RopewalkError."""
    found: list[Found] = []
    async with open_connection(address, timeout=_TIMEOUT_S) as connection:
        for queue in range(queues):
            offset = await _ask(connection, RequestCode.GET_MIN_OFFSET, QueueHeader(topic, queue))
            end = await _ask(connection, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue))
            while offset < end:
                answer = await connection.call(
                    pull_request(topic, Queue("", queue), offset, _PULL_COUNT, "*", 0)
                )
                if answer.code != ResponseCode.SUCCESS:
                    raise RopewalkError(
                        f"{address}: no message at offset {offset} of queue {queue}, which ends at {end}: "
                        f"code {answer.code}, {answer.remark or 'no remark'}"
                    )
                records = [found_of(run, record) for record in decode_records(answer.body)]
                offsets = [offset - 1, *(record.queue_offset for record in records)]
                if not records or offsets != sorted(set(offsets)):  # else it would be asked for ever
                    raise RemoteProtocolError(
                        f"{address}: the messages at offset {offset} of queue {queue} are others"
                    )
                found += records
                offset = offsets[-1] + 1
    return found


async def _ask(connection: AsyncConnection, code: int, header: QueueHeader | GetMaxOffsetHeader) -> int:
    answer = await connection.call(command_of(code, header))
    if answer.code != ResponseCode.SUCCESS:
        raise error_for(answer.code, f"{connection.address}: {answer.remark or 'no offset'}")
    return decode_header(OffsetResponseHeader, answer.ext).offset


@dataclass(frozen=True, slots=True)
class Replica:
    """The log of a stopped member."""

    found: list[Found]
    """The drill's messages, queue by queue in order of their offsets."""
    end: int
    damages: list[str]


def read_replica(store: Path, topic: str, run: str) -> Replica:
    """Read a stopped member's log record by record. Raises `UnreadableStore`."""
    found: list[Found] = []
    damages: list[str] = []
    end = 0
    for item in read_log(find_log_files(store)):
        if isinstance(item, Damage):
            damages.append(str(item))
            continue
        end = item.offset + item.size
        if item.topic == topic:
            found.append(found_of(run, item))
    found.sort(key=lambda record: record.queue)  # stable: within a queue the log's order stays
    return Replica(found, end, damages)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two logs, byte by byte."""

    equal: bool
    size: int
    """Bytes that were compared."""
    text: str


def compare_logs(one: Path, other: Path) -> Comparison:
    """Compare the segments of two stopped members byte for byte. Raises `UnreadableStore`.

    What retention has removed from one of them is left out. A file that is not there, or ends earlier, counts as
    zeros: segments are allocated ahead, and how far ahead is each member's own affair.
    """
    logs = find_log_files(one), find_log_files(other)
    if not (logs[0] and logs[1]):
        empty = [not any(log) for log in logs]
        return Comparison(all(empty), 0, "both are empty" if all(empty) else "one of them is empty")
    begin = max(log[0].base_offset for log in logs)
    end = max(log[-1].end_offset for log in logs)
    for offset in range(begin, end, _BLOCK):
        size = min(_BLOCK, end - offset)
        mine, theirs = (_read(log, offset, size) for log in logs)
        if mine != theirs:
            at = next(
                index for index, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]
            )
            return Comparison(False, offset + at - begin, f"they differ at log offset {offset + at}")
    return Comparison(True, end - begin, f"{end - begin:,} bytes from offset {begin} on are the same")


def _read(log: tuple[LogFile, ...], offset: int, size: int) -> bytes:
    """A piece of a log, zeros where it has no file."""
    data = bytearray(size)
    for file in log:
        begin, end = max(offset, file.base_offset), min(offset + size, file.end_offset)
        if begin < end:
            with file.path.open("rb") as stream:
                stream.seek(begin - file.base_offset)
                stream.readinto(memoryview(data)[begin - offset : end - offset])
    return bytes(data)
