import json
import signal
import subprocess
import time
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ropewalk.codes import MessageSysFlag, RequestCode, ResponseCode
from ropewalk.format.properties import encode_properties
from ropewalk.format.remoting import Command
from tests.ropewalk.client.fake_cluster import BROKER_NAME, FakeCluster
from tests.support.waiting import until
from tests.tools.conftest import RunCommand, command_environment, command_line
from tools.common.output import UsageError
from tools.messages.consume import Start, body_text, parse_start, shortened, time_text


def fill(cluster: FakeCluster, count: int = 10, topic: str = "T", queue_count: int = 4) -> None:
    cluster.create_topic(topic, queue_count)
    for number in range(count):
        cluster.put(topic, number % queue_count, str(number).encode())


def test_a_topic_is_printed_in_the_order_of_its_queues_times(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    now = 0

    def clock() -> int:
        nonlocal now
        now += 1
        return now

    cluster._clock = clock
    fill(cluster, 700)
    ended = ropewalk("consume", "T")
    assert ended.status == 0
    assert ended.lines == [str(number) for number in range(700)]
    assert ended.errors == ""


def test_nothing_is_committed(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    fill(cluster)
    ropewalk("consume", "T")
    assert not cluster.committed
    assert all(
        not int(request.ext["sysFlag"]) & 1
        for request in cluster.requests
        if request.code == RequestCode.PULL_MESSAGE
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--from", "earliest", "--count", "3"), ["0", "1", "2"]),
        (("--from", "latest"), []),
        (("--from", "offset:2", "--queue", "0"), ["8"]),
        (("--from", "offset:99"), []),
        (("--queue", "1"), ["1", "5", "9"]),
        (("--count", "0"), []),
        (("--broker", BROKER_NAME, "--queue", "3"), ["3", "7"]),
    ],
)
def test_where_to_start_and_when_to_stop(
    ropewalk: RunCommand, cluster: FakeCluster, words: tuple[str, ...], expected: list[str]
) -> None:
    fill(cluster)
    ended = ropewalk("consume", "T", *words)
    assert (ended.status, ended.lines) == (0, expected)


def test_a_time_is_looked_up_in_every_queue(ropewalk: RunCommand) -> None:
    now = 1_700_000_000_000
    with FakeCluster(clock=lambda: now) as cluster:
        cluster.create_topic("T", 2)
        for number in range(6):
            now = 1_700_000_000_000 + number * 1000
            cluster.put("T", number % 2, str(number).encode())
        for start in ("1700000003000", "2023-11-14T22:13:23+00:00"):
            ended = ropewalk("consume", "T", "--from", start, name_server=cluster.address)
            assert ended.lines == ["3", "4", "5"]


def test_what_was_deleted_is_told_and_skipped(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    fill(cluster, 5, queue_count=1)
    queue = cluster.topics["T"][0]
    del queue.records[:2]
    queue.min_offset = 2
    ended = ropewalk("consume", "T", "--from", "offset:0")
    assert ended.lines == ["2", "3", "4"]
    assert "2 messages before offset 2 are no longer stored" in ended.errors


@pytest.mark.parametrize(
    "offset, told",
    [
        (99, "beyond the end of every queue: the longest holds offsets below 3; nothing is read there"),
        (3, f"beyond the end of {BROKER_NAME} queue 2, {BROKER_NAME} queue 3; nothing is read there"),
        (2, None),
    ],
)
def test_an_offset_beyond_the_end_is_told(
    ropewalk: RunCommand, cluster: FakeCluster, offset: int, told: str | None
) -> None:
    fill(cluster, 10)  # queues 0 and 1 hold three messages, the others two
    ended = ropewalk("consume", "T", "--from", f"offset:{offset}")
    assert ended.status == 0
    assert (f"offset {offset} is {told}" in ended.errors) if told else "beyond" not in ended.errors


def test_following_from_beyond_the_end_starts_at_the_end_and_says_so(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    fill(cluster, 10)

    def pull(request: Command) -> Command:
        if request.ext["queueOffset"] == "2" and request.ext["queueId"] == "2":
            cluster.answers.clear()
            cluster.put("T", 2, b"new")
        return cluster._pull(request)

    cluster.answers[RequestCode.PULL_MESSAGE] = pull
    ended = ropewalk("consume", "T", "--from", "offset:99", "--follow", "--count", "1")
    assert (ended.status, ended.lines) == (0, ["new"])
    assert "the longest holds offsets below 3; reading starts at the end there" in ended.errors


def test_tags_are_compared_exactly(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    cluster.create_topic("T", 1)
    for tag in ("a", "b", "c"):
        cluster.put("T", 0, tag.encode(), properties=encode_properties({"TAGS": tag}))
    assert ropewalk("consume", "T", "--tags", "a || c").lines == ["a", "c"]
    # A broker that compares hashes only may send too much; the reader has the last word.
    pull = cluster._pull
    cluster.answers[RequestCode.PULL_MESSAGE] = lambda request: pull(
        type(request)(request.code, request.ext | {"subscription": "*"}, opaque=request.opaque)
    )
    assert ropewalk("consume", "T", "--tags", "b").lines == ["b"]


@pytest.mark.parametrize(
    "tags", ["a ||", "|| a", "a || || b", "a | b", "color = 'red'", "a is null", "x > 3"]
)
@pytest.mark.parametrize("command", ["consume", "pull"])
def test_what_is_no_list_of_tags_is_refused(
    ropewalk: RunCommand, cluster: FakeCluster, command: str, tags: str
) -> None:
    fill(cluster, 1)
    ended = ropewalk(command, "T", "--tags", tags)
    assert ended.status == 2
    assert "new || changed" in ended.errors


def test_json_tells_everything_about_a_message(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    cluster.create_topic("T", 1)
    properties = encode_properties({"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "U" * 32})
    cluster.put("T", 0, "grüß".encode(), properties=properties)
    cluster.put("T", 0, b"\xff\x00")
    first, second = ropewalk("consume", "T", "--format", "json").documents
    assert (first["body"], first["keys"], first["tags"], first["msgId"]) == ("grüß", "k", "t", "U" * 32)
    assert (first["topic"], first["broker"], first["queueId"], first["queueOffset"]) == (
        "T",
        BROKER_NAME,
        0,
        0,
    )
    assert first["bornHost"] == "127.0.0.1:1"
    assert second["bodyBase64"] == "/wA="
    assert "body" not in second


def test_hex_prints_the_bytes_of_each_body(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    cluster.create_topic("T", 1)
    cluster.put("T", 0, b"\xff\x00\n")
    assert ropewalk("consume", "T", "--format", "hex").lines == ["ff000a"]


def test_compressed_bodies_are_unpacked_and_unknown_ones_noted(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    cluster.create_topic("T", 1)
    cluster.put("T", 0, zlib.compress(b"plain"), sys_flag=MessageSysFlag.COMPRESSED)
    cluster.put("T", 0, b"?", sys_flag=MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4)
    ended = ropewalk("consume", "T")
    assert ended.lines == ["plain", "?"]
    assert "LZ4" in ended.errors


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 20_000)
    command = " ".join(command_line("consume", "T")) + " | head -n 1; exit ${PIPESTATUS[0]}"
    ended = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        env=command_environment(cluster.address),
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == (b"0\n", b"", 141)


def pulled(request: Command, code: int, following: int) -> Command:
    """The answer of a broker that holds no pull and finds no message."""
    ext = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "5", "nextBeginOffset": str(following)}
    return request.reply(code, ext=ext)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ResponseCode.SUCCESS, "there is none in it"),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "brings nothing"),
        (ResponseCode.PULL_OFFSET_MOVED, "brings nothing"),
    ],
)
def test_a_broker_that_does_not_bring_what_it_says_it_has_is_an_error_and_not_asked_for_ever(
    ropewalk: RunCommand, cluster: FakeCluster, code: int, told: str
) -> None:
    fill(cluster, 5, queue_count=1)
    cluster.answers[RequestCode.PULL_MESSAGE] = lambda request: pulled(request, code, 0)
    ended = ropewalk("consume", "T", "--from", "earliest")
    assert ended.status != 0 and told in ended.errors and ended.lines == []
    assert cluster.codes().count(RequestCode.PULL_MESSAGE) < 20


def test_following_asks_a_broker_that_holds_no_pull_slower_and_slower(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    fill(cluster, 1, queue_count=1)
    asked: list[float] = []

    def answer(request: Command) -> Command:
        asked.append(time.monotonic())
        return pulled(request, ResponseCode.PULL_NOT_FOUND, 0) if len(asked) < 5 else cluster._pull(request)

    cluster.answers[RequestCode.PULL_MESSAGE] = answer
    process = subprocess.Popen(
        command_line("consume", "T", "--follow", "--from", "earliest", "--count", "1"),
        stdout=subprocess.PIPE,
        env=command_environment(cluster.address),
        cwd=tmp_path,
    )
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"0\n")
    assert asked[4] - asked[0] >= 0.7


def test_following_prints_what_comes_and_counts_at_ctrl_c(cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 3, queue_count=2)
    process = subprocess.Popen(
        command_line("consume", "T", "--follow", "--from", "earliest"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_environment(cluster.address),
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(3)) == [b"0\n", b"1\n", b"2\n"]
    cluster.put("T", 1, b"late")
    assert process.stdout.readline() == b"late\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.decode() == "stopped: 4 messages from T\n"


def test_following_starts_at_the_end_and_stops_at_the_count(cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 3, queue_count=1)
    process = subprocess.Popen(
        command_line("consume", "T", "--follow", "--count", "1", "--json"),
        stdout=subprocess.PIPE,
        env=command_environment(cluster.address),
        cwd=tmp_path,
    )
    until(lambda: RequestCode.PULL_MESSAGE in cluster.codes())
    cluster.put("T", 0, b"new")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(out)["body"] == "new"


def test_following_waits_for_a_topic_and_misses_none_of_its_messages(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        command_line("consume", "T", "--follow", "--count", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_environment(cluster.address),
        cwd=tmp_path,
    )
    assert process.stderr is not None
    assert b"waiting for the topic" in process.stderr.readline()
    fill(cluster, 2, queue_count=1)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"0\n1\n")


def test_following_survives_a_broker_that_goes_and_comes_back(cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 1, queue_count=1)
    process = subprocess.Popen(
        command_line("consume", "T", "--follow", "--from", "earliest", "--count", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_environment(cluster.address),
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    cluster.hang_up()
    cluster.put("T", 0, b"after")
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"after\n")
    assert b"trying again" in errors
    assert b"connected again" in errors


@pytest.mark.parametrize("words", [("--from", "yesterday"), ("--format", "xml"), ("--queue", "9")])
def test_wrong_use_exits_with_2(ropewalk: RunCommand, cluster: FakeCluster, words: tuple[str, ...]) -> None:
    fill(cluster)
    ended = ropewalk("consume", "T", *words)
    assert ended.status == 2
    assert ended.errors.startswith("error: ")


def test_an_unknown_topic_says_how_topics_come_about(ropewalk: RunCommand) -> None:
    ended = ropewalk("consume", "unknown")
    assert ended.status == 1
    assert "TOPIC_NOT_EXIST" in ended.errors
    assert "ropewalk produce" in ended.errors


def test_a_topic_of_nearly_the_same_name_is_named(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    cluster.create_topic("orders")
    for code, names in (
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, ["orders", "other"]),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, []),
    ):
        cluster.answers[code] = lambda request, names=names: request.reply(  # type: ignore[misc]
            ResponseCode.SUCCESS, body=json.dumps({"topicList": names}).encode()
        )
    ended = ropewalk("consume", "order")
    assert ended.status == 1 and "did you mean orders?" in ended.errors


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        ("offset:0", Start(offset=0)),
        ("1700000000000", Start(timestamp_ms=1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Start(timestamp_ms=1_700_000_000_000)),
        ("2023-11-14 22:13:20.5+00:00", Start(timestamp_ms=1_700_000_000_500)),
    ],
)
def test_a_start_is_a_place_an_offset_or_a_time(text: str, start: Start) -> None:
    assert parse_start(text) == start


def test_a_time_without_a_zone_is_local() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20)
    assert parse_start("2023-11-14T22:13:20").timestamp_ms == int(moment.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "offset:", "offset:-1", "offset:x", "tomorrow", "-5", "12:00"])
def test_any_other_start_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(UsageError, match="earliest, latest, offset:N"):
        parse_start(text)


@pytest.mark.parametrize("text", ["3", "0", "99999999999"])
def test_a_small_number_is_taken_for_neither_an_offset_nor_a_time(text: str) -> None:
    with pytest.raises(UsageError, match=f"write offset:{text}"):
        parse_start(text)


def test_an_empty_start_is_refused_like_any_other_nonsense(ropewalk: RunCommand) -> None:
    ended = ropewalk("consume", "T", "--from", "")
    assert ended.status == 2
    assert "offset:3" in ended.errors


# pull


def test_pull_shows_status_offsets_and_messages(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    fill(cluster, 8)
    ended = ropewalk("pull", "T", "--queue", "1", "--offset", "1", "--max", "5")
    assert ended.status == 0
    assert ended.lines[0] == f"FOUND: 1 message, next offset 2; {BROKER_NAME} queue 1 holds 0 to 1"
    assert ended.lines[1].split() == ["offset", "msgId", "tags", "keys", "stored", "body"]
    assert ended.lines[2].split()[0] == "1"
    assert ended.lines[2].split()[-1] == "5"


def test_pull_as_json_has_the_same_and_all_of_each_message(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    fill(cluster, 8)
    document = ropewalk("pull", "T", "-q", "1", "-o", "0", "-m", "1", "--json").document
    (message,) = document.pop("messages")
    assert message["body"] == "1"
    assert document == {
        "status": "FOUND",
        "broker": BROKER_NAME,
        "queueId": 1,
        "nextOffset": 1,
        "minOffset": 0,
        "maxOffset": 2,
    }


def test_pull_beyond_the_end_says_where_the_queue_is(ropewalk: RunCommand, cluster: FakeCluster) -> None:
    fill(cluster, 4)
    document = ropewalk("pull", "T", "-o", "50", "--json").document
    assert (document["status"], document["nextOffset"], document["messages"]) == ("OFFSET_ILLEGAL", 1, [])


# Text for people


def test_a_body_cannot_play_tricks_on_a_terminal() -> None:
    assert body_text(b"a\x1b[31mred\x07\ttab\nline") == "a\\x1b[31mred\\x07\ttab\nline"
    assert body_text(b"\xff ok") == "\\xff ok"


def test_a_long_body_is_shortened_on_one_line() -> None:
    assert shortened(b"ab\ncd", 10) == "ab\\ncd"
    assert shortened(b"x" * 100, 10) == "x" * 9 + "…"
    assert len(shortened(b"x" * 11, 10)) == 10


def test_a_time_that_is_no_time_is_shown_as_its_number() -> None:
    assert time_text(2**62) == str(2**62)
    assert datetime.fromisoformat(time_text(1_700_000_000_123)) == datetime(
        2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC
    )
