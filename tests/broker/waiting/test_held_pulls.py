"""Long polling: a pull that waits is answered once, by a message, by the clock or not at all."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from broker.consume.pull import PullProcessor
from broker.state.subscription import SubscriptionData
from broker.state.topics import TopicConfig
from broker.waiting import held_pulls as pull_hold
from broker.waiting.held_pulls import HeldPull
from ropewalk.codes import PullSysFlag, RequestCode, ResponseCode
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from store.queues.consume_queue import ConsumeQueue
from tests.broker.harness import Client, FlushGate, InProcess, pull_ext, request, send_ext
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
PULL = RequestCode.PULL_MESSAGE
V2 = RequestCode.SEND_MESSAGE_V2
SUSPEND = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION


@pytest.fixture
def running(start_broker: StartBroker) -> InProcess:
    running = start_broker()
    running.broker.topics.update(TopicConfig("T", 4, 4), START_MS)
    return running


@pytest.fixture
def producer(running: InProcess) -> Client:
    return running.connect()


def hold(client: Client, **changes: object) -> int:
    """Send a pull that waits; returns its opaque."""
    before = client.owner.broker.held_pulls.size
    opaque = client.ask(PULL, pull_ext("T", **{"sysFlag": SUSPEND, **changes}))
    assert client.answers() == []
    assert client.owner.broker.held_pulls.size == before + 1
    return opaque


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


def next_offset(answer: Command) -> int:
    return int(answer.ext["nextBeginOffset"])


def test_a_held_pull_is_answered_in_the_turn_of_the_next_message(client: Client, producer: Client) -> None:
    opaque = hold(client)
    producer.feed(request(V2, send_ext("T"), b"news"))
    (answer,) = client.answers()
    assert (answer.opaque, answer.code, bodies(answer)) == (opaque, 0, [b"news"])
    assert client.owner.broker.held_pulls.size == 0
    assert [c.code for c in producer.answers()] == [0]
    producer.send("T")
    assert client.answers() == [], "it is answered once"


def test_a_pull_that_may_not_wait_is_answered_at_once(client: Client) -> None:
    for flags, timeout in ((4, 15_000), (SUSPEND, 0), (SUSPEND, -1)):
        answer = client.pull("T", sysFlag=flags, suspendTimeoutMillis=timeout)
        assert answer.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("offset", [1, 5])
def test_an_offset_that_is_wrong_is_not_waited_at(client: Client, offset: int) -> None:
    assert client.pull("T", sysFlag=SUSPEND, queueOffset=offset).code == ResponseCode.PULL_OFFSET_MOVED


def test_messages_of_other_queues_and_topics_wake_nobody(client: Client, producer: Client) -> None:
    hold(client)
    producer.send("T", queueId=1)
    producer.send("U")
    assert client.answers() == []


@pytest.mark.parametrize(
    ("change", "answered", "forbidden"),
    [
        ("topic", ResponseCode.NO_PERMISSION, "3"),
        ("group", ResponseCode.NO_PERMISSION, "2"),
        ("broker", ResponseCode.NO_PERMISSION, "1"),
        ("fewer queues", ResponseCode.INVALID_PARAMETER, None),
        ("deleted", ResponseCode.TOPIC_NOT_EXIST, None),
    ],
)
def test_who_is_forbidden_to_read_while_it_waits_gets_nothing_more(
    running: InProcess, client: Client, producer: Client, change: str, answered: int, forbidden: str | None
) -> None:
    opaque = hold(client, queueId=1)
    broker = running.broker
    match change:
        case "topic":
            broker.topics.update(TopicConfig("T", 4, 4, perm=2), START_MS)
        case "group":
            group = {"groupName": "cg", "consumeEnable": False}
            producer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode())
        case "broker":
            producer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=2")
        case "fewer queues":
            broker.topics.update(TopicConfig("T", 1, 4), START_MS)
        case _:
            producer.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    if change != "deleted":
        producer.send("T", b"secret", queueId=1)
    (answer,) = client.answers()
    assert (answer.opaque, answer.code, answer.body) == (opaque, answered, b"")
    assert answer.ext.get("forbiddenType") == forbidden
    assert broker.held_pulls.size == 0


def test_one_connection_may_wait_at_many_queues(client: Client, producer: Client) -> None:
    opaques = [hold(client, queueId=n) for n in range(4)]
    producer.send("T", queueId=2)
    assert [c.opaque for c in client.answers()] == [opaques[2]]
    assert client.call(9999).code == 3, "other requests are answered meanwhile"
    assert client.owner.broker.held_pulls.size == 3


def test_one_message_wakes_everybody_who_waits_for_it(running: InProcess, producer: Client) -> None:
    clients = [running.connect() for _ in range(20)]
    for client in clients:
        hold(client)
    producer.send("T", b"all")
    for client in clients:
        (answer,) = client.answers()
        assert bodies(answer) == [b"all"]


def test_a_message_that_does_not_match_keeps_the_pull_waiting(
    running: InProcess, client: Client, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    opaque = hold(client, subscription="A")
    looked: list[int] = []
    get = running.broker.reader.get

    def look(queue: ConsumeQueue, offset: int, *rest: Any) -> None:
        looked.append(offset)
        get(queue, offset, *rest)

    monkeypatch.setattr(running.broker.reader, "get", look)
    producer.send("T", properties={"TAGS": "B"})
    assert client.answers() == []
    producer.send("T", properties={"TAGS": "C"})
    assert client.answers() == []
    producer.send("T", b"mine", properties={"TAGS": "A"})
    (answer,) = client.answers()
    assert (answer.opaque, bodies(answer), next_offset(answer)) == (opaque, [b"mine"], 3)
    assert looked == [0, 1, 2], "what did not match is not looked at again"


@pytest.mark.parametrize("count", [2, 3, 50])
def test_many_messages_of_one_turn_that_do_not_match_keep_it_waiting_too(
    client: Client, producer: Client, count: int
) -> None:
    producer.send("T", queueId=1)
    opaque = hold(client, subscription="A")
    strangers = [request(V2, send_ext("T", properties={"TAGS": "B"}), opaque=n) for n in range(count)]
    producer.feed(b"".join(strangers))
    producer.answers()
    assert client.answers() == []
    assert client.owner.broker.held_pulls.size == 1
    producer.send("T", b"mine", properties={"TAGS": "A"})
    (answer,) = client.answers()
    assert (answer.opaque, bodies(answer)) == (opaque, [b"mine"])


def test_being_woken_for_nothing_changes_nothing(client: Client, producer: Client) -> None:
    opaque = hold(client, subscription="A")
    producer.send("T", properties={"TAGS": "B"})
    queue = client.owner.broker.store.find_queue("T", 0)
    assert queue is not None
    for _ in range(3):
        client.owner.broker.held_pulls.arrived(queue)
    assert client.answers() == []
    producer.send("T", b"mine", properties={"TAGS": "A"})
    assert [(c.opaque, bodies(c)) for c in client.answers()] == [(opaque, [b"mine"])]


def test_a_long_run_that_does_not_match_is_answered_20_with_progress(
    client: Client, producer: Client
) -> None:
    producer.send("T", queueId=1)
    hold(client, subscription="A")
    stream = b"".join(request(V2, send_ext("T", properties={"TAGS": "B"}), opaque=n) for n in range(900))
    producer.feed(stream)
    (answer,) = client.answers()
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 800)


def test_a_first_look_that_finds_only_strangers_is_answered_20_and_not_held(
    client: Client, producer: Client
) -> None:
    producer.send("T", properties={"TAGS": "B"})
    answer = client.pull("T", sysFlag=SUSPEND, subscription="A")
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 1)


# -- the clock ----------------------------------------------------------------------------------------------


def test_a_pull_whose_time_is_over_is_answered_19_not_earlier_and_once(
    running: InProcess, client: Client
) -> None:
    opaque = hold(client, suspendTimeoutMillis=15_000)
    running.tick(14_999)
    assert client.answers() == []
    running.tick(1)
    (answer,) = client.answers()
    assert (answer.opaque, answer.code) == (opaque, ResponseCode.PULL_NOT_FOUND)
    assert [answer.ext[n] for n in ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")] == [
        "0"
    ] * 4
    running.tick(60_000)
    assert client.answers() == []
    queue = running.broker.store.queue("T", 0)
    assert queue.held is None, "nobody finds it there again"
    running.broker.held_pulls.dismiss(queue)
    assert client.answers() == [] and running.broker.held_pulls.size == 0


def test_its_time_over_it_tells_of_the_strangers_it_passed(
    running: InProcess, client: Client, producer: Client
) -> None:
    hold(client, subscription="A")
    producer.send("T", properties={"TAGS": "B"})
    running.tick(15_000)
    (answer,) = client.answers()
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 1)
    assert running.broker.held_pulls.size == 0


def test_pulls_expire_each_at_its_own_time_in_any_order_of_arrival(running: InProcess) -> None:
    client = running.connect()
    times = {hold(client, suspendTimeoutMillis=t): t for t in (900, 100, 500, 100, 300)}
    ended = []
    for _ in range(10):
        running.tick(100)
        ended += [(c.opaque, running.clock.ms - START_MS) for c in client.answers()]
    assert dict(ended) == times


def test_nobody_waits_longer_than_two_minutes(running: InProcess, client: Client) -> None:
    hold(client, suspendTimeoutMillis=2**62)
    running.tick(120_000)
    assert len(client.answers()) == 1


def test_without_long_polling_a_pull_waits_a_second(start_broker: StartBroker) -> None:
    running = start_broker(longPollingEnable=False, shortPollingTimeMills=700)
    running.broker.topics.update(TopicConfig("T", 4, 4), START_MS)
    client = running.connect()
    hold(client)
    running.tick(699)
    assert client.answers() == []
    running.tick(1)
    assert len(client.answers()) == 1


def test_a_read_that_outlasts_the_pulls_time_ends_it(
    running: InProcess, client: Client, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken by a stranger, it is looking in a reader thread when its time comes: it must not wait for ever."""
    hold(client, subscription="A")
    reader = running.broker.reader
    get, late = reader.get, []
    monkeypatch.setattr(reader, "get", lambda *args: late.append(args))
    producer.feed(request(V2, send_ext("T", properties={"TAGS": "B"})))
    monkeypatch.setattr(reader, "get", get)
    running.tick(15_000)
    assert client.answers() == []
    get(*late[0])
    assert [c.code for c in client.answers()] == [ResponseCode.PULL_RETRY_IMMEDIATELY]
    assert running.broker.held_pulls.size == 0


