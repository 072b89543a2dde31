"""The pull consumer's decisions, told as conversations: what a poll asks, what it leaves out, what it reads ahead."""

from collections import defaultdict
from collections.abc import Callable

import pytest

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.consuming import ConsumerCore, ConsumerIdentity
from ropewalk.client.core.consume.membership import Subscription
from ropewalk.client.core.consume.pulling import GRACE_S, PullCore
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.directory import REFRESH_S
from ropewalk.client.core.ids import UniqueKeys
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError, RopewalkError, TryLater
from ropewalk.format.record import encode_host, encode_record
from ropewalk.format.remoting import Command
from tests.ropewalk.client.scripted import Script, route_body

HOST = encode_host("127.0.0.1", 1)
A0, A1, B0, B1 = (TopicQueue("T", Queue(name, number)) for name in "ab" for number in (0, 1))


class Stage:
    """Two brokers with two queues each, what lies in them, and a pull consumer that reads from the start."""

    def __init__(self, *subscriptions: Subscription) -> None:
        self.bodies: dict[TopicQueue, list[bytes]] = defaultdict(list)
        self.refusals: dict[TopicQueue, int | RopewalkError] = {}
        self.gone: set[str] = set()
        self.script = Script(self._answer, {"T": route_body("a", "b")})
        identity = ConsumerIdentity("g", "me", subscriptions, "first", active=True)
        keys = UniqueKeys(bytes(4), 1, 2, lambda: 0)
        consumer = ConsumerCore(
            "ns:9876", identity, unique_keys=keys, clock=self.script.clock, now_ms=lambda: 5
        )
        self.core = PullCore(consumer, self.script.clock)
        if not subscriptions:
            self.core.assign([A0, A1, B0, B1])

    def poll(self, max_count: int = 2, timeout_s: float = 1.0) -> list[bytes]:
        """Bodies; a poll that waits finds out at once that nothing comes."""
        return [message.body for message in self.script.hold(self.core.poll(max_count, timeout_s))]

    def _answer(self, address: str, command: Command) -> Command | RopewalkError:
        if (name := address.partition(":")[0]) in self.gone:
            return Unreachable(f"{name} is gone")
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return command.reply(ResponseCode.SUCCESS, None, {"offset": "0"})
        assert command.code == RequestCode.PULL_MESSAGE
        if int(command.ext["suspendTimeoutMillis"]):
            self.script.now += 0.5  # nobody waits longer
        queue = TopicQueue("T", Queue(name, int(command.ext["queueId"])))
        refusal = self.refusals.get(queue)
        if isinstance(refusal, RopewalkError):
            return refusal
        offset, count = int(command.ext["queueOffset"]), int(command.ext["maxMsgNums"])
        found = self.bodies[queue][offset : offset + count]
        code = refusal or (ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND)
        ext = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(len(self.bodies[queue]))}
        ext["nextBeginOffset"] = str(offset + len(found))
        records = [
            encode_record(
                topic=b"T",
                queue_id=queue.queue.queue_id,
                flag=0,
                sys_flag=0,
                reconsume_times=0,
                prepared_transaction_offset=0,
                queue_offset=offset + place,
                offset=1000 * offset,
                body=body,
                properties=b"",
                born_host=HOST,
                store_host=HOST,
                born_timestamp=1,
                store_timestamp=2,
            )
            for place, body in enumerate(found)
        ]
        return command.reply(code, None, ext, b"".join(records))


def test_queues_take_turns_and_every_message_comes_once() -> None:
    it = Stage()
    it.bodies |= {A0: [b"1", b"2", b"3"], A1: [b"4"], B1: [b"5", b"6"]}
    polls = [it.poll() for _ in range(4)]
    assert sorted(polls) == [[b"1", b"2"], [b"3"], [b"4"], [b"5", b"6"]]
    assert it.poll() == []
    assert [it.script.hold(it.core.position(queue)) for queue in (A0, A1, B0, B1)] == [3, 1, 0, 2]


