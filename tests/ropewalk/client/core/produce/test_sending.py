"""The producer's decisions, told as conversations: no socket, no waiting."""

import zlib
from dataclasses import dataclass
from typing import Any

import pytest

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.ids import UniqueKeys
from ropewalk.client.core.messages import Message, SendStatus
from ropewalk.client.core.produce.attempts import RETRY_CODES
from ropewalk.client.core.produce.options import ProducerOptions
from ropewalk.client.core.produce.results import split_result
from ropewalk.client.core.produce.sending import ProducerCore
from ropewalk.client.core.produce.transacting import TransactionCore
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import Ask
from ropewalk.codes import MessageSysFlag, RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError, OutcomeUnknown, Refused, Rejected, RopewalkError
from ropewalk.format.batch import split_batch
from ropewalk.format.headers import RecallHandle
from ropewalk.format.properties import P, parse_properties
from ropewalk.format.remoting import Command
from tests.ropewalk.client.scripted import Script, route_body, stored

TEMPLATE = "TBW102"


@dataclass
class Stage:
    """A producer core and the script it talks to."""

    script: Script
    core: ProducerCore

    def sends(self) -> list[tuple[str, Command]]:
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        return [(address, command) for address, command in self.script.asked if command.code in codes]


def stage(
    *answers: int | RopewalkError,
    brokers: tuple[str, ...] = ("a", "b"),
    name_servers: str = "ns:9876",
    **options: Any,
) -> Stage:
    """Two brokers that answer sends with these codes or errors in turn, and then with success."""
    left = list(answers)

    def handler(address: str, command: Command) -> Command | RopewalkError:
        answer = left.pop(0) if left else ResponseCode.SUCCESS
        if isinstance(answer, RopewalkError):
            return answer
        if answer in (0, 10, 11, 12):
            return stored(command, answer)
        return command.reply(answer, "said the script")

    script = Script(handler, {"T": route_body(*brokers)})
    core = ProducerCore(
        name_servers,
        ProducerOptions(**options),
        client_id="me",
        unique_keys=UniqueKeys(bytes(4), 1, 2, lambda: 0),
        clock=script.clock,
        now_ms=lambda: 5,
    )
    return Stage(script, core)


def test_queues_and_brokers_take_turns() -> None:
    it = stage()
    for _ in range(4):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert [(address, command.ext["e"]) for address, command in it.sends()] == [
        ("a:1", "0"), ("a:1", "1"), ("b:1", "0"), ("b:1", "1"),
    ]  # fmt: skip
    assert it.core.counts.acknowledged == it.core.counts.submitted == 4


@pytest.mark.parametrize("code", sorted(RETRY_CODES))
def test_a_code_that_another_broker_may_not_give_is_tried_there(code: int) -> None:
    it = stage(code)
    result = it.script.hold(it.core.send("T", [Message(b"x")]))
    assert result.status is SendStatus.SEND_OK and result.queue.broker_name == "b"
    (_, first), (_, second) = it.sends()
    keys = [parse_properties(command.ext["i"])[P.UNIQ_KEY] for command in (first, second)]
    assert keys[0] == keys[1], "a duplicate must be recognisable"


@pytest.mark.parametrize(
    "code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER, 26, ResponseCode.ILLEGAL_OPERATION]
)
def test_any_other_refusal_is_final(code: int) -> None:
    it = stage(code)
    with pytest.raises(Refused, match="said the script"):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert len(it.sends()) == 1 and it.core.counts.refused == 1


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION])
def test_three_attempts_and_no_more(code: int) -> None:
    it = stage(*[code] * 9)
    with pytest.raises(Refused):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert len(it.sends()) == 3


MOMENTARY: list[Any] = [
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.FLOW_CONTROL,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.GO_AWAY,
    Unreachable("gone"),
]


