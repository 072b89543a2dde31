"""Did any SEND_OK of a DLedger leader leave before a follower had said that the entry is on its disk?

Answered from the leader's trace, as `tests.crash.trace` answers for its own disk. What the leader sent to its followers
tells which index stands at which log offset; what they answered, how far they have it. An answer covers a SEND_OK if
the call that brought it returned before the call began that sent the SEND_OK.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ropewalk.codes import ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head
from ropewalk.format.dledger.frame import OK, Frames, Kind
from ropewalk.format.record import parse_message_id
from ropewalk.format.remoting import FrameBuffer, decode_frame
from tests.crash.trace import Call, Unreadable, Verdict, judge

_MAGIC = b"RWDL"
_INTRODUCTION_HEAD = 8
_RECEIVES = {"recvfrom", "recvmsg", "read"}
_SENDS = {"sendto", "sendmsg", "write", "writev"}


@dataclass(slots=True)
class QuorumVerdict:
    """The verdict on the trace of a leader."""

    own_disk: Verdict
    replies: int = 0
    answers: int = 0
    """Answers of followers that confirm entries."""
    early: list[str] = field(default_factory=list)
    """SEND_OK replies that left before a follower had confirmed their entry: each a broken promise."""


class _Direction:
    """The bytes of a link in one direction: an introduction, then frames."""

    def __init__(self) -> None:
        self._introduction = b""
        self._is_introduced = False
        self.frames = Frames()

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that belong to frames."""
        if self._is_introduced:
            return data
        self._introduction += data
        while self._introduction.startswith(_MAGIC) and len(self._introduction) >= _INTRODUCTION_HEAD:
            size = _INTRODUCTION_HEAD + int.from_bytes(self._introduction[6:8], "big")
            if len(self._introduction) < size:
                return b""
            self._introduction = self._introduction[size:]
        if len(self._introduction) < len(_MAGIC):
            return b""
        self._is_introduced = True
        return self._introduction


def judge_quorum(calls: Sequence[Call], segment_size: int) -> QuorumVerdict:
    """Hold every SEND_OK of a leader's trace against its own flushes, and its followers' answers."""
    ordered = sorted((call for call in calls if call.result > 0), key=lambda call: call.returned)
    links = {call.target for call in ordered if _is_link(call)}
    verdict = QuorumVerdict(judge([call for call in calls if call.target not in links], segment_size))
    directions: dict[tuple[str, bool], _Direction] = defaultdict(_Direction)
    outgoing: dict[str, FrameBuffer] = defaultdict(FrameBuffer)
    indexes: dict[int, int] = {}
    confirmed: list[tuple[int, int]] = []
    clients: set[str | None] = set()
    for call in ordered:
        if call.target in links and (call.name in _RECEIVES or call.name in _SENDS):
            is_in = call.name in _RECEIVES
            way = directions[call.target, is_in]
            for frame in way.frames.feed(way.feed(call.data())):
                if is_in and frame.kind is Kind.APPEND_ANSWER and frame.flags & OK:
                    verdict.answers += 1
                    confirmed.append((call.returned, frame.numbers[1]))
                elif not is_in and frame.kind is Kind.APPEND and frame.count:
                    _learn(bytes(frame.body), indexes)
        elif call.name.startswith("accept"):
            clients.add(call.accepted())
        elif call.name in _SENDS and call.target in clients:
            _judge_replies(call, outgoing, indexes, confirmed, verdict)
    return verdict


def _is_link(call: Call) -> bool:
    is_traffic = call.name in _RECEIVES or call.name in _SENDS
    return is_traffic and call.target.startswith("socket:") and call.data().startswith(_MAGIC)


def _learn(body: bytes, indexes: dict[int, int]) -> None:
    at = 0
    while at < len(body):
        head = decode_head(body, at)
        indexes[head.pos + HEAD_SIZE] = head.index
        at += head.size


def _judge_replies(
    call: Call,
    outgoing: dict[str, FrameBuffer],
    indexes: dict[int, int],
    confirmed: list[tuple[int, int]],
    verdict: QuorumVerdict,
) -> None:
    try:
        replies = [decode_frame(payload) for payload in outgoing[call.target].feed(call.data())]
    except RopewalkError as exc:
        raise Unreadable(f"{call.name} on {call.target} at line {call.began}: {exc}") from exc
    for reply in replies:
        if reply.code != ResponseCode.SUCCESS or "msgId" not in reply.ext:
            continue
        verdict.replies += 1
        for text in reply.ext["msgId"].split(","):
            index = indexes.get(parse_message_id(text)[2])
            if index is None or not any(at < call.began and durable >= index for at, durable in confirmed):
                verdict.early.append(
                    f"the SEND_OK for {text}, entry {index}, left at line {call.began}, "
                    "and no follower had confirmed it"
                )
