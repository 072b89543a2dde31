from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.core.connection import (
    OPAQUE_MAX,
    PeerRequest,
    RemotingCore,
    Response,
    refuse_peer_request,
)
from ropewalk.codes import ResponseCode
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame


def sent(frame: bytes) -> Command:
    (payload,) = FrameBuffer().feed(frame)
    return decode_frame(payload)


def answer(opaque: int, remark: str = "") -> bytes:
    return encode_frame(Command(10, opaque=opaque).reply(ResponseCode.SUCCESS, remark))


def test_an_answer_finds_its_request_whatever_the_order() -> None:
    core = RemotingCore()
    first, _ = core.request(Command(10))
    second, _ = core.request(Command(11))
    events = core.feed(answer(second, "two") + answer(first, "one"))
    assert [(event.opaque, event.command.remark) for event in events if isinstance(event, Response)] == [
        (second, "two"),
        (first, "one"),
    ]
    assert not core.pending


def test_the_command_that_was_handed_in_can_be_sent_again() -> None:
    core = RemotingCore()
    command = Command(10, {"topic": "T"}, b"body")
    opaques = [sent(core.request(command)[1]).opaque for _ in range(3)]
    assert opaques == [0, 1, 2]
    assert command.opaque == 0


def test_an_answer_after_its_asker_gave_up_is_counted_and_dropped() -> None:
    core = RemotingCore()
    opaque, _ = core.request(Command(10))
    assert core.forget(opaque)
    assert not core.forget(opaque)
    assert core.feed(answer(opaque)) == []
    assert core.ignored_count == 1


def test_an_answer_nobody_asked_for_is_counted_and_dropped() -> None:
    core = RemotingCore()
    assert core.feed(answer(77)) == []
    assert core.ignored_count == 1


def test_a_second_answer_to_the_same_request_is_dropped() -> None:
    core = RemotingCore()
    opaque, _ = core.request(Command(10))
    assert len(core.feed(answer(opaque) + answer(opaque))) == 1
    assert core.ignored_count == 1


def test_a_peers_request_is_surfaced_even_under_an_opaque_of_ours() -> None:
    core = RemotingCore()
    opaque, _ = core.request(Command(10))
    (event,) = core.feed(encode_frame(Command(40, opaque=opaque)))
    assert isinstance(event, PeerRequest)
    assert event.command.code == 40
    assert core.pending == {opaque}


def test_a_oneway_request_is_marked_and_not_awaited() -> None:
    core = RemotingCore()
    command = sent(core.oneway(Command(15)))
    assert command.is_oneway
    assert not core.pending


def test_a_lost_connection_names_everybody_who_waits() -> None:
    core = RemotingCore()
    opaques = [core.request(Command(10))[0] for _ in range(3)]
    assert core.fail() == tuple(opaques)
    assert core.fail() == ()


def test_the_counter_wraps_to_zero_and_skips_what_is_still_awaited() -> None:
    core = RemotingCore(first_opaque=OPAQUE_MAX)
    assert core.request(Command(10))[0] == OPAQUE_MAX
    assert core.request(Command(10))[0] == 0
    again = RemotingCore(first_opaque=OPAQUE_MAX)
    assert again.request(Command(10))[0] == OPAQUE_MAX
    again._next_opaque = OPAQUE_MAX
    assert again.request(Command(10))[0] == 0


@given(st.data())
def test_events_do_not_depend_on_how_the_bytes_were_cut(data: st.DataObject) -> None:
    frames = b"".join(
        encode_frame(Command(40, opaque=number)) if number % 3 == 0 else answer(number)
        for number in range(12)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(frames)), max_size=8)))
    core = RemotingCore()
    for _ in range(12):
        core.request(Command(10))
    events = []
    for start, end in zip([0, *cuts], [*cuts, len(frames)], strict=True):
        events += core.feed(frames[start:end])
    assert [event.command.opaque for event in events] == list(range(12))
    assert [isinstance(event, PeerRequest) for event in events] == [number % 3 == 0 for number in range(12)]


def test_a_client_that_offers_nothing_refuses_with_code_3() -> None:
    reply = refuse_peer_request(Command(307, opaque=9))
    assert reply is not None
    assert (reply.code, reply.opaque, reply.is_response) == (3, 9, True)
