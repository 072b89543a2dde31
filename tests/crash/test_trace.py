"""The judge of traces, judged: hand-made traces with a known verdict."""

import pytest

from ropewalk.client.core.messages import Message, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import FrameFlag
from ropewalk.format.record import encode_host, message_id
from ropewalk.format.remoting import Command, encode_frame
from tests.crash.trace import Unreadable, Verdict, judge, read_calls

SEGMENT = 1 << 20


def hexed(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def call(thread: int, name: str, fd: int, target: str, arguments: str, result: str) -> str:
    return f"{thread}  17.5 {name}({fd}<{hexed(target.encode())}>{arguments}) = {result}"


def received(data: bytes, thread: int = 1) -> str:
    return call(
        thread, "recvfrom", 9, "socket:[77]", f', "{hexed(data)}", 262144, 0, NULL, NULL', str(len(data))
    )


def sent(data: bytes, result: int | None = None) -> str:
    size = len(data) if result is None else result
    return call(1, "sendto", 9, "socket:[77]", f', "{hexed(data)}", {len(data)}, 0, NULL, 0', str(size))


def flush(result: str = "0", segment: int = 0) -> str:
    return call(2, "fdatasync", 5, f"/data/commitlog/{segment:020}", "", result)


def request(opaque: int, *, wait: bool = True) -> bytes:
    properties = {} if wait else {"WAIT": "false"}
    command = send_request("T", Queue("b", 0), Message(b"body", properties=properties), "K", 0)
    command.opaque = opaque
    return encode_frame(command)


def reply(opaque: int, offset: int = 0, code: int = 0) -> bytes:
    ext = {"msgId": message_id(encode_host("127.0.0.1", 10911), offset), "queueId": "0", "queueOffset": "0"}
    return encode_frame(Command(code, ext, opaque=opaque, flag=FrameFlag.RESPONSE))


def verdict_on(*lines: str) -> Verdict:
    client = f"9<{hexed(b'socket:[77]')}>"
    accepted = call(1, "accept4", 7, "socket:[70]", ", {...}, [128 => 16], SOCK_CLOEXEC", client)
    return judge(read_calls([accepted, *lines]), SEGMENT)


def test_a_flush_between_request_and_reply_covers_it() -> None:
    verdict = verdict_on(received(request(1)), flush(), sent(reply(1)))
    assert (verdict.replies, verdict.early) == (1, [])


def test_a_reply_without_a_flush_is_early() -> None:
    assert len(verdict_on(received(request(1)), sent(reply(1))).early) == 1


def test_a_flush_before_the_request_covers_nothing() -> None:
    assert len(verdict_on(flush(), received(request(1)), sent(reply(1))).early) == 1


def test_a_flush_that_began_before_the_request_was_received_covers_nothing() -> None:
    whole = flush()
    begin = whole[: whole.index(")")] + " <unfinished ...>"
    verdict = verdict_on(begin, received(request(1)), "2  17.6 <... fdatasync resumed>) = 0", sent(reply(1)))
    assert len(verdict.early) == 1


def test_a_flush_that_has_not_returned_when_the_reply_leaves_covers_nothing() -> None:
    whole = flush()
    begin = whole[: whole.index(")")] + " <unfinished ...>"
    verdict = verdict_on(received(request(1)), begin, sent(reply(1)), "2  17.6 <... fdatasync resumed>) = 0")
    assert len(verdict.early) == 1


def test_a_failed_flush_and_a_flush_of_another_segment_cover_nothing() -> None:
    failed = flush("-1 EIO (Input/output error)")
    assert len(verdict_on(received(request(1)), failed, sent(reply(1))).early) == 1
    assert len(verdict_on(received(request(1)), flush(), sent(reply(1, SEGMENT + 5))).early) == 1
    assert not verdict_on(received(request(1)), flush(segment=SEGMENT), sent(reply(1, SEGMENT + 5))).early


def test_a_reply_cut_over_two_sends_leaves_with_its_last_byte() -> None:
    data = reply(1)
    verdict = verdict_on(received(request(1)), sent(data, 10), flush(), sent(data[10:]))
    assert (verdict.replies, verdict.early) == (1, [])


def test_requests_that_arrive_in_pieces_and_in_one_piece_are_told_apart() -> None:
    both = request(1) + request(2)
    verdict = verdict_on(
        received(both[:100]),
        flush(),
        received(both[100:]),
        sent(reply(1)),
        flush(),
        sent(reply(2)),
    )
    assert verdict.replies == 2
    assert len(verdict.early) == 1
    assert "opaque 1" in verdict.early[0]


def test_who_asks_not_to_wait_is_exempt_and_other_answers_do_not_count() -> None:
    verdict = verdict_on(
        received(request(1, wait=False)), sent(reply(1)), received(request(2)), sent(reply(2, code=10))
    )
    assert (verdict.replies, verdict.exempt, verdict.exempt_early, verdict.early) == (0, 1, 1, [])


def test_what_the_process_tells_itself_over_a_socket_is_no_reply() -> None:
    wake = call(2, "sendto", 12, "socket:[3]", ', "\\x00", 1, 0, NULL, 0', "1")
    verdict = verdict_on(*[wake] * 5, received(request(1)), flush(), sent(reply(1)))
    assert (verdict.replies, verdict.early) == (1, [])


def test_a_trace_whose_strings_were_cut_gives_no_verdict() -> None:
    cut = received(request(1)).replace('", 262144', '"..., 262144')
    with pytest.raises(Unreadable):
        verdict_on(cut)