@pytest.mark.parametrize("answer", MOMENTARY)
def test_what_is_refused_for_a_moment_is_tried_until_the_time_is_up(answer: int | RopewalkError) -> None:
    it = stage(*[answer] * 99)
    began = it.script.now
    with pytest.raises((Refused, Unreachable)):
        it.script.hold(it.core.send("T", [Message(b"x")], timeout=5))
    assert it.script.now - began == pytest.approx(5, abs=0.01), "all the time that it was given"
    pauses = it.script.pauses
    assert len(pauses) >= 7 and pauses[:-1] == sorted(pauses[:-1]) and max(pauses) <= 1.0
    assert len(it.sends()) == 2 * (len(pauses)), "both brokers before each pause"


@pytest.mark.parametrize("answer", MOMENTARY)
@pytest.mark.parametrize("how", ["any", "queue", "selector", "group"])
def test_a_broker_that_is_back_in_time_gets_the_message(answer: int | RopewalkError, how: str) -> None:
    it = stage(*[answer] * 8, brokers=("a",))
    message = Message(b"x", group="g" if how == "group" else None)
    queue = Queue("a", 1) if how == "queue" else None
    result = it.script.hold(
        it.core.send("T", [message], queue=queue, selector=max if how == "selector" else None, timeout=8)
    )
    assert result.status is SendStatus.SEND_OK and len(it.sends()) == 9
    keys = {parse_properties(command.ext["i"])[P.UNIQ_KEY] for _, command in it.sends()}
    assert len(keys) == 1


@pytest.mark.parametrize("answer", [OutcomeUnknown("silence"), ResponseCode.SYSTEM_ERROR])
def test_without_retries_nothing_that_may_be_stored_is_sent_again(answer: int | RopewalkError) -> None:
    it = stage(answer, retries=0)
    with pytest.raises((Refused, OutcomeUnknown)):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert len(it.sends()) == 1 and it.script.pauses == []


@pytest.mark.parametrize("answer", MOMENTARY)
def test_without_retries_a_refusal_for_a_moment_is_tried_until_the_time_is_up(answer: Any) -> None:
    it = stage(*[answer] * 9, retries=0, brokers=("a",))
    assert it.script.hold(it.core.send("T", [Message(b"x")], timeout=9)).status is SendStatus.SEND_OK


def elect(it: Stage, questions: int) -> None:
    """Have the route show no master at the next questions, as while a group elects its leader."""
    answers, left = it.script._answer, questions

    def electing(ask: Ask) -> Command:
        nonlocal left
        if ask.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and left:
            left -= 1
            body = it.script.routes["T"].replace(b'{"0":', b'{"1":')
            return ask.command.reply(ResponseCode.SUCCESS, None, {}, body)
        return answers(ask)

    it.script._answer = electing  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["any", "queue", "selector", "group", "oneway", "queues"])
@pytest.mark.parametrize("known", [True, False], ids=["after others", "first"])
def test_a_group_without_a_leader_is_waited_for(how: str, known: bool) -> None:
    it = stage(brokers=("a",))
    if known:
        it.script.hold(it.core.send("T", [Message(b"before")]))
        it.core.directory.invalidate("T")
    elect(it, 4)
    queue = Queue("a", 1) if how == "queue" else None
    if how == "oneway":
        it.script.hold(it.core.send_oneway("T", Message(b"x")))
    elif how == "queues":
        assert it.script.hold(it.core.queues("T")) == (Queue("a", 0), Queue("a", 1))
    else:
        message = Message(b"x", group="g" if how == "group" else None)
        selector = max if how == "selector" else None
        it.script.hold(it.core.send("T", [message], queue=queue, selector=selector))
    assert len(it.script.pauses) == 4 and it.core.counts.pending == 0


@pytest.mark.parametrize("trouble", ["no leader", "a leader that has just died"])
def test_a_requester_is_announced_to_the_leader_that_comes(trouble: str) -> None:
    it = stage(brokers=("a",))
    it.script.routes["c_REPLY_TOPIC"] = it.script.routes["T"]
    left = [Unreachable("gone")] * 6  # each announcement is tried twice
    if trouble == "no leader":
        left.clear()
        elect(it, 4)
    it.script.handler = lambda address, command: left.pop() if left else command.reply(ResponseCode.SUCCESS)
    it.script.hold(it.core.announce_for_replies("T", 3))
    told = [(address, command.code) for address, command in it.script.asked]
    assert told[-1] == ("a:1", RequestCode.HEART_BEAT) and len(it.script.pauses) in (3, 4)