def test_a_pull_that_was_away_reading_is_held_until_its_first_deadline(
    running: InProcess, client: Client, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    opaque = hold(client, subscription="A")
    reader = running.broker.reader
    get, late = reader.get, []
    monkeypatch.setattr(reader, "get", lambda *args: late.append(args))
    producer.feed(request(V2, send_ext("T", properties={"TAGS": "B"})))
    monkeypatch.setattr(reader, "get", get)
    others = running.connect()
    for n in range(10):
        hold(others, queueId=1, queueOffset=n)
        producer.feed(request(V2, send_ext("T", queueId=1)))
        assert len(others.answers()) == 1
    get(*late[0])
    assert client.answers() == []
    running.tick(15_000)
    assert [c.opaque for c in client.answers()] == [opaque]


# -- ends ------------------------------------------------------------------------------------------------


def test_a_closed_connection_releases_its_pulls(running: InProcess, client: Client, producer: Client) -> None:
    for n in range(4):
        hold(client, queueId=n)
    client.disconnect()
    assert running.broker.held_pulls.size == 0
    for n in range(4):
        producer.send("T", queueId=n)
        queue = running.broker.store.find_queue("T", n)
        assert queue is not None
        assert queue.held is None
    running.tick(20_000)
    assert client.answers() == []


def test_only_the_closed_connections_pulls_are_released(running: InProcess, producer: Client) -> None:
    stays, goes = running.connect(), running.connect()
    hold(stays)
    hold(goes)
    goes.disconnect()
    producer.send("T")
    assert len(stays.answers()) == 1


def test_when_too_many_wait_the_next_is_answered_at_once(
    running: InProcess, client: Client, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_hold, "HOLDS_MAX", 3)
    for _ in range(3):
        hold(client)
    answer = running.connect().pull("T", sysFlag=SUSPEND)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    producer.send("T")
    assert len(client.answers()) == 3
    hold(client, queueOffset=1)


def test_pulls_that_are_answered_leave_nothing_behind(
    running: InProcess, client: Client, producer: Client
) -> None:
    for n in range(3000):
        client.feed(request(PULL, pull_ext("T", sysFlag=SUSPEND, queueOffset=n)))
        producer.feed(request(V2, send_ext("T")))
        running.clock.ms += 1
    assert len(client.answers()) == 3000
    pulls = running.broker.held_pulls
    assert sum(map(len, pulls._waiting.values())) == 0
    assert len(pulls._waiting) == len(pulls._deadlines) <= 3000 // pull_hold.DEADLINE_MS + 1
    running.tick(120_000)
    assert not pulls._waiting and not pulls._deadlines


# -- races --------------------------------------------------------------------------------------------------


def test_a_message_that_comes_while_the_pull_is_reading_is_not_missed(
    running: InProcess, client: Client, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read found nothing and comes back from its thread after the message: parking now would lose it."""
    reader = running.broker.reader
    get: Any = reader.get
    late: list[Callable[[], None]] = []

    def slow(*args: Any) -> None:
        results: list[Any] = []
        get(*args[:-1], results.append)
        late.append(lambda: args[-1](results[0]))

    monkeypatch.setattr(reader, "get", slow)
    client.ask(PULL, pull_ext("T", sysFlag=SUSPEND))
    monkeypatch.setattr(reader, "get", get)
    producer.send("T", b"between")
    assert client.answers() == []
    late[0]()
    (answer,) = client.answers()
    assert bodies(answer) == [b"between"]
    assert running.broker.held_pulls.size == 0


def test_arrival_and_expiry_in_one_turn_answer_once(running: InProcess, client: Client) -> None:
    hold(client)
    running.clock.ms += 15_000
    running.broker.begin_turn()
    running.connect().session.receive(request(V2, send_ext("T"), b"x"))
    running.broker.tick()
    assert len(client.answers()) == 1


def test_a_place_that_cannot_be_read_is_not_waited_at(
    running: InProcess, client: Client, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.send("T")
    queue = running.broker.store.find_queue("T", 0)
    assert queue is not None
    monkeypatch.setattr(type(queue), "entries_nowait", lambda *_args: b"")
    answer = client.pull("T", sysFlag=SUSPEND)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL")
    assert next_offset(answer) > 0


def test_the_commit_of_a_held_pull_counts_once(running: InProcess, client: Client, producer: Client) -> None:
    hold(client, commitOffset=7, sysFlag=SUSPEND | PullSysFlag.COMMIT_OFFSET)
    assert running.broker.offsets.query("cg", "T", 0) == 7
    running.broker.offsets.commit("cg", "T", 0, 9)
    producer.send("T")
    assert len(client.answers()) == 1
    assert running.broker.offsets.query("cg", "T", 0) == 9


def test_a_pull_of_a_congested_peer_is_told_to_ask_again(client: Client, producer: Client) -> None:
    hold(client)
    client.link.congested = True
    producer.send("T")
    (answer,) = client.answers()
    assert (answer.code, next_offset(answer), answer.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 0, b"")


# -- what is not durable yet -------------------------------------------------------------------------------


def test_under_sync_flush_a_message_wakes_a_pull_when_it_is_flushed(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    synced.broker.topics.update(TopicConfig("T", 4, 4), START_MS)
    client, producer = synced.connect(), synced.connect()
    hold(client)
    flush_gate.shut()
    producer.ask(V2, send_ext("T"), b"durable")
    synced.turn()
    assert client.answers() == []
    assert (
        synced.connect().call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}).ext["offset"] == "0"
    )
    flush_gate.open()
    assert bodies(client.answer()) == [b"durable"]


def test_a_oneway_pull_is_never_answered_and_leaves_nothing(
    running: InProcess, client: Client, producer: Client
) -> None:
    client.ask(PULL, pull_ext("T", sysFlag=SUSPEND), flag=2)
    producer.send("T")
    running.tick(20_000)
    assert client.answers() == []
    assert running.broker.held_pulls.size == 0


# -- many holds of one queue: the work of a message is counted, and not its time ------------------------------------


class Work:
    """A clock that moves with each pull that is read for, so that a turn has time for so many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_turn: int) -> None:
        self.now_s = 0.0
        self.reads = 0
        self.tests = 0
        step = pull_hold.TURN_S / per_turn
        answer = PullProcessor._read_again

        def read_again(processor: PullProcessor, held: pull_hold.HeldPull, last: bool) -> None:
            self.reads += 1
            self.now_s += step
            answer(processor, held, last)

        def matches(wish: SubscriptionData, tags_code: int) -> bool:
            self.tests += 1
            return tags_code in wish.codes

        monkeypatch.setattr(PullProcessor, "_read_again", read_again)
        monkeypatch.setattr(SubscriptionData, "matches", matches)

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch, per_turn=50)


