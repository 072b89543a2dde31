import pytest

from ropewalk.client.blocking.producer import Producer
from ropewalk.client.blocking.simple import Client, Message, NoNameServer, PullStatus, Queue, SendStatus
from ropewalk.client.core.addresses import AddressRing, BadAddress, parse_address_list
from ropewalk.client.core.directory import Directory
from ropewalk.client.core.messages import route_request
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Refused, Rejected
from ropewalk.format.remoting import Command
from tests.ropewalk.client.fake_cluster import BROKER_NAME, FakeCluster
from tests.support.ports import free_port


def queue(queue_id: int) -> Queue:
    return Queue(BROKER_NAME, queue_id)


def test_a_message_comes_back_with_everything_it_was_sent_with(cluster: FakeCluster) -> None:
    with Client(cluster.address) as client:
        message = Message(b"hello", keys=["k1", "k2"], tags="new", properties={"colour": "red"}, flag=7)
        result = client.send("T", message, queue(2))
        assert (result.status, result.queue, result.queue_offset) == (SendStatus.SEND_OK, queue(2), 0)
        (record,) = client.pull("T", queue(2), 0).records
    assert (record.body, record.flag, record.topic, record.queue_id) == (b"hello", 7, "T", 2)
    assert record.properties == {
        "KEYS": "k1 k2",
        "TAGS": "new",
        "colour": "red",
        "WAIT": "true",
        "UNIQ_KEY": result.message_ids[0],
    }
    assert record.msg_id == result.offset_message_ids[0]


def test_sends_go_to_the_queues_in_turn(cluster: FakeCluster) -> None:
    cluster.create_topic("T", 3)
    with Client(cluster.address) as client:
        queues = [client.send("T", Message(b"x")).queue.queue_id for _ in range(6)]
    assert queues == [0, 1, 2, 0, 1, 2]


def test_a_topic_that_does_not_exist_is_sent_to_by_way_of_the_template(cluster: FakeCluster) -> None:
    with Client(cluster.address) as client:
        assert len(client.write_queues("new-topic")) == 4
        client.send("new-topic", Message(b"x"))
    asked = [
        request.ext["topic"]
        for request in cluster.requests
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
    ]
    assert asked == ["new-topic", "TBW102"]
    assert len(cluster.topics["new-topic"]) == 4


def test_without_automatic_creation_an_unknown_topic_is_rejected() -> None:
    with FakeCluster(auto_create=False) as cluster, Client(cluster.address) as client:
        with pytest.raises(Rejected, match="new-topic does not exist") as caught:
            client.send("new-topic", Message(b"x"))
        assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
        with pytest.raises(Rejected):
            client.read_queues("new-topic")


def test_a_batch_lies_in_one_queue_in_order_with_an_id_for_each(cluster: FakeCluster) -> None:
    with Client(cluster.address) as client:
        result = client.send_batch("T", [Message(str(number).encode()) for number in range(5)], queue(1))
        pulled = client.pull("T", queue(1), 0)
    assert [record.body for record in pulled.records] == [b"0", b"1", b"2", b"3", b"4"]
    assert tuple(record.msg_id for record in pulled.records) == result.offset_message_ids
    assert tuple(record.uniq_key for record in pulled.records) == result.message_ids
    request = next(each for each in cluster.requests if each.code == RequestCode.SEND_BATCH_MESSAGE)
    assert request.ext["m"] == "true"


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_with_a_reservation_is_a_status_and_not_an_error(cluster: FakeCluster, code: int) -> None:
    header = {"msgId": "00", "queueId": "0", "queueOffset": "5"}
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(code, ext=header)
    with Client(cluster.address) as client:
        result = client.send("T", Message(b"x"))
    assert result.status is SendStatus(code)
    assert result.status is not SendStatus.SEND_OK


def test_a_refusal_carries_the_brokers_own_words(cluster: FakeCluster) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(13, "body too large")
    with Client(cluster.address) as client, pytest.raises(Refused, match="body too large") as caught:
        client.send("T", Message(b"x"))
    assert caught.value.code == 13


def test_a_success_without_its_header_is_an_unknown_outcome(cluster: FakeCluster) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(0)
    with Client(cluster.address) as client, pytest.raises(OutcomeUnknown, match="code 0"):
        client.send("T", Message(b"x"))


def test_a_pull_says_where_to_go_on(cluster: FakeCluster) -> None:
    cluster.create_topic("T", 1)
    for number in range(5):
        cluster.put("T", 0, str(number).encode())
    with Client(cluster.address) as client:
        first = client.pull("T", queue(0), 0, 3)
        assert (first.status, len(first.records), first.next_offset) == (PullStatus.FOUND, 3, 3)
        end = client.pull("T", queue(0), 5)
        assert (end.status, end.next_offset, end.max_offset) == (PullStatus.NO_NEW_MESSAGE, 5, 5)
        beyond = client.pull("T", queue(0), 99)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 5)