@pytest.mark.parametrize("how", ["message", "batch", "given queue"])
def test_a_leader_that_lives_on_as_a_follower_is_left_at_its_first_refusal(how: str) -> None:
    it = stage(ResponseCode.SERVICE_NOT_AVAILABLE, brokers=("a",))
    it.script.routes["T"] = route_body("a")
    it.script.hold(it.core.queues("T"))
    it.script.routes["T"] = route_body("a").replace(b"a:1", b"new:1")
    messages = [Message(b"x")] * (2 if how == "batch" else 1)
    queue = Queue("a", 0) if how == "given queue" else None
    it.script.hold(it.core.send("T", messages, queue=queue))
    assert [address for address, _ in it.sends()] == ["a:1", "new:1"]


@pytest.mark.parametrize("how", ["send", "oneway"])
def test_a_group_that_stays_without_a_leader_is_told_when_the_time_is_up(how: str) -> None:
    it = stage(brokers=("a",), timeout=2)
    elect(it, 999)
    began = it.script.now
    steps: Any = (
        it.core.send("T", [Message(b"x")]) if how == "send" else it.core.send_oneway("T", Message(b"x"))
    )
    with pytest.raises(Unreachable, match="topic T: broker a has no master at the moment"):
        it.script.hold(steps)
    assert it.script.now - began == pytest.approx(2, abs=0.01)
    assert it.core.counts.refused == 1 and it.core.counts.pending == 0


def test_a_broker_that_the_topic_is_not_at_is_told_with_those_that_it_is_at() -> None:
    it = stage(timeout=1)
    with pytest.raises(Unreachable, match="knows no broker z for topic T: it knows a, b"):
        it.script.hold(it.core.send("T", [Message(b"x")], queue=Queue("z", 0)))


@pytest.mark.parametrize("number", [2, 99, -1])
@pytest.mark.parametrize("how", ["queue", "selector", "oneway"])
def test_a_queue_that_the_topic_has_not_is_told_by_its_number(number: int, how: str) -> None:
    it = stage()
    queue = Queue("a", number)
    steps: Any
    if how == "oneway":
        steps = it.core.send_oneway("T", Message(b"x"), queue=queue)
    elif how == "queue":
        steps = it.core.send("T", [Message(b"x")], queue=queue)
    else:
        steps = it.core.send("T", [Message(b"x")], selector=lambda queues: queue)
    with pytest.raises(LocalProtocolError, match=f"topic T has no queue {number} at a: it has queues 0 to 1"):
        it.script.hold(steps)
    assert it.sends() == [] and it.core.counts.refused == 1 and not it.script.pauses


def test_a_queue_that_is_newer_than_the_route_is_found() -> None:
    it = stage()
    it.script.hold(it.core.send("T", [Message(b"x")]))
    it.script.routes["T"] = route_body("a", "b", queues=3)
    assert it.script.hold(it.core.send("T", [Message(b"x")], queue=Queue("b", 2))).queue == Queue("b", 2)


def test_a_selector_returns_one_of_the_queues() -> None:
    it = stage()
    with pytest.raises(
        TypeError, match="a selected queue is one of those that the selector was given, and not 7"
    ):
        it.script.hold(it.core.send("T", [Message(b"x")], selector=lambda queues: 7))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("answer", [*MOMENTARY, "no leader"])
