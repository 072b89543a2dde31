"""Requests of the broker's own: answered once, by the client, by the end of its connection or by the clock."""

from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Handlers, Session
from broker.waiting.client_calls import ClientCalls
from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.support.links import FakeLink

ASKED = RequestCode.GET_CONSUMER_RUNNING_INFO


def client() -> tuple[Session, FakeLink]:
    link = FakeLink(("127.0.0.1", 40_000))
    return Session(link, Handlers(), lambda session: None, budget=IncomingBudget(lambda: 0)), link


def sent(link: FakeLink) -> Command:
    (payload,) = FrameBuffer().feed(bytes(link.sent))
    return decode_frame(payload)


def response(opaque: int, body: bytes = b"") -> bytes:
    return encode_frame(Command(ResponseCode.SUCCESS, {}, body, opaque=opaque, flag=FrameFlag.RESPONSE))


def test_an_answer_reaches_whoever_asked() -> None:
    session, link = client()
    answers: list[Command | None] = []
    assert ClientCalls().ask(session, ASKED, {"clientId": "c"}, b"?", 100, answers.append)
    request = sent(link)
    assert (request.code, request.ext, request.body, request.flag) == (ASKED, {"clientId": "c"}, b"?", 0)
    session.receive(response(request.opaque, b"!"))
    session.receive(response(request.opaque, b"again"))
    assert [answer.body for answer in answers if answer] == [b"!"]


def test_a_deadline_answers_with_nothing_and_a_late_answer_is_dropped() -> None:
    session, link = client()
    answers: list[Command | None] = []
    asks = ClientCalls()
    asks.ask(session, ASKED, {}, b"", 100, answers.append)
    asks.expire(99)
    assert answers == []
    asks.expire(100)
    session.receive(response(sent(link).opaque))
    assert answers == [None]


def test_the_end_of_the_connection_answers_with_nothing() -> None:
    session, _link = client()
    answers: list[Command | None] = []
    asks = ClientCalls()
    asks.ask(session, ASKED, {}, b"", 100, answers.append)
    session.closed()
    asks.expire(1_000)
    assert answers == [None]


def test_a_client_that_is_gone_is_not_asked() -> None:
    session, link = client()
    session.closed()
    assert not ClientCalls().ask(session, ASKED, {}, b"", 100, lambda answer: None)
    assert not link.sent


def test_an_answer_nobody_asked_for_is_dropped() -> None:
    session, link = client()
    session.receive(response(7))
    assert not link.sent
