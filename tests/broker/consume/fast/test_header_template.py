"""Pulls whose header is known already are answered as all others, whatever changes between two of them."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from broker.consume.fast.header_template import PullTemplates, learn_template
from broker.consume.pull import PullRules
from broker.remoting.session import Session
from broker.state.groups import READ_FORBIDDEN
from broker.state.topics import TopicConfig
from ropewalk.codes import FrameFlag, Permission, PullSysFlag, RequestCode
from tests.broker.harness import (
    Client,
    InProcess,
    config_of,
    frame_of,
    heartbeat_body,
    pull_ext,
    request,
    send_ext,
    without_fsync,
)
from tests.support.clocks import START_MS

PULL = RequestCode.PULL_MESSAGE
COMMIT = PullSysFlag.COMMIT_OFFSET
OWN = PullSysFlag.SUBSCRIPTION


class Both:
    """Two brokers to which the same happens; one of them reads every pull anew."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.fast, self.plain = (
            stack.enter_context(InProcess(config_of(folder / name, fastPathEnable=name == "fast")))
            for name in ("fast", "plain")
        )
        self.taken = 0
        self.version = 0
        """Of the latest subscription."""
        pull_by_template = self.fast.broker.processors.pulls.pull_by_template

        def counting(session: Session, templates: PullTemplates, payload: bytes) -> bool:
            taken = pull_by_template(session, templates, payload)
            self.taken += taken
            return taken

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(self.fast.broker.processors.pulls, "pull_by_template", counting)
        self.clients: list[tuple[Client, Client]] = []
        self.connect()

    @property
    def each(self) -> tuple[InProcess, InProcess]:
        return self.fast, self.plain

    def connect(self) -> None:
        self.clients.append((self.fast.connect(), self.plain.connect()))

    def feed(self, data: bytes, at: int = -1, cut: int = 0) -> bytes:
        """Have both get these bytes, in one read or two; what both answer, which is the same to the byte."""
        answers = []
        for client in self.clients[at]:
            if cut:
                client.feed(data[:cut])
            client.feed(data[cut:])
            client.owner.settle()
            answers.append(bytes(client.link.sent))
            client.answers()
        assert answers[0] == answers[1]
        return answers[0]

    def known(self) -> tuple[object, ...]:
        """What the brokers remember of their consumers, which has to be the same as well."""
        found = []
        for running in self.each:
            broker = running.broker
            meters = broker.statistics.meters("GROUP_GET_NUMS")
            found.append(
                (
                    broker.offsets.dump(START_MS),
                    broker.offsets.pulled,
                    {key: meter.totals() for key, meter in meters},
                    broker.statistics.gets.totals(),
                    broker.statistics.missed,
                    {(*one[:4],): sum(one.counts) for one in broker.rpc_times.series()},
                )
            )
        assert found[0] == found[1]
        return found[0]


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    without_fsync(monkeypatch)
    with ExitStack() as stack:
        yield Both(tmp_path, stack)


def sends(topic: str, queue_id: int, count: int, tag: str, size: int) -> bytes:
    ext = send_ext(topic, queueId=queue_id, properties={"TAGS": tag})
    return b"".join(request(RequestCode.SEND_MESSAGE_V2, ext, b"%06d" % n * size) for n in range(count))