def test_a_held_pull_is_answered_by_the_next_message(cluster: FakeCluster) -> None:
    cluster.create_topic("T", 1)
    with Client(cluster.address) as client:
        pending = client.start_pull("T", queue(0), 0, suspend_ms=5000)
        cluster.put("T", 0, b"late")
        assert [record.body for record in client.finish_pull(pending).records] == [b"late"]


def test_offsets_are_asked_committed_and_searched(cluster: FakeCluster) -> None:
    now = 1000
    with FakeCluster(clock=lambda: now) as slow_clock:
        slow_clock.create_topic("T", 1)
        for number in range(4):
            now = 1000 + number * 10
            slow_clock.put("T", 0, b"x")
        with Client(slow_clock.address) as client:
            assert (client.min_offset("T", queue(0)), client.max_offset("T", queue(0))) == (0, 4)
            assert client.search_offset("T", queue(0), 1015) == 2
            assert client.committed_offset("g", "T", queue(0)) is None
            client.commit_offset("g", "T", queue(0), 3)
            assert client.committed_offset("g", "T", queue(0)) == 3


def test_a_message_is_viewed_by_the_id_of_its_place(cluster: FakeCluster) -> None:
    with Client(cluster.address) as client:
        client.send("T", Message(b"first"))
        result = client.send("T", Message(b"second"))
        assert client.view(result.offset_message_ids[0]).body == b"second"
        with pytest.raises(ValueError, match="message id"):
            client.view("nonsense")


def test_the_next_name_server_is_asked_when_one_does_not_answer(cluster: FakeCluster) -> None:
    cluster.create_topic("T", 1)
    with Client(f"127.0.0.1:{free_port()};{cluster.address}") as client:
        assert client.read_queues("T") == (queue(0),)


def test_no_name_server_at_all_names_each_that_was_tried() -> None:
    first, second = free_port(), free_port()
    with (
        Client(f"127.0.0.1:{first};127.0.0.1:{second}") as client,
        pytest.raises(NoNameServer, match=rf"{first}.*{second}.*refused"),
    ):
        client.route("T")


def test_a_name_server_that_never_said_a_word_is_waited_for_once_and_one_that_did_is_asked_again() -> None:
    directory = Directory(AddressRing(parse_address_list("a:9876")), lambda: 0.0, timeout_s=5.0)
    silent = directory.ask(route_request("T"))
    next(silent)
    with pytest.raises(NoNameServer, match="no answer"):
        silent.throw(OutcomeUnknown("no answer in 5 s"))
    heard = directory.ask(route_request("T"))
    next(heard)
    with pytest.raises(StopIteration):
        heard.send(Command(ResponseCode.SUCCESS, {}))
    cut = directory.ask(route_request("T"))
    asked = next(cut)
    assert cut.throw(OutcomeUnknown("no answer in 5 s")) == asked


def test_a_name_server_list_that_cannot_be_read_is_refused_at_once() -> None:
    with pytest.raises(BadAddress):
        Client("host:port")


def test_a_connection_that_was_cut_is_made_anew(cluster: FakeCluster) -> None:
    with Client(cluster.address) as client:
        client.send("T", Message(b"one"))
        cluster.hang_up()
        with pytest.raises(OutcomeUnknown):
            client.send("T", Message(b"two"), queue(0))
        assert client.send("T", Message(b"three"), queue(0)).status is SendStatus.SEND_OK


def test_a_name_server_that_cut_an_idle_connection_is_asked_again(cluster: FakeCluster) -> None:
    cluster.create_topic("T", 1)
    with Client(cluster.address) as client:
        client.route("T")
        cluster.hang_up()
        client.forget_routes()
        assert client.read_queues("T") == (queue(0),)


def test_reads_follow_the_brokers_suggestion(cluster: FakeCluster) -> None:
    def suggest(request: Command) -> Command:
        header = {"suggestWhichBrokerId": "1", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
        return request.reply(19, ext=header)

    cluster.create_topic("T", 1)
    cluster.answers[RequestCode.PULL_MESSAGE] = suggest
    with Client(cluster.address) as client:
        client.pull("T", queue(0), 0)
        # There is no member 1: the reader falls back to the one there is.
        assert client.pull("T", queue(0), 0).status is PullStatus.NO_NEW_MESSAGE


def test_of_two_name_servers_that_disagree_the_one_that_knows_the_topic_is_right(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic("T", 2)
    with FakeCluster() as forgetful:
        forgetful.create_topic("other", 1)
        both = f"{forgetful.address};{cluster.address}"
        with Client(both, timeout=1) as client:
            assert len(client.read_queues("T")) == 2
            with pytest.raises(Rejected):
                client.read_queues("nowhere")
        with Producer(both, timeout=1) as producer:
            assert {queue.broker_name for queue in producer.queues("T")} == {BROKER_NAME}
