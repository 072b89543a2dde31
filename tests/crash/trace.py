"""Did any SEND_OK leave before the flush that covers it? Answered from what strace saw of the real process.

Appends go through a shared map and are no system calls, so the check stands on what is visible. A record cannot be
in the log before its request was received. A flush that covers it is therefore an `fdatasync` of the record's own
segment that *began* after the call returned that brought the last byte of the request, and that came back with 0
before the call began that sent the reply's last byte. Every correct broker passes. A flush that began between
receiving and appending would pass too: the check may miss a fault, it never invents one.

What counts is the order of lines in one trace file: strace holds a thread at both ends of every call, so a call that
another thread's doings made possible stands behind them. Messages that ask not to wait (WAIT=false) are exempt.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.batch import split_batch
from ropewalk.format.properties import P, parse_properties
from ropewalk.format.record import parse_message_id
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame

STRACE_OPTIONS = (
    "-D",  # the broker stays our child, and the tracer steps aside
    "-f",
    "--seccomp-bpf",  # only the calls below stop the process
    "-ttt",
    "-y",
    "-xx",
    "-s",
    "400000",
    "-e",
    "trace=accept,accept4,fdatasync,fsync,recvfrom,recvmsg,read,sendto,sendmsg,write,writev",
    "-e",
    "signal=none",
)
_CODES = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
_FLUSHES = {"fdatasync", "fsync"}
_LOGS = "/commitlog/", "/data/"
"""Where the segments of a log are: of a plain one, and of one of entries."""
_RECEIVES = {"recvfrom", "recvmsg", "read"}
_REPLIES = {"sendto", "sendmsg", "write", "writev"}

_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_BEGIN = re.compile(r"(\w+)\((\d+)<((?:\\x[0-9a-f]{2})*)>(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_ACCEPTED = re.compile(r"\) += \d+<((?:\\x[0-9a-f]{2})*)>$")
_RESULT = re.compile(r"\) += (-?\d+)[^=]*$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


class Unreadable(AssertionError):
    """The trace is not what this module knows how to read: a verdict from it would mean nothing."""


@dataclass(slots=True)
class Call:
    """One system call on a descriptor: where in the trace it began and returned, and what it carried."""

    name: str
    target: str
    """What the descriptor stands for: a path, or `socket:[inode]`."""
    text: str
    began: int
    returned: int = -1
    result: int = -1

    def accepted(self) -> str | None:
        """What the new descriptor of an `accept` stands for."""
        match = _ACCEPTED.search(self.text)
        return None if match is None else _text(match.group(1))

    def data(self) -> bytes:
        """The bytes that really passed."""
        pieces = []
        for match in _STRING.finditer(self.text):
            if match.group(2):
                raise Unreadable(f"strace cut a string of {self.name} short; raise -s")
            pieces.append(bytes.fromhex(match.group(1).replace("\\x", "")))
        return b"".join(pieces)[: max(self.result, 0)]


def _text(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\x", "")).decode(errors="replace")


def read_calls(lines: Iterable[str]) -> Iterator[Call]:
    """Every finished call, in the order in which they returned."""
    unfinished: dict[str, Call] = {}
    for number, line in enumerate(lines):
        match = _LINE.match(line.rstrip("\n"))
        if match is None:
            raise Unreadable(f"line {number}: {line[:120]!r}")
        thread, _time, text = match.groups()
        if (begin := _BEGIN.match(text)) is not None:
            name, _fd, target, rest = begin.groups()
            call = Call(name, _text(target), rest, number)
            if rest.endswith("<unfinished ...>"):
                unfinished[thread] = call
                continue
        elif (resumed := _RESUMED.match(text)) is not None:
            known = unfinished.pop(thread, None)
            if known is None or known.name != resumed.group(1):
                continue  # a call on no descriptor
            call = known
            call.text += resumed.group(2)
        else:
            continue  # an exit, or a call on no descriptor
        result = _RESULT.search(call.text)
        if result is None:
            continue  # the process ended inside the call
        call.returned, call.result = number, int(result.group(1))
        yield call


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request to store something, as received."""

    received: int
    """The line on which the call returned that brought its last byte."""
    waits: bool