def test_the_end_of_a_transaction_and_a_recall_are_tried_until_the_time_is_up(answer: Any) -> None:
    it = stage(brokers=("a",), retries=0)
    transactions = TransactionCore(it.core)
    transaction = it.script.hold(transactions.begin("T", Message(b"x")))
    left = 4

    def handler(address: str, command: Command) -> Command | RopewalkError:
        nonlocal left
        if left and answer != "no leader":
            left -= 1
            return answer if isinstance(answer, RopewalkError) else command.reply(answer, "not now")
        return command.reply(ResponseCode.SUCCESS, None, {"msgId": "k"})

    it.script.handler = handler
    if answer == "no leader":
        it.core.directory.invalidate("T")
        elect(it, 4)
    it.script.hold(transactions.end(transaction))
    assert transaction.confirmed and transaction.problem is None and len(it.script.pauses) == 4
    left = 4
    if answer == "no leader":
        it.core.directory.invalidate("T")
        elect(it, 4)
    handle = RecallHandle("T", "a", 5, "k").encode()
    assert it.script.hold(it.core.recall(handle)) == "k" and len(it.script.pauses) == 8


def test_a_name_server_that_is_back_in_time_tells_the_way() -> None:
    it = stage()
    answers = it.script._answer
    failures = 5

    def away(ask: Ask) -> Command:
        nonlocal failures
        if ask.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and failures:
            failures -= 1
            raise Unreachable("refused")
        return answers(ask)

    it.script._answer = away  # type: ignore[method-assign]
    assert it.script.hold(it.core.send("T", [Message(b"x")])).status is SendStatus.SEND_OK


def test_a_topic_that_a_name_server_began_anew_without_is_sent_to_as_before() -> None:
    it = stage()
    it.script.hold(it.core.send("T", [Message(b"x")]))
    it.script.routes.clear()  # no broker has registered with it yet, not even one that creates topics
    for _ in range(3):
        it.script.now += 10
        it.core.directory.invalidate("T")
        assert it.script.hold(it.core.send("T", [Message(b"x")])).queue.broker_name in {"a", "b"}
    assert not it.script.pauses


def test_a_known_topic_is_not_created_at_the_brokers_that_were_first_to_register_again() -> None:
    it = stage(brokers=("a",))
    it.script.hold(it.core.send("T", [Message(b"x")]))
    del it.script.routes["T"]
    it.script.routes["TBW102"] = route_body("b")
    it.script.now += 31
    assert it.script.hold(it.core.send("T", [Message(b"x")])).queue.broker_name == "a"


def test_a_topic_that_stays_away_from_name_servers_is_gone() -> None:
    it = stage()
    it.script.hold(it.core.send("T", [Message(b"x")]))
    it.script.routes.clear()
    it.script.now += 31
    it.script.hold(it.core.send("T", [Message(b"x")]))
    it.script.now += 61
    for _ in range(2):
        with pytest.raises(Rejected, match="topic T does not exist"):
            it.script.hold(it.core.send("T", [Message(b"x")]))
    assert not it.script.pauses


@pytest.mark.parametrize("name_servers", ["ns:9876", "ns:9876;other:9876;third:9876"])
@pytest.mark.parametrize("timeout", [0.5, 2.0])
def test_the_time_limit_covers_the_name_servers(timeout: float, name_servers: str) -> None:
    it = stage(name_servers=name_servers)
    it.script.silent = True
    began = it.script.now
    with pytest.raises(Unreachable):
        it.script.hold(it.core.send("T", [Message(b"x")], timeout=timeout))
    assert it.script.now - began <= timeout + 0.01


def test_name_servers_that_are_silent_leave_time_for_a_route_that_is_known() -> None:
    it = stage()
    it.script.hold(it.core.send("T", [Message(b"x")]))
    it.script.now += 31
    it.script.silent = True
    began = it.script.now
    assert it.script.hold(it.core.send("T", [Message(b"x")], timeout=2)).status is SendStatus.SEND_OK
    assert it.script.now - began <= 1.01


def test_attempts_end_when_the_time_is_up() -> None:
    it = stage()

    def slow(address: str, command: Command) -> Command | RopewalkError:
        it.script.now += 2.0
        return OutcomeUnknown("late")

    it.script.handler = slow
    with pytest.raises(OutcomeUnknown):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert len(it.sends()) == 2, "two times two seconds are more than three"


