"""Pulls: which read becomes which answer, and which checks come first."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.consume.pull import code_of
from broker.state.topics import TopicConfig
from ropewalk.codes import Permission, PullSysFlag, RequestCode, ResponseCode
from ropewalk.format.properties import tags_code
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import FRAME_SIZE_MAX, JSON, ROCKETMQ, Command
from store.read.results import GetStatus
from tests.broker.harness import Client, InProcess, heartbeat_body, pull_ext, request, send_ext
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
KINDS = pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])
CODES = pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
V2 = RequestCode.SEND_MESSAGE_V2


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


def four(answer: Command) -> tuple[int, int, int, int]:
    """suggestWhichBrokerId, nextBeginOffset, minOffset, maxOffset: a Java client unboxes each of them."""
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    return tuple(int(answer.ext[name]) for name in names)  # type: ignore[return-value]


def fill(client: Client, topic: str, count: int, *, tags: str = "", size: int = 1) -> None:
    stream = b"".join(
        request(V2, send_ext(topic, properties={"TAGS": tags} if tags else {}), b"%06d" % n * size, opaque=n)
        for n in range(count)
    )
    client.feed(stream)
    assert {c.code for c in client.answers()} == {0}


# -- reading --------------------------------------------------------------------------------------------


@KINDS
@CODES
def test_what_was_stored_comes_back_whole_and_in_order(client: Client, code: int, kind: int) -> None:
    fill(client, "T", 5)
    answer = client.call(code, pull_ext("T", queueOffset=1), serialize_type=kind)
    assert (answer.code, answer.remark, answer.serialize_type) == (0, "FOUND", kind)
    assert four(answer) == (0, 5, 0, 5)
    assert bodies(answer) == [b"%06d" % n for n in range(1, 5)]
    assert [r.queue_offset for r in decode_records(answer.body)] == [1, 2, 3, 4]


@KINDS
@pytest.mark.parametrize(
    ("offset", "code", "remark", "next_offset"),
    [
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (2**62, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (-(2**63), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_an_offset_outside_the_queue_is_told_where_to_go(
    client: Client, offset: int, code: int, remark: str, next_offset: int, kind: int
) -> None:
    fill(client, "T", 3)
    answer = client.call(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=offset), serialize_type=kind)
    assert (answer.code, answer.remark) == (code, remark)
    assert four(answer) == (0, next_offset, 0, 3)
    assert answer.body == b""


@KINDS
@pytest.mark.parametrize(
    ("offset", "code"),
    [
        (0, ResponseCode.PULL_NOT_FOUND),
        (1, ResponseCode.PULL_OFFSET_MOVED),
        (-1, ResponseCode.PULL_OFFSET_MOVED),
    ],
)
def test_a_queue_without_messages_is_waited_at_from_its_start_only(
    running: InProcess, offset: int, code: int, kind: int
) -> None:
    running.broker.topics.update(TopicConfig("T", 4, 4), START_MS)
    client = running.connect()
    answer = client.call(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=offset), serialize_type=kind)
    assert answer.code == code
    assert four(answer) == (0, 0, 0, 0)


def test_an_offset_below_the_first_kept_message_moves_to_it(running: InProcess) -> None:
    client = running.connect()
    fill(client, "T", 5)
    queue = running.broker.store.find_queue("T", 0)
    assert queue is not None
    queue.min_offset = 2
    answer = client.pull("T", queueOffset=1)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
    assert four(answer) == (0, 2, 2, 5)


def test_every_status_of_a_read_has_its_code() -> None:
    expected = {
        GetStatus.FOUND: (0, 0),
        GetStatus.NO_MATCHED_MESSAGE: (20, 20),
        GetStatus.MESSAGE_WAS_REMOVING: (20, 20),
        GetStatus.NO_MATCHED_LOGIC_QUEUE: (19, 21),
        GetStatus.NO_MESSAGE_IN_QUEUE: (19, 21),
        GetStatus.OFFSET_OVERFLOW_ONE: (19, 19),
        GetStatus.OFFSET_FOUND_NULL: (19, 19),
        GetStatus.OFFSET_OVERFLOW_BADLY: (21, 21),
        GetStatus.OFFSET_TOO_SMALL: (21, 21),
        GetStatus.OFFSET_RESET: (21, 21),
    }
    assert {status: (code_of(status, 0), code_of(status, 7)) for status in GetStatus} == expected


def test_messages_that_do_not_match_are_passed_over_and_progress_is_told(client: Client) -> None:
    fill(client, "T", 3, tags="B")
    answer = client.pull("T", subscription="A || C")
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert four(answer) == (0, 3, 0, 3)
    fill(client, "T", 1, tags="A")
    fill(client, "T", 1, tags="B")
    answer = client.pull("T", subscription="A || C")
    assert answer.code == 0
    assert [r.properties["TAGS"] for r in decode_records(answer.body)] == ["A"]
    assert four(answer) == (0, 5, 0, 5)


def test_a_filter_that_lets_nothing_through_looks_at_800_entries_a_time(client: Client) -> None:
    fill(client, "T", 1000, tags="B")
    answer = client.pull("T", subscription="A", sysFlag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert four(answer)[1] == 800


def test_a_message_without_a_tag_matches_everything_only_for_who_wants_all(client: Client) -> None:
    fill(client, "T", 2)
    assert client.pull("T", subscription="*").code == 0
    assert client.pull("T", subscription="").code == 0
    assert client.pull("T", subscription="A").code == ResponseCode.PULL_RETRY_IMMEDIATELY


@pytest.mark.parametrize("has_master", [True, False])
def test_a_slave_that_lacks_what_a_consumer_has_read_sends_it_to_no_other_offset(
    running: InProcess, client: Client, has_master: bool
) -> None:
    fill(client, "T", 3)
    limits = running.broker.group.limits
    limits.is_leader, limits.has_master = False, has_master
    answer = client.pull("T", queueOffset=9, sysFlag=PullSysFlag.SUBSCRIPTION)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "OFFSET_OVERFLOW_BADLY")
    assert four(answer)[1] == 9, "official clients go on there, whatever the code is"


# -- how much -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "got"), [(1, 1), (10, 10), (32, 32), (33, 32), (2**31 - 1, 32), (0, 1), (-5, 1)]
)
def test_a_pull_brings_at_most_32_and_at_least_one(client: Client, asked: int, got: int) -> None:
    fill(client, "T", 40)
    answer = client.pull("T", maxMsgNums=asked)
    assert len(bodies(answer)) == got
    assert four(answer)[1] == got


@pytest.mark.parametrize("sizes", [(1, 20_000), (40_000, 1, 1), (17_000, 17_000), (9_000, 25_000, 40_000)])
def test_runs_of_any_length_leave_whole_and_in_order(client: Client, sizes: tuple[int, ...]) -> None:
    wanted = []
    for number, size in enumerate(sizes):
        for part in range(3):
            wanted.append(b"%d.%d" % (number, part) * (size // 3))
            client.send("T", wanted[-1])
        client.send("T", b"in between", queueId=1)
    for _ in range(3):  # the header is unknown once, and known from then on
        answer = client.pull("T")
        assert answer.code == 0
        assert bodies(answer) == wanted
        assert four(answer) == (0, len(wanted), 0, len(wanted))


def test_a_pull_brings_at_most_256_kib(client: Client) -> None:
    fill(client, "T", 20, size=5000)
    answer = client.pull("T")
    assert len(bodies(answer)) == (256 << 10) // (30_000 + 200)
    assert len(answer.body) <= 256 << 10


@pytest.mark.parametrize("limit", [1, 100, 0, -1])
def test_the_first_message_always_comes_however_little_was_asked_for(client: Client, limit: int) -> None:
    fill(client, "T", 3, size=50)
    assert len(bodies(client.pull("T", maxMsgBytes=limit))) == 1


def test_no_setting_makes_an_answer_longer_than_a_frame(start_broker: StartBroker) -> None:
    running = start_broker(
        mappedFileSizeCommitLog=64 << 20,
        maxMessageSize=15 << 20,
        maxTransferBytesOnMessageInMemory=15 << 20,
        maxTransferCountOnMessageInMemory=100_000,
    )
    client = running.connect()
    for size in (15 << 20, 8 << 20, 8 << 20):
        assert client.send("T", b"x" * size).code == 0
    for offset, kind in ((0, JSON), (1, JSON), (1, ROCKETMQ)):
        client.link.sent.clear()
        ext = pull_ext("T", queueOffset=offset, maxMsgBytes=2**31 - 1, maxMsgNums=2**31 - 1)
        client.ask(RequestCode.PULL_MESSAGE, ext, serialize_type=kind)
        running.until(lambda: bool(client.link.sent))
        assert len(client.link.sent) < FRAME_SIZE_MAX
        (answer,) = client.answers()
        assert four(answer)[1] == offset + 1


# -- checks ---------------------------------------------------------------------------------------------


def refusal(client: Client, topic: str = "T", **changes: Any) -> tuple[int, str | None]:
    answer = client.pull(topic, **changes)
    assert answer.remark
    return answer.code, answer.ext.get("forbiddenType")


def test_each_check_of_a_pull_has_its_code_and_they_come_in_order(start_broker: StartBroker) -> None:
    """Each step repairs the first fault and meets the next."""
    running = start_broker(autoCreateSubscriptionGroup=False)
    client = running.connect()
    topics, groups = running.broker.topics, running.broker.groups
    wrong: dict[str, Any] = {"queueId": 4, "subscription": "a b || \x00", "expressionType": "SQL92"}
    assert refusal(client, **wrong) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)
    groups.auto_create_subscription_group = True
    config = groups.find_or_create("cg", START_MS)
    assert config is not None
    groups.auto_create_subscription_group = False
    assert refusal(client, **wrong) == (ResponseCode.TOPIC_NOT_EXIST, None)
    topics.update(TopicConfig("T", 4, 4, Permission.WRITE), START_MS)
    assert refusal(client, **wrong) == (ResponseCode.NO_PERMISSION, "3")
    topics.update(TopicConfig("T", 4, 4), START_MS)
    for queue_id in (4, -1, 2**31 - 1):
        assert refusal(client, **{**wrong, "queueId": queue_id}) == (ResponseCode.INVALID_PARAMETER, None)
    assert client.pull("T", queueId=3).code == ResponseCode.PULL_NOT_FOUND


def test_a_broker_that_may_not_be_read_answers_16(start_broker: StartBroker) -> None:
    running = start_broker(brokerPermission=Permission.WRITE)
    client = running.connect()
    assert client.send("T").code == 0
    assert refusal(client)[0] == ResponseCode.NO_PERMISSION


def test_a_group_that_may_not_consume_is_answered_16(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    client.pull("T")
    config = running.broker.groups.get("cg")
    assert config is not None
    from dataclasses import replace

    running.broker.groups.update(replace(config, consume_enable=False), START_MS)
    assert refusal(client) == (ResponseCode.NO_PERMISSION, "2")


@pytest.mark.parametrize("group", ["", "a/b", "../x", "g" * 121, "a b"])
def test_a_name_no_group_can_have_is_answered_26_and_not_kept(running: InProcess, group: str) -> None:
    client = running.connect()
    client.send("T")
    before = running.broker.groups.generation
    assert refusal(client, consumerGroup=group)[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert running.broker.groups.generation == before


def test_a_pull_of_an_unknown_topic_makes_none(running: InProcess) -> None:
    before = running.broker.topics.generation
    assert refusal(running.connect(), "../../etc")[0] == ResponseCode.TOPIC_NOT_EXIST
    assert refusal(running.connect(), "T")[0] == ResponseCode.TOPIC_NOT_EXIST
    assert running.broker.topics.generation == before
    assert "T" not in running.broker.store.queues


def test_a_subscription_that_cannot_be_read_is_answered_23(client: Client) -> None:
    client.send("T")
    assert refusal(client, subscription="||") == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, None)


@pytest.mark.parametrize("posted", [True, False])
def test_sql_filters_are_answered_1_with_the_switch_that_is_off(running: InProcess, posted: bool) -> None:
    client = running.connect()
    client.send("T")
    if not posted:
        body = heartbeat_body(topics={"T": "a > 1"}).replace(b'"TAG"', b'"SQL92"')
        client.ask(RequestCode.HEART_BEAT, body=body)
        client.answers()
    answer = client.pull("T", sysFlag=4 if posted else 0, subscription="a > 1", expressionType="SQL92")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "enablePropertyFilter" in (answer.remark or "")


def test_without_a_subscription_of_its_own_a_pull_goes_by_the_heartbeats(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    assert refusal(client, sysFlag=0) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)
    client.heartbeat(topics={"U": "*"})
    assert refusal(client, sysFlag=0) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)
    client.heartbeat(topics={"T": "A"}, version=2**40)
    assert refusal(client, sysFlag=0, subVersion=2**40 + 1) == (ResponseCode.SUBSCRIPTION_NOT_LATEST, None)
    answer = client.pull("T", sysFlag=0, subVersion=2**40)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, "the heartbeat's filter counts"
    answer = client.pull("T", sysFlag=0, subVersion=0, subscription="*")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    client.disconnect()
    other = running.connect()
    assert refusal(other, sysFlag=0) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)


def test_a_group_that_may_not_broadcast_is_answered_16(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    client.heartbeat(model="BROADCASTING")
    assert client.pull("T", sysFlag=0).code == 0
    config = running.broker.groups.get("cg")
    assert config is not None
    from dataclasses import replace

    running.broker.groups.update(replace(config, consume_broadcast_enable=False), START_MS)
    assert refusal(client, sysFlag=0)[0] == ResponseCode.NO_PERMISSION


def test_the_tag_filter_goes_by_javas_hash(client: Client) -> None:
    for tag in ("标签", "😀"):
        client.send("T", properties={"TAGS": tag})
    for offset, tag in enumerate(("标签", "😀")):
        answer = client.pull("T", subscription=tag)
        assert [r.queue_offset for r in decode_records(answer.body)] == [offset]
        assert tags_code(tag)


# -- the commit that comes along ----------------------------------------------------------------------------


def test_a_pull_commits_only_if_it_says_so(running: InProcess) -> None:
    client = running.connect()
    fill(client, "T", 3)
    client.pull("T", commitOffset=2)
    assert running.broker.offsets.query("cg", "T", 0) is None
    client.pull("T", commitOffset=2, sysFlag=4 | PullSysFlag.COMMIT_OFFSET)
    assert running.broker.offsets.query("cg", "T", 0) == 2
    client.pull("T", commitOffset=1, sysFlag=4 | PullSysFlag.COMMIT_OFFSET)
    assert running.broker.offsets.query("cg", "T", 0) == 1, "backwards is the consumer's own choice"


def test_a_pull_that_is_refused_commits_nothing(running: InProcess) -> None:
    client = running.connect()
    fill(client, "T", 3)
    client.pull("T", queueId=99, commitOffset=2, sysFlag=4 | PullSysFlag.COMMIT_OFFSET)
    client.pull("T", commitOffset=2, sysFlag=PullSysFlag.COMMIT_OFFSET)
    assert len(running.broker.offsets) == 0


# -- the disk -------------------------------------------------------------------------------------------


def test_messages_far_behind_the_end_come_through_a_reader_thread(start_broker: StartBroker) -> None:
    running = start_broker(warmWindowBytes=1 << 20, mappedFileSizeCommitLog=1 << 20)
    client = running.connect()
    fill(client, "T", 200, size=5000)
    answer = client.pull("T")
    assert answer.code == 0
    assert bodies(answer)[0] == b"000000" * 5000


def test_a_pull_of_what_is_in_no_cache_waits_for_its_share_of_a_loop_without_time(
    start_broker: StartBroker,
) -> None:
    running = start_broker(warmWindowBytes=1 << 20, mappedFileSizeCommitLog=1 << 20)
    client, broker = running.connect(), running.broker
    broker.share_time(1000.0, 0.0)
    fill(client, "T", 200, size=5000)
    broker.share_time(1000.1, 0.0)
    broker.reader._mark_missed(broker.store.queue("T", 0))
    broker.reader.cold_budget.spend(64 << 20)
    client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=0))
    assert client.answers() == []
    fill(client, "U", 1)
    broker.share_time(1000.5, 0.0)
    assert client.answers() == []
    assert client.pull("T", queueOffset=199).code == 0, "who is at the end does not wait"
    broker.share_time(1000.7, 0.0)
    (answer,) = client.answers()
    assert bodies(answer)[0] == b"000000" * 5000


# -- far behind the end, while messages are appended ---------------------------------------------------------


class BusyBroker:
    """A broker with 200 messages of 5 kB, of which the newest are near the end, whose loop has no time to spare."""

    def __init__(self, running: InProcess) -> None:
        self.running, self.broker = running, running.broker
        self.now = 1000.0
        self.narrow()
        self.client, self.producer = running.connect(), running.connect()
        fill(self.producer, "T", 200, size=830)
        self.turn(later=1.0)
        self.share = self.broker.catch_up_pulls.share
        self.produce()

    def narrow(self) -> None:
        """Have all but the newest messages count as far behind."""
        self.broker.reader.limits = replace(self.broker.reader.limits, catch_up_distance=100_000)

    def produce(self) -> None:
        """Append a message, and spend all the credit that reads have."""
        fill(self.producer, "U", 1)
        self.turn()
        self.share.spend(1.0)

    def turn(self, later: float = 0.0001) -> None:
        self.now += later
        self.broker.share_time(self.now, 0.0)

    def ask(self, offset: int, **changes: object) -> int:
        return self.client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=offset, **changes))

    def until_answered(self) -> Command:
        for _ in range(5000):
            self.turn()
            found = self.client.answers()
            if found:
                return found[0]
        raise AssertionError("no answer")


@pytest.fixture
def busy(start_broker: StartBroker) -> BusyBroker:
    return BusyBroker(start_broker())


def test_a_pull_far_behind_waits_for_its_share_while_messages_are_appended_and_others_do_not(
    busy: BusyBroker,
) -> None:
    for opaque_again in range(2):  # recognised by its bytes, and not
        busy.produce()
        opaque = busy.ask(3)
        assert busy.client.answers() == [] and busy.broker.next_turn_s is not None
        assert busy.client.pull("T", queueOffset=195).code == 0, "near the end of the log"
        assert busy.client.pull("T", queueOffset=200).code == ResponseCode.PULL_NOT_FOUND
        assert busy.client.pull("T", queueOffset=900).code == ResponseCode.PULL_OFFSET_MOVED
        answer = busy.until_answered()
        assert (answer.opaque, answer.code, answer.remark) == (opaque, 0, "FOUND")
        assert bodies(answer)[0] == b"000003" * 830, opaque_again
        assert busy.broker.next_turn_s is None
    busy.turn(later=1.0)
    assert busy.client.pull("T", queueOffset=3).body == answer.body, (
        "nothing is appended: it is read as it comes"
    )


def test_a_pull_that_waits_for_its_share_has_committed_its_offset_and_ends_with_its_connection(
    busy: BusyBroker,
) -> None:
    busy.ask(3, commitOffset=2, sysFlag=4 | PullSysFlag.COMMIT_OFFSET)
    assert busy.broker.offsets.query("cg", "T", 0) == 2
    assert busy.broker.catch_up_pulls.size == 1
    busy.client.disconnect()
    assert busy.broker.catch_up_pulls.size == 0 and busy.broker.next_turn_s is None


def test_a_pull_that_waits_for_its_share_is_refused_by_what_was_forbidden_meanwhile(busy: BusyBroker) -> None:
    busy.ask(3)
    busy.broker.topics.update(TopicConfig("T", 4, 4, perm=Permission.WRITE), START_MS)
    assert busy.until_answered().code == ResponseCode.NO_PERMISSION


def test_with_a_share_of_100_no_pull_waits(busy: BusyBroker) -> None:
    busy.ask(3)
    assert busy.client.answers() == []
    busy.broker.reconfigure(replace(busy.broker.config, catch_up_read_ratio=100))
    busy.narrow()
    busy.produce()
    assert busy.client.answers()[0].code == 0, "it waited, and is read"
    busy.ask(4)
    assert busy.client.answers()[0].code == 0


def test_too_many_reads_from_disk_are_answered_2_at_once(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.connect()
    fill(client, "T", 3)
    reader = running.broker.reader
    monkeypatch.setattr(reader, "get_resident", lambda *_args: None)
    monkeypatch.setattr(reader, "get", lambda *args: args[-1](None))
    answer = client.pull("T", sysFlag=6)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert running.broker.held_pulls.size == 0


def test_a_read_that_comes_back_after_the_connection_is_gone_is_dropped(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.connect()
    fill(client, "T", 1)
    late: list[Callable[[], None]] = []
    get = running.broker.reader.get
    monkeypatch.setattr(running.broker.reader, "get_resident", lambda *_args: None)
    monkeypatch.setattr(running.broker.reader, "get", lambda *args: late.append(lambda: get(*args)))
    client.ask(RequestCode.PULL_MESSAGE, pull_ext("T"))
    client.disconnect()
    late[0]()
    assert client.answers() == []