@pytest.fixture
def crowd(start_broker: StartBroker, work: Work) -> InProcess:
    running = start_broker()
    running.broker.topics.update(TopicConfig("T", 4, 4), START_MS)
    running.broker.held_pulls._clock = work.clock
    return running


def test_a_message_that_no_filter_wants_is_read_for_none_of_ten_thousand_holds(
    crowd: InProcess, work: Work
) -> None:
    clients = [crowd.connect() for _ in range(100)]
    for number in range(10_000):
        hold(clients[number % 100], subscription=f"never{number % 7}")
    producer, before = crowd.connect(), work.tests
    for _ in range(3):
        producer.send("T", properties="TAGS\x01other\x02")
        crowd.turn()
    assert work.reads == 0
    assert work.tests - before == 0
    assert crowd.broker.held_pulls.size == 10_000


def test_a_thousand_holds_that_want_a_message_are_answered_over_turns_and_each_once(
    crowd: InProcess, work: Work
) -> None:
    clients = [crowd.connect() for _ in range(100)]
    for number in range(1_000):
        hold(clients[number % 100], subscription="a" if number % 2 else "*")
    before = work.reads
    crowd.connect().feed(request(V2, send_ext("T", properties="TAGS\x01a\x02"), b"news"))
    assert work.reads - before <= 60, "the turn of the message reads for as many as it has time for"
    crowd.until(lambda: crowd.broker.held_pulls.size == 0)
    answers = [answer for client in clients for answer in client.answers()]
    assert len(answers) == 1_000
    assert {bodies(answer)[0] for answer in answers} == {b"news"}