def test_a_doubt_in_any_attempt_is_told_whatever_came_last() -> None:
    it = stage(OutcomeUnknown("silence"), ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(OutcomeUnknown, match="silence"):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert it.core.counts.unknown == 1 and it.core.counts.refused == 0


def test_nobody_there_is_no_doubt() -> None:
    it = stage(*[Unreachable("gone")] * 99)
    with pytest.raises(Unreachable):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert it.core.counts.refused == 1


@pytest.mark.parametrize("how", ["queue", "selector", "group"])
@pytest.mark.parametrize("answer", [ResponseCode.SYSTEM_ERROR, OutcomeUnknown("silence")])
def test_a_given_queue_is_tried_once_unless_it_is_refused_for_a_moment(
    how: str, answer: int | RopewalkError
) -> None:
    it = stage(answer)
    message = Message(b"x", group="g" if how == "group" else None)
    queue = Queue("b", 1) if how == "queue" else None
    with pytest.raises((Refused, OutcomeUnknown)):
        it.script.hold(it.core.send("T", [message], queue=queue, selector=max if how == "selector" else None))
    assert len(it.sends()) == 1
    if how != "group":
        assert it.sends()[0][0] == "b:1" and it.sends()[0][1].ext["e"] == "1"
    else:
        assert parse_properties(it.sends()[0][1].ext["i"])[P.SHARDING_KEY] == "g"


def test_stored_with_a_reservation_is_a_result() -> None:
    it = stage(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    result = it.script.hold(it.core.send("T", [Message(b"x")]))
    assert result.status is SendStatus.FLUSH_SLAVE_TIMEOUT and it.core.counts.reserved == 1


def test_another_broker_is_tried_for_a_reserved_message_on_request() -> None:
    it = stage(ResponseCode.SLAVE_NOT_AVAILABLE, retry_unless_ok=True)
    assert it.script.hold(it.core.send("T", [Message(b"x")])).status is SendStatus.SEND_OK
    it = stage(11, 11, 11, retry_unless_ok=True)
    assert it.script.hold(it.core.send("T", [Message(b"x")])).status is SendStatus.SLAVE_NOT_AVAILABLE


def test_a_slow_broker_is_left_alone_on_request() -> None:
    it = stage(OutcomeUnknown("silence"), avoid_slow_brokers=True)
    for _ in range(4):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert [address for address, _ in it.sends()] == ["a:1", "b:1", "b:1", "b:1", "b:1"]


def test_a_long_body_travels_compressed_and_a_stubborn_one_as_it_is() -> None:
    it = stage(compress_over=100)
    it.script.hold(it.core.send("T", [Message(b"z" * 101)]))
    it.script.hold(it.core.send("T", [Message(b"z" * 100)]))
    (_, packed), (_, plain) = it.sends()
    assert int(packed.ext["f"]) == MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB
    assert zlib.decompress(packed.body) == b"z" * 101
    assert plain.ext["f"] == "0" and plain.body == b"z" * 100


def test_a_delay_level_and_the_rest_become_properties() -> None:
    it = stage()
    message = Message(b"x", keys=["k1", "k2"], tags="paid", properties={"shop": "7"}, delay_level=3)
    it.script.hold(it.core.send("T", [message]))
    properties = parse_properties(it.sends()[0][1].ext["i"])
    assert properties[P.DELAY] == "3" and properties[P.KEYS] == "k1 k2" and properties["shop"] == "7"


def test_a_batch_is_one_request_and_its_shares_follow_each_other() -> None:
    it = stage()
    result = it.script.hold(it.core.send("T", [Message(b"1"), Message(b"2")]))
    ((_, command),) = it.sends()
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    assert [item.body for item in split_batch(command.body)] == [b"1", b"2"]
    assert [share.queue_offset for share in split_result(result)] == [7, 8]
    assert split_result(result)[1].message_ids == (result.message_ids[1],)


@pytest.mark.parametrize(
    ("topic", "messages"),
    [
        ("", [Message(b"x")]),
        ("a b", [Message(b"x")]),
        ("T", []),
        ("T", [Message(bytes(4 * 1024 * 1024 + 1))]),
        ("T", [Message(b"1"), Message(b"2", delay_level=1)]),
        ("T", [Message(b"1", group="g"), Message(b"2", group="h")]),
    ],
)
def test_what_no_broker_would_take_does_not_leave(topic: str, messages: list[Message]) -> None:
    it = stage()
    with pytest.raises(LocalProtocolError):
        it.script.hold(it.core.send(topic, messages))
    assert it.script.asked == []


def test_a_topic_that_does_not_exist_is_sent_to_by_its_template() -> None:
    it = stage()
    it.script.routes = {TEMPLATE: route_body("a", queues=8)}
    it.script.hold(it.core.send("new", [Message(b"x")]))
    assert len(it.script.hold(it.core.queues("new"))) == 4
    it.script.routes["new"] = route_body("a", queues=1)
    it.script.now += 31
    assert len(it.script.hold(it.core.queues("new"))) == 1


def test_without_a_template_there_is_nowhere_to_send() -> None:
    it = stage()
    with pytest.raises(Refused, match="no broker that is registered now creates topics"):
        it.script.hold(it.core.send("new", [Message(b"x")]))


def test_a_broker_hears_of_the_producer_before_its_first_message_and_every_half_minute() -> None:
    it = stage(brokers=("a",))
    for _ in range(2):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    codes = [command.code for _, command in it.script.asked]
    assert codes == [RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE_V2]
    it.script.now += 30
    it.script.hold(it.core.send("T", [Message(b"x")]))
    assert it.script.asked[-2][1].code == RequestCode.HEART_BEAT
    it.script.hold(it.core.unregister())
    assert it.script.asked[-1][1].code == RequestCode.UNREGISTER_CLIENT


def test_oneway_is_counted_apart() -> None:
    it = stage()
    it.script.hold(it.core.send_oneway("T", Message(b"x")))
    assert it.core.counts.oneway == 1 and it.core.counts.pending == 0


def test_a_body_that_is_no_bytes_is_told_when_the_message_is_made() -> None:
    with pytest.raises(TypeError, match="the body must be bytes, not str: encode it"):
        Message("text")  # type: ignore[arg-type]


def test_an_empty_body_does_not_leave() -> None:
    it = stage()
    with pytest.raises(LocalProtocolError, match="no empty messages"):
        it.script.hold(it.core.send("T", [Message(b"x"), Message(b"")]))
    assert not it.script.asked


@pytest.mark.parametrize("size, taken", [(31_000, True), (31_800, False), (40_000, False)])
def test_properties_leave_room_for_what_a_retry_adds(size: int, taken: bool) -> None:
    it = stage()
    message = Message(b"x", properties={"note": "x" * size})
    if taken:
        it.script.hold(it.core.send("T", [message]))
        return
    with pytest.raises(LocalProtocolError, match="31743 are taken"):
        it.script.hold(it.core.send("T", [message]))
    assert it.sends() == []


@pytest.mark.parametrize("ext", [{}, {"msgId": "M", "queueId": "x", "queueOffset": "1"}])
def test_an_answer_that_says_stored_and_cannot_be_read_is_an_unknown_outcome_and_not_tried_again(
    ext: dict[str, str],
) -> None:
    sends = 0

    def handler(_address: str, command: Command) -> Command:
        nonlocal sends
        sends += 1
        return command.reply(ResponseCode.SUCCESS, None, ext)

    it = stage(retries=5)
    it.script.handler = handler
    with pytest.raises(OutcomeUnknown, match="the broker says that it was stored"):
        it.script.hold(it.core.send("T", [Message(b"x")]))
    assert sends == 1 and (it.core.counts.unknown, it.core.counts.refused) == (1, 0)