@dataclass(slots=True)
class Verdict:
    """What a trace shows."""

    replies: int = 0
    """SEND_OK replies that had to wait for a flush."""
    exempt: int = 0
    """SEND_OK replies to messages that asked not to wait."""
    exempt_early: int = 0
    """Those among them that did leave before a flush covered them."""
    flushes: int = 0
    early: list[str] = field(default_factory=list)
    """SEND_OK replies that left before a flush covered them: each a broken promise."""


def judge(calls: Iterable[Call], segment_size: int) -> Verdict:
    """Hold every SEND_OK of a trace against the flushes before it."""
    verdict = Verdict()
    incoming: dict[str, FrameBuffer] = defaultdict(FrameBuffer)
    outgoing: dict[str, FrameBuffer] = defaultdict(FrameBuffer)
    requests: dict[tuple[str, int], Waiting] = {}
    flushes: dict[str, list[Call]] = defaultdict(list)  # by segment, in the order in which they returned
    clients: set[str | None] = (
        set()
    )  # other sockets of the process, like the one that wakes its loop, carry no frames
    for call in sorted(calls, key=lambda call: call.returned):
        if call.name in _FLUSHES and any(folder in call.target for folder in _LOGS):
            if call.result == 0:
                verdict.flushes += 1
                flushes[call.target.rpartition("/")[2]].append(call)
        elif call.name.startswith("accept"):
            clients.add(call.accepted())
        elif call.result <= 0 or call.target not in clients:
            continue
        elif call.name in _RECEIVES:
            for request in _frames(incoming, call):
                if request.code in _CODES and not request.flag & FrameFlag.RESPONSE:
                    requests[call.target, request.opaque] = Waiting(call.returned, _waits(request))
        elif call.name in _REPLIES:
            for reply in _frames(outgoing, call):
                waiting = requests.pop((call.target, reply.opaque), None)
                if waiting is not None and reply.code == ResponseCode.SUCCESS:
                    _judge_reply(verdict, reply, waiting, call, flushes, segment_size)
    return verdict


def _frames(buffers: dict[str, FrameBuffer], call: Call) -> list[Command]:
    try:
        return [decode_frame(payload) for payload in buffers[call.target].feed(call.data())]
    except RopewalkError as exc:
        raise Unreadable(f"{call.name} on {call.target} at line {call.began}: {exc}") from exc


def _waits(request: Command) -> bool:
    """Whether the producer asked for the flush: a batch does if it and one of its messages do."""
    own = parse_properties(request.ext.get("i", request.ext.get("properties", "")))
    if own.get(P.WAIT, "true") == "false":
        return False
    if request.code != RequestCode.SEND_BATCH_MESSAGE:
        return True
    return any(
        parse_properties(item.properties).get(P.WAIT, "true") != "false" for item in split_batch(request.body)
    )


def _judge_reply(
    verdict: Verdict,
    reply: Command,
    waiting: Waiting,
    sending: Call,
    flushes: dict[str, list[Call]],
    segment_size: int,
) -> None:
    covered = True
    for message_id in reply.ext["msgId"].split(","):
        offset = parse_message_id(message_id)[2]
        segment = f"{offset - offset % segment_size:020}"
        known = flushes[segment]
        # They are ordered by their return; those that returned before the reply began come first.
        before = known[: bisect_left(known, sending.began, key=lambda flush: flush.returned)]
        if not any(flush.began > waiting.received for flush in before[-8:]):
            covered = False
    if waiting.waits:
        verdict.replies += 1
        if not covered:
            verdict.early.append(
                f"the reply to opaque {reply.opaque} on {sending.target} (log offset of its last message {offset}) "
                f"left at line {sending.began}; its request came at line {waiting.received}, and no flush of "
                f"segment {segment} lies between"
            )
    else:
        verdict.exempt += 1
        verdict.exempt_early += not covered


def judge_file(path: Path, segment_size: int) -> Verdict:
    """The verdict on a finished trace file."""
    with path.open() as lines:
        return judge(read_calls(lines), segment_size)