def test_messages_that_come_during_a_long_wake_up_are_missed_by_nobody(crowd: InProcess, work: Work) -> None:
    clients = [crowd.connect() for _ in range(50)]
    for number in range(500):
        hold(clients[number % 50], subscription="a" if number % 2 else "b")
    producer = crowd.connect()
    producer.send("T", b"first", properties="TAGS\x01a\x02")
    producer.send("T", b"second", properties="TAGS\x01b\x02")
    late = crowd.connect()
    late.ask(PULL, pull_ext("T", sysFlag=SUSPEND, subscription="c", queueOffset=2))
    producer.send("T", b"third", properties="TAGS\x01c\x02")
    crowd.until(lambda: crowd.broker.held_pulls.size == 0)
    answers = [answer for client in clients for answer in client.answers()]
    assert sorted(bodies(answer)[0] for answer in answers) == [b"first"] * 250 + [b"second"] * 250
    (answer,) = late.answers()
    assert bodies(answer) == [b"third"]


def test_a_pull_behind_messages_that_it_does_not_want_goes_on_at_the_first_that_it_wants(
    crowd: InProcess,
) -> None:
    clients = [crowd.connect() for _ in range(40)]
    for client in clients:
        hold(client, subscription="wanted")
    producer = crowd.connect()
    for _ in range(5):
        producer.send("T", b"no", properties="TAGS\x01other\x02")
    producer.send("T", b"yes", properties="TAGS\x01wanted\x02")
    crowd.until(lambda: crowd.broker.held_pulls.size == 0)
    for client in clients:
        (answer,) = client.answers()
        assert (bodies(answer), next_offset(answer)) == ([b"yes"], 6)