def test_the_first_question_of_the_next_poll_is_asked_before_this_one_returns() -> None:
    it = Stage()
    it.core.assign([A0])
    it.bodies[A0] = [b"1", b"2", b"3"]
    assert it.poll() == [b"1", b"2"]
    (ahead,) = it.script.ahead.values()
    assert ahead.command.ext["queueOffset"] == "2" and ahead.command.ext["suspendTimeoutMillis"] == "0"
    assert it.script.hold(it.core.position(A0)) == 2, "what was read ahead was not delivered"
    asked = len(it.script.asked)
    assert it.poll() == [b"3"] and len(it.script.asked) == asked + 1, "one answer, and no new question"


def test_every_queue_that_had_something_is_read_one_batch_ahead() -> None:
    it = Stage()
    it.bodies |= {queue: [b"%d" % number for number in range(9)] for queue in (A0, A1, B0, B1)}
    for _ in range(3):
        assert it.poll() == [b"0", b"1"]
    assert [ask.command.ext["queueOffset"] for ask in it.script.ahead.values()] == ["2"] * 3
    for _ in range(5):
        it.poll()
    assert len(it.script.ahead) == 4, "one batch of each, and no more"
    it.core.assign([B1])
    assert it.poll() == [b"4", b"5"]
    assert len(it.script.ahead) == 1, "what was asked of queues that are gone was taken and thrown away"


@pytest.mark.parametrize("change", ["seek", "fewer", "assign"])
def test_what_was_read_ahead_is_forgotten_when_something_else_is_asked(change: str) -> None:
    it = Stage()
    it.core.assign([A0])
    it.bodies |= {A0: [b"%d" % number for number in range(9)], B0: [b"other"]}
    assert it.poll(3) == [b"0", b"1", b"2"]
    if change == "seek":
        it.core.seek(A0, 7)
        assert it.poll(3) == [b"7", b"8"]
    elif change == "fewer":
        assert it.poll(2) == [b"3", b"4"]
    else:
        it.core.assign([B0])
        assert it.poll(3) == [b"other"]
    assert len(it.script.ahead) == 1, "the first answer was taken and thrown away"


def test_an_answer_that_did_not_come_ahead_is_asked_for_again() -> None:
    it = Stage()
    it.core.assign([A0])
    it.bodies[A0] = [b"1", b"2", b"3"]
    assert it.poll() == [b"1", b"2"]
    it.gone.add("a")
    with pytest.raises(Unreachable):
        it.poll()
    it.gone.clear()
    assert it.poll() == [b"3"]


def test_a_broker_that_is_gone_does_not_keep_the_messages_of_another() -> None:
    it = Stage()
    it.bodies |= {A0: [b"never"], B0: [b"1", b"2"], B1: [b"3", b"4"]}
    it.gone.add("a")
    assert sorted([it.poll(), it.poll()]) == [[b"1", b"2"], [b"3", b"4"]]
    assert it.poll() == [], "and a poll that finds nothing waits for the one that is there"
    it.gone.add("b")
    with pytest.raises(Unreachable):
        it.poll()


def test_a_refusal_of_one_queue_does_not_lose_what_came_from_another() -> None:
    it = Stage()
    it.core.assign([A0, B0])
    assert it.poll(timeout_s=0) == []
    # Both answers of a poll that waits come at the same time.
    looked = len(it.script.asked)

    def while_it_waits(address: str, command: Command) -> Command | RopewalkError:
        if command.ext.get("suspendTimeoutMillis", "0") != "0":
            it.refusals[A0] = ResponseCode.SYSTEM_BUSY
            it.bodies[B0] = [b"kept"]
        return it._answer(address, command)

    it.script.handler = while_it_waits
    assert it.poll() == [b"kept"] and len(it.script.asked) > looked
    with pytest.raises(TryLater):
        [it.poll() for _ in range(2)]
    assert it.script.hold(it.core.position(B0)) == 1


def pulled(command: Command, code: int, following: int, body: bytes = b"") -> Command:
    ext = {
        "suggestWhichBrokerId": "0",
        "minOffset": "0",
        "maxOffset": "100",
        "nextBeginOffset": str(following),
    }
    return command.reply(code, None, ext, body)