def a_change(chance: random.Random, both: Both) -> None:
    """Something that decides about pulls becomes other than it was, or perhaps not."""
    kind = chance.randrange(11)
    model = chance.choice(("CLUSTERING", "BROADCASTING"))
    wishes = {topic: chance.choice(("*", "*", "A")) for topic in ("T", "U") if chance.random() < 0.9}
    offset = chance.randrange(20)
    perm = chance.choice((Permission.READ | Permission.WRITE, Permission.WRITE))
    queues, able, other = chance.randrange(1, 5), chance.random() < 0.7, chance.random() < 0.7
    rules = PullRules(broker_readable=chance.random() < 0.8, slave_reads=chance.random() < 0.7)
    if kind == 0:
        return both.connect()
    if kind == 1:
        both.version += chance.randrange(2)
        body = heartbeat_body(topics=wishes, version=both.version, model=model)
        both.feed(request(RequestCode.HEART_BEAT, body=body))
        return None
    if kind == 2:
        both.feed(
            sends(chance.choice("TU"), chance.randrange(4), chance.randrange(1, 9), "A", 1 + 400 * other)
        )
        return None
    if kind == 3 and len(both.clients) > 1:
        for client in both.clients.pop(0):
            client.disconnect()
        return None
    for running in both.each:
        broker = running.broker
        config = broker.groups.get("cg")
        if kind == 4:
            broker.topics.update(TopicConfig("T", queues, 4, perm), START_MS)
        elif kind == 5 and config is not None:
            changed = replace(config, consume_enable=able, consume_broadcast_enable=other, broker_id=offset)
            broker.groups.update(changed, START_MS)
        elif kind == 6:
            broker.offsets.reset("cg", "T", 0, offset)
        elif kind == 7:
            broker.replication.limits.unread = None if able else "it is not known who is the master"
        elif kind == 8:
            broker.processors.pulls.configure(rules)
        elif kind == 9:
            broker.groups.set_forbidden("cg", "T", 0 if able else READ_FORBIDDEN, START_MS)
        elif kind == 10 and not able:
            broker.store.delete_topic("U", lambda _done: None)
    return None


def all_is_well(both: Both) -> None:
    """Whatever `a_change` took away is back, but for what pulls and heartbeats have to bring."""
    both.version += 1
    body = heartbeat_body(topics={"T": "*", "U": "*"}, version=both.version)
    both.feed(request(RequestCode.HEART_BEAT, body=body))
    for running in both.each:
        broker = running.broker
        broker.topics.update(TopicConfig("T", 4, 4), START_MS)
        config = broker.groups.get("cg")
        if config is not None:
            changed = replace(config, consume_enable=True, consume_broadcast_enable=True)
            broker.groups.update(changed, START_MS)
        broker.groups.set_forbidden("cg", "T", 0, START_MS)
        broker.replication.limits.unread = None
        broker.processors.pulls.configure(PullRules())


def a_pull(chance: random.Random, opaque: int) -> bytes:
    """One of a few pulls, with any numbers."""
    topic, flags, version, count = chance.choice(
        (("T", OWN, 0, 2), ("T", 0, 0, 32), ("T", COMMIT, 2, 2), ("U", OWN | COMMIT, 0, 32))
    )
    ext = pull_ext(
        topic,
        queueId=chance.choice((0, 0, 1, 3, 9)),
        queueOffset=chance.choice((0, 3, 7, 9, 9, 12, 40)),
        commitOffset=chance.choice((0, 5, 8)),
        maxMsgNums=count,
        sysFlag=int(flags),
        subVersion=version,
        suspendTimeoutMillis=0,
    )
    return request(PULL, ext, opaque=opaque)


@pytest.mark.parametrize("seed", range(4))
def test_a_known_header_is_answered_as_an_unknown_one(both: Both, seed: int) -> None:
    chance = random.Random(seed)
    for topic in ("T", "U"):
        for queue_id in range(4):
            both.feed(sends(topic, queue_id, 9, "A", 1) + sends(topic, queue_id, 5, "B", 900))
    both.feed(request(RequestCode.HEART_BEAT, body=heartbeat_body(topics={"T": "*", "U": "*"})))
    opaque = 1000
    for _ in range(80):
        if chance.random() < 0.3:
            a_change(chance, both)
        elif chance.random() < 0.3:
            all_is_well(both)
        at = chance.randrange(len(both.clients))
        pulls = []
        for _ in range(chance.randrange(1, 12)):
            opaque += chance.choice((1, 1, 1, 1, 30))
            pulls.append(a_pull(chance, opaque))
        data = b"".join(pulls)
        both.feed(data, at, chance.choice((0, 0, chance.randrange(len(data)), len(pulls[0]))))
    both.known()
    assert both.taken > 40, "the quick way was hardly ever gone"