def test_a_thousand_pulls_whose_time_is_over_are_answered_over_turns(crowd: InProcess, work: Work) -> None:
    clients = [crowd.connect() for _ in range(100)]
    for number in range(1_000):
        hold(clients[number % 100])
    before = work.reads
    crowd.tick(later_ms=20_000)
    assert work.reads - before <= 150
    crowd.until(lambda: crowd.broker.held_pulls.size == 0)
    answers = [answer for client in clients for answer in client.answers()]
    assert [answer.code for answer in answers] == [ResponseCode.PULL_NOT_FOUND] * 1_000


def test_a_connection_with_a_thousand_holds_ends_and_leaves_none_behind(crowd: InProcess) -> None:
    greedy, modest = crowd.connect(), crowd.connect()
    for _ in range(1_000):
        hold(greedy)
    hold(modest)
    greedy.disconnect()
    crowd.until(lambda: crowd.broker.held_pulls.size == 1)
    crowd.connect().send("T", b"news")
    (answer,) = modest.answers()
    assert bodies(answer) == [b"news"]
    assert not greedy.link.sent


def test_under_pressure_one_connection_has_few_holds_and_others_have_theirs(
    crowd: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_hold, "HOLDS_MAX", 400)
    monkeypatch.setattr(pull_hold, "HOLDS_PER_SESSION_MAX", 150)
    greedy = crowd.connect()
    for _ in range(200):
        hold(greedy)
    assert greedy.pull("T", sysFlag=SUSPEND).code == ResponseCode.PULL_NOT_FOUND, "half of all are taken"
    for _ in range(300):
        crowd.connect().ask(PULL, pull_ext("T", sysFlag=SUSPEND))
    crowd.until(lambda: not crowd.broker.held_pulls.is_busy)
    dismissed = greedy.answers()
    assert {answer.code for answer in dismissed} == {ResponseCode.PULL_NOT_FOUND}
    assert all(not client.link.sent for client in crowd.clients[1:]), "others wait"
    assert 350 <= crowd.broker.held_pulls.size == 500 - len(dismissed) <= 400