def answering(it: Stage, answer: Callable[[Command], Command | RopewalkError]) -> None:
    """Let every pull be answered like this, at once."""

    def handle(address: str, command: Command) -> Command | RopewalkError:
        assert len(it.script.asked) < 1000, "it asks without a rest"
        return (
            answer(command)
            if command.code == RequestCode.PULL_MESSAGE
            else Stage._answer(it, address, command)
        )

    it.script.handler = handle


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ResponseCode.PULL_NOT_FOUND, 0),
        (ResponseCode.PULL_NOT_FOUND, 1),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, 0),
        (ResponseCode.PULL_OFFSET_MOVED, 0),
        (ResponseCode.PULL_OFFSET_MOVED, 1),
    ],
)
def test_a_broker_that_holds_nothing_and_brings_nothing_is_asked_a_few_times_a_second(
    code: int, step: int
) -> None:
    it = Stage()
    it.core.assign([A0])
    answering(it, lambda command: pulled(command, code, int(command.ext["queueOffset"]) + step))
    began = it.script.now
    assert it.poll(timeout_s=10.0) == []
    assert it.script.now - began >= 9.9
    assert len(it.script.asked) < 25


def test_what_a_filter_leaves_out_is_passed_over_without_a_rest() -> None:
    it = Stage()
    it.core.assign([A0])

    def answer(command: Command) -> Command:
        offset = int(command.ext["queueOffset"])
        if offset < 50:
            return pulled(command, ResponseCode.PULL_RETRY_IMMEDIATELY, offset + 1)
        it.script.now += 0.5
        return pulled(command, ResponseCode.PULL_NOT_FOUND, offset)

    answering(it, answer)
    assert it.poll(timeout_s=1.0) == [] and it.script.hold(it.core.position(A0)) == 50
    assert it.script.pauses == []


@pytest.mark.parametrize("body", [b"", b"a record"])
def test_a_find_of_nothing_or_that_leads_nowhere_is_the_brokers_mistake(body: bytes) -> None:
    it = Stage()
    answering(it, lambda command: pulled(command, ResponseCode.SUCCESS, 0, body))
    with pytest.raises(RemoteProtocolError, match="found"):
        it.poll()


def test_a_poll_whose_brokers_hang_up_rests_until_its_time_is_up_and_says_so() -> None:
    it = Stage()
    answering(it, lambda command: OutcomeUnknown("hung up"))
    began = it.script.now
    with pytest.raises(OutcomeUnknown, match="hung up"):
        it.poll(timeout_s=10.0)
    assert 10.0 <= it.script.now - began < 10.0 + GRACE_S
    assert len(it.script.asked) < 25 * 4


def test_a_poll_goes_on_with_a_broker_that_comes_back_in_time() -> None:
    it = Stage()
    it.core.assign([A0])
    it.bodies[A0] = [b"1"]
    it.gone.add("a")

    def handle(address: str, command: Command) -> Command | RopewalkError:
        if len(it.script.pauses) == 3:
            it.gone.clear()
        return it._answer(address, command)

    it.script.handler = handle
    assert it.poll(timeout_s=10.0) == [b"1"] and len(it.script.pauses) == 3


def test_a_held_pull_that_is_answered_too_late_is_no_error_of_a_broker_that_was_there() -> None:
    it = Stage()

    def answer(command: Command) -> Command | RopewalkError:
        if hold_ms := int(command.ext["suspendTimeoutMillis"]):
            it.script.now += hold_ms / 1000 + GRACE_S
            return OutcomeUnknown("no answer")
        return pulled(command, ResponseCode.PULL_NOT_FOUND, 0)

    answering(it, answer)
    assert it.poll(timeout_s=1.0) == []


def test_topics_that_have_no_queue_yet_are_looked_up_again_and_a_poll_waits_for_them() -> None:
    it = Stage(Subscription("T"))
    it.script.routes["T"] = route_body("a", queues=0)
    began = it.script.now
    assert it.poll(timeout_s=1.0) == []
    assert it.script.now - began == pytest.approx(1.0)
    it.script.routes["T"] = route_body("a")
    it.bodies[A1] = [b"1"]
    assert it.poll(timeout_s=REFRESH_S) == [b"1"]
    assert it.core.assignment == (A0, A1)
    it.core.assign([])
    it.script.now += 2 * REFRESH_S
    assert it.poll() == [] and len(it.core.assignment) == 0, "the program wants none"