def test_what_is_no_number_is_left_to_the_readable_way(both: Both) -> None:
    """Whatever stands in the four places of a header that is known, and whatever else is other than it was."""
    both.feed(sends("T", 0, 40, "A", 1))
    text = request(PULL, pull_ext("T", queueOffset=11, commitOffset=22), opaque=1234)[8:]
    for _ in range(2):
        both.feed(frame_of(text))
    assert both.taken == 1
    changes = [
        (b'"queueOffset":"11"', b'"queueOffset":"%s"' % value)
        for value in (b"01", b"+1", b"1_", b" 1", b"-1", b"1 ", b"xx", b"1.")
    ]
    changes += [(b'"opaque":1234', b'"opaque":%s' % value) for value in (b"-123", b"12.0", b"null")]
    changes += [(b'"queueId":"0"', b'"queueId":"%s"' % value) for value in (b"7", b"-", b"x")]
    changes += [(b'"flag":0', b'"flag":1'), (b'"flag":0', b'"flag":2'), (b'"topic":"T"', b'"topic":"V"')]
    for old, new in changes:
        assert text.count(old) == 1 and len(old) == len(new)
        both.feed(frame_of(text.replace(old, new)))
        assert both.taken == 1, new
    both.feed(frame_of(text, b"with a body"))
    assert both.taken == 1
    both.feed(frame_of(text))
    assert both.taken == 2
    both.known()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"queueOffset":"11"', b'"queueOffset":"11","queueOffset" :"3"'),
        (b'"queueOffset":"11"', b'"queueOffset":"11","x":"\\"queueOffset\\":\\"3\\""'),
        (b'"queueOffset":"11"', b'"queueOffset":"11","queueOffset" :"11"'),
        (b'"queueOffset":"11"', b'"queueOffset" :"3"'),
        (b'"queueOffset":"11"', b'"queueOffset":"11","queueOffset":"12"'),
        (b'"opaque":1234', b'"opaque":1234,"opaque" : 5'),
        (b'"topic":"T"', b'"topic":"\xff"'),
        (b'"flag":0', b'"flag":%d' % FrameFlag.ONEWAY),
        (b'"subscription":"*"', b'"subscription":"A"'),
        (b'"expressionType":"TAG"', b'"expressionType":"SQL92"'),
        (b'{"code":11', b'{"code":361'),
    ],
)
def test_a_header_whose_numbers_stand_elsewhere_too_is_not_learned(old: bytes, new: bytes) -> None:
    text = request(PULL, pull_ext("T", queueOffset=11, commitOffset=22), opaque=1234)[8:]
    shape = learn_template(frame_of(text)[4:])
    assert shape is not None
    assert shape.numbers(frame_of(text)[4:]) == (0, 11, 22, 1234)
    found = learn_template(frame_of(text.replace(old, new, 1))[4:])
    assert found is None or (new.startswith(old) and found.numbers(frame_of(text)[4:]) is None)
    if b"\\" not in new:
        assert found is None


@pytest.mark.parametrize(("blanks", "is_learned"), [(1_000, True), (2_100, False)])
def test_a_long_header_is_not_kept(blanks: int, is_learned: bool) -> None:
    """A stranger had the broker keep dozens of headers of 40 KB for each connection."""
    text = request(PULL, pull_ext("T"), opaque=1234)[8:]
    found = learn_template(frame_of(text.replace(b'"flag":0', b'"flag":0' + b" " * blanks, 1))[4:])
    assert (found is not None) is is_learned


def test_the_port_that_serves_no_pulls_does_not_serve_known_ones_either(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect(fast=True)
        client.feed(sends("T", 0, 3, "A", 1))
        client.answers()
        for _ in range(3):
            assert client.pull("T").code != 0