def test_under_pressure_the_address_with_most_has_pulls_answered_however_many_connections_it_has(
    crowd: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger holds few pulls on each of hundreds of connections, an honest client more on one."""
    monkeypatch.setattr(pull_hold, "HOLDS_MAX", 400)
    honest = crowd.connect(peer=("10.0.0.1", 1))
    for _ in range(100):
        hold(honest)
    for port in range(1_000):
        crowd.connect(peer=("10.0.0.9", port)).ask(PULL, pull_ext("T", sysFlag=SUSPEND))
        assert crowd.broker.held_pulls.size <= 450
    late = crowd.connect(peer=("10.0.0.2", 1))
    hold(late)
    crowd.until(lambda: not crowd.broker.held_pulls.is_busy)
    assert not late.link.sent and not honest.link.sent
    assert 350 <= crowd.broker.held_pulls.size <= 400


def tags(prefix: object, count: int = 1_000) -> str:
    return "||".join(f"{prefix}-{n}" for n in range(count))


def test_pulls_with_large_filters_have_a_bound_of_bytes_and_who_has_most_loses_some(
    crowd: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger holds pulls with other thousands of tags each, which were kept by the hundred thousand."""
    monkeypatch.setattr(pull_hold, "FILTERS_SIZE_MAX", 1 << 20)
    pulls = crowd.broker.held_pulls
    near, far = crowd.connect(peer=("10.0.0.9", 1)), crowd.connect(peer=("10.0.0.1", 1))
    for number in range(20):
        hold(near, subscription=f"near{number}")
        hold(far, subscription=f"far{number}")
    stranger, other = crowd.connect(peer=("10.0.0.9", 2)), crowd.connect(peer=("10.0.0.9", 3))
    for number in range(60):
        for client in (stranger, other):
            client.ask(
                PULL, pull_ext("T", sysFlag=SUSPEND, subscription=tags(f"{client.link.peer[1]}-{number}"))
            )
            crowd.turn()
            assert pulls.filters_size <= (1 << 20) * 9 // 8 + 100_000
    hold(far, subscription="another")
    crowd.until(lambda: not pulls.is_busy)
    assert not near.link.sent and not far.link.sent, "they wait"
    answers = stranger.answers() + other.answers()
    assert {answer.code for answer in answers} == {ResponseCode.PULL_NOT_FOUND}
    assert 60 < len(answers) < 120
    assert pulls.filters_size < 1 << 20
    for client in crowd.clients:
        client.disconnect()
    crowd.until(lambda: not pulls.is_busy)
    assert (pulls.size, pulls.filters_size) == (0, 0)


def test_ten_thousand_holds_with_one_large_filter_take_no_more_than_it(
    crowd: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_hold, "FILTERS_SIZE_MAX", 1 << 20)
    clients = [crowd.connect() for _ in range(100)]
    for number in range(10_000):
        hold(clients[number % 100], subscription=tags("all", 100) + " " * (number % 3))
    pulls = crowd.broker.held_pulls
    assert pulls.size == 10_000
    assert 0 < pulls.filters_size < 20_000
    codes = {
        id(held.codes) for client in clients for held in client.session.held if isinstance(held, HeldPull)
    }
    assert len(codes) == 1
    crowd.connect().feed(request(V2, send_ext("T", properties="TAGS\x01all-5\x02"), b"news"))
    crowd.until(lambda: pulls.size == 0)
    assert pulls.filters_size == 0
    assert {bodies(answer)[0] for client in clients for answer in client.answers()} == {b"news"}


def test_a_pull_that_waits_keeps_nothing_of_its_header(crowd: InProcess) -> None:
    client = crowd.connect()
    client.feed(request(PULL, pull_ext("T", sysFlag=SUSPEND)))
    (held,) = client.session.held
    assert isinstance(held, HeldPull)
    assert not held.request.language and not held.request.body and not held.request.ext
