"""Every code the original broker answers: built, or refused as decided."""

import re
from pathlib import Path

import pytest

from broker.namesrv.handlers import name_server_handlers
from broker.namesrv.server import NameServer
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import PULL_FAMILY, Session
from ropewalk.codes import ROPEWALK_CODES, RequestCode, ResponseCode, names_of
from ropewalk.format.remoting import JSON, ROCKETMQ
from tests.broker.harness import InProcess, request
from tests.support.links import FakeLink

MESSAGING = {10, 11, 12, 14, 15, *range(29, 39), 41, 42, 46, 310, 320, 324, 325, 361, 370, 400}
TO_CLIENTS = {39, 40, 220, 221, 307, 309, 326}
POP = {*range(200_050, 200_057), 200_151}
TOPICS_AND_GROUPS = {17, 18, 21, 200, 225, 201, 207, 215, 351, 352, 353, 401, 402, 513}
BROKER_ADMIN = {
    25,
    26,
    28,
    43,
    45,
    60,
    61,
    202,
    203,
    204,
    208,
    222,
    223,
    300,
    303,
    305,
    306,
    308,
    314,
    315,
    316,
    317,
}
BROKER_ADMIN |= {321, 323, 328, 329, 343, 345, 354, 355, *range(2001, 2005), *range(3001, 3011)}
HA = {*range(901, 909), 1007, 1008}
NAME_SERVER = {*range(100, 107), 205, 206, 216, 219, 224, 304, 318, 319, 322, 327, 904, 901}
CONTROLLER = {1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013}
NEVER_HANDLED = {13, 47}
RELAYED = {307, 309}
"""Tools ask the broker, which asks the client."""

LISTED = (
    MESSAGING
    | TO_CLIENTS
    | POP
    | TOPICS_AND_GROUPS
    | BROKER_ADMIN
    | HA
    | NAME_SERVER
    | CONTROLLER
    | NEVER_HANDLED
)
SPINE = {10, 310, 320, 11, 361, 14, 15, *range(29, 36), 38}
"""What no broker of ours may do without, whatever else is built by now."""


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])
def test_every_code_is_answered_by_its_handler_or_with_3(running: InProcess, kind: int) -> None:
    handlers = running.broker.processors.handlers
    built = handlers.hot.keys() | handlers.cold.keys()
    assert built >= SPINE
    for code in sorted(LISTED | set(ROPEWALK_CODES)):
        if kind == ROCKETMQ and code > 32_767:
            continue  # its sixteen bits are another code's
        answer = running.connect().call(code, serialize_type=kind)
        if code in built:
            assert answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
        else:
            assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_a_broker_answers_none_of_the_codes_that_it_sends_or_that_others_answer(running: InProcess) -> None:
    handlers = running.broker.processors.handlers
    built = handlers.hot.keys() | handlers.cold.keys()
    assert not built & ((TO_CLIENTS - RELAYED) | CONTROLLER | NEVER_HANDLED)
    assert not built & (NAME_SERVER - {901, 904})
    assert all(code in names_of(RequestCode) or code in ROPEWALK_CODES for code in built)


def test_the_page_of_requests_tells_served_codes_from_refused_ones(running: InProcess) -> None:
    handlers = running.broker.processors.handlers
    built = {int(code) for code in handlers.hot.keys() | handlers.cold.keys()}
    page = (Path(__file__).parents[2] / "docs" / "compat" / "requests.md").read_text()
    parts = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    told = {
        title: {int(code) for code in re.findall(r"^\| (\d+) ", text, re.M)} for title, text in parts.items()
    }
    own = set(ROPEWALK_CODES)
    assert told["Answered by a broker"] == built - own
    assert told["Between Ropewalk's own processes"] == built & own
    assert told["Refused"] >= (LISTED - NAME_SERVER - TO_CLIENTS) - built


def test_codes_that_are_answered_have_one_handler_each(running: InProcess) -> None:
    handlers = running.broker.processors.handlers
    assert not handlers.hot.keys() & handlers.cold.keys()


def test_the_fast_port_has_the_same_codes_less_the_pull_family(running: InProcess) -> None:
    whole, fast = running.broker.processors.handlers, running.broker.processors.fast_handlers
    assert fast.hot.keys() == whole.hot.keys() - PULL_FAMILY
    assert fast.cold.keys() == whole.cold.keys() - PULL_FAMILY
    assert {int(code) for code in PULL_FAMILY} == {11, 361, 30_020, 200_050, 200_052, 200_054, 200_055}


def test_a_name_server_answers_its_codes_and_3_to_a_brokers() -> None:
    server = NameServer(lambda: 1_700_000_000_000)
    handlers = name_server_handlers(server)
    link = FakeLink(("127.0.0.1", 1))
    session = Session(link, handlers, server.closed, budget=IncomingBudget(lambda: 0))
    assert server.codes >= NAME_SERVER
    for code in sorted(LISTED):
        link.sent.clear()
        session.receive(request(code, opaque=code))
        refused = f" request type {code} not supported".encode() in link.sent
        assert refused == (code not in server.codes), code
