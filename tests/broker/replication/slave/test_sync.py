"""What a slave says to its master and believes of it: the questions and answers themselves, without a network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from broker.remoting.connection import Connection
from broker.remoting.shell import Shell
from broker.replication.slave.hello import SlaveHello
from broker.replication.slave.peer import NotSame, Peer, read_answer
from broker.replication.slave.slave_broker import master_address
from broker.replication.slave.sync import SlaveSync
from ha.group.divergence import Compared, Finding
from ha.group.hello import Hello, Welcome, encode
from ha.group.metadata import Seen, SyncRequest, SyncResponse
from ha.group.roles import SLAVE, SYNC_MASTER, QuorumPolicy
from ropewalk.format.remoting import Command
from store.offline.diverged import About
from tests.broker.harness import InProcess, NoRoom, config_of, without_fsync
from tests.store.worlds import World, put
from tests.support.links import BufferedLink

MASTER = "10.0.0.1:10911"
POLICY = QuorumPolicy(SYNC_MASTER, 2, 3, {"1": "127.0.0.1:10911"})


class Master:
    """The other end of a connection on the remoting port: it keeps what it is asked, and says what it was told to."""

    may_lead = True
    """Whether its word may change a role."""

    def __init__(self, answer: msgspec.Struct, then: Callable[[], None] = lambda: None) -> None:
        self.asked: list[msgspec.Struct] = []
        self._answer = answer
        self._then = then

    async def ask(self, code: int, message: msgspec.Struct, timeout_s: float = 0.0) -> bytes:
        self.asked.append(message)
        self._then()
        return encode(self._answer)

    async def timer_counts(self) -> dict[str, Any]:
        return {"timingCount": {"T": {"count": 3, "timeStamp": 1}}}


class Wire:
    """A shell without sockets, and a connection on the HA port."""

    local = ("127.0.0.1", 40_001)

    def flush(self) -> None:
        pass


@pytest.fixture
def disk() -> NoRoom:
    return NoRoom()


@pytest.fixture
def slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: NoRoom) -> Iterator[InProcess]:
    without_fsync(monkeypatch)
    monkeypatch.setattr("broker.replication.role_files._ROOM_AGAIN_S", 0.01)
    config = config_of(tmp_path, brokerRole=SLAVE, brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config, disk) as running:
        yield running


def follow(slave: InProcess, epoch: int) -> None:
    """Have it on disk that this is a slave of the master of this epoch."""
    done: list[bool] = []
    member = slave.broker.member
    member.apply_decision(member.core.follow(epoch, 1, MASTER, POLICY), lambda: done.append(True))
    slave.until(lambda: bool(done))


def run(slave: InProcess, work: Callable[[SlaveSync], Awaitable[None]]) -> None:
    """Do something of a slave's tasks, while its turns go on."""

    async def both() -> None:
        async with trio.open_nursery() as nursery:

            async def turns() -> None:
                while True:
                    slave.turn()
                    await trio.sleep(0.001)

            nursery.start_soon(turns)
            await work(
                SlaveSync(
                    slave.broker.context,
                    slave.broker.member,
                    slave.broker.replication,
                    slave.broker,
                    cast(Shell, Wire()),
                )
            )
            nursery.cancel_scope.cancel()

    trio.run(both)


def hello(slave: InProcess, master: Master) -> None:
    run(slave, lambda sync: sync.hello._hello(cast(Peer, master), MASTER, cast(Connection, Wire())))


def test_a_slave_says_who_it_is_and_has_the_terms_on_disk_before_it_goes_on(slave: InProcess) -> None:
    master = Master(Welcome(0, 0, 0, [], [], POLICY))
    hello(slave, master)
    (said,) = master.asked
    assert isinstance(said, Hello)
    assert (said.broker_id, said.socket, said.policy_version) == (1, "127.0.0.1:40001", 0)
    assert slave.broker.member.on_disk.policy == POLICY


def test_a_master_below_the_epoch_that_was_accepted_is_not_followed(slave: InProcess) -> None:
    follow(slave, 5)
    with pytest.raises(BaseExceptionGroup) as caught:
        hello(slave, Master(Welcome(4, 0, 0, [], [], msgspec.structs.replace(POLICY, version=9))))
    assert caught.group_contains(NotSame, match="leads epoch 4, and 5 is accepted here")
    assert slave.broker.member.record.policy == POLICY


@pytest.mark.parametrize("finding", [Finding.SAME, Finding.DIVERGED])
def test_a_slave_that_was_promoted_while_it_compared_its_log_keeps_all_of_it(
    slave: InProcess, monkeypatch: pytest.MonkeyPatch, finding: Finding
) -> None:
    """Its log was compared with that of a master which it follows no more. A message was lost so."""
    follow(slave, 5)
    member = slave.broker.member

    async def promoted_meanwhile(*_of: object) -> Compared:
        for decision in (member.core.accept(6, "op"), member.core.promote(6, "op")):
            member.apply_decision(decision)
        return Compared(finding, 0)

    monkeypatch.setattr(SlaveHello, "_compare", promoted_meanwhile)
    with pytest.raises(BaseExceptionGroup) as caught:
        hello(slave, Master(Welcome(5, 0, 9, [(4, 0)], [0], POLICY)))
    assert caught.group_contains(NotSame, match="leads epoch 5, and meanwhile 6 was accepted here")
    assert member.diverged is None and (4, 0) not in member.epochs.pairs()


def test_no_role_is_promised_or_changed_between_the_finding_that_the_log_has_to_be_cut_and_the_cut(
    slave: InProcess,
) -> None:
    follow(slave, 5)
    core = slave.broker.member.core
    core.accept(6, "op")
    slave.broker.member.request_cut(About("a tail", 0, 9, 0, MASTER, 5), behind=False)
    refused = [core.accept(7, "op"), core.promote(6, "op"), core.follow(7, 1, MASTER)]
    assert all("is being cut" in str(each.refusal) for each in refused)
    assert (core.record.role, core.record.promised_epoch) == (SLAVE, 6)


def test_a_rocketmq_master_is_not_followed_where_an_epoch_was_accepted(slave: InProcess) -> None:
    async def begin(sync: SlaveSync) -> None:
        sync.hello.refuse_rocketmq(MASTER)

    run(slave, begin)
    follow(slave, 5)
    with pytest.raises(BaseExceptionGroup) as caught:
        run(slave, begin)
    assert caught.group_contains(NotSame, match="epoch 5 was accepted here")


def test_what_an_older_master_says_of_topics_and_terms_is_not_taken(slave: InProcess) -> None:
    follow(slave, 5)
    newer = msgspec.structs.replace(POLICY, version=9, slaves={})
    old = Master(SyncResponse(4, Seen("run"), 700, 700, 1, newer))
    run(slave, lambda sync: sync._sync(cast(Peer, old), MASTER))
    member = slave.broker.member
    assert len(old.asked) == 1 and member.heard is None and member.record.policy == POLICY
    assert slave.broker.timers.pending() == 0


def test_a_master_is_told_of_no_terms_that_are_not_on_disk(slave: InProcess, disk: NoRoom) -> None:
    """It would count a slave that this one has forgotten after a crash: too few answers would do then."""
    follow(slave, 5)
    disk.full = True
    member = slave.broker.member
    new = msgspec.structs.replace(POLICY, version=8)
    newer = msgspec.structs.replace(POLICY, version=9)
    member.adopt_policy(new, lambda: None)
    greeted = Master(Welcome(5, 0, 0, [], [], new), lambda: setattr(disk, "full", False))
    hello(slave, greeted)
    (said,) = greeted.asked
    assert isinstance(said, Hello) and said.policy_version == 3 and member.on_disk.policy == new
    disk.full = True

    def enough() -> None:
        if len(master.asked) == 3:
            disk.full = False
        if member.on_disk.policy == newer and master.asked[-1].policy_version == 9:  # type: ignore[attr-defined]
            member.core.follow(6, 1, "10.0.0.9:10911")  # which ends the conversation

    master = Master(SyncResponse(5, Seen("run"), 0, 0, 1, newer), enough)
    run(slave, lambda sync: sync._sync(cast(Peer, master), MASTER))
    told = [each.policy_version for each in master.asked if isinstance(each, SyncRequest)]
    assert told[:3] == [8, 8, 8] and told[-1] == 9
    assert slave.broker.timers.metrics.counts() == {"T": 3}, "of its master"


def test_a_slave_that_accepts_an_epoch_hangs_up_on_its_master_before_that_is_on_disk(
    slave: InProcess, disk: NoRoom
) -> None:
    follow(slave, 5)
    disk.full = True
    client, member, link = slave.broker.replication.client, slave.broker.member, BufferedLink()
    assert client is not None
    client.opened(link)
    client.begin()
    link.take()
    member.apply_decision(member.core.accept(6, "me"))
    assert link.closed and client.link is None and link.take() == b"", "no report leaves any more"
    disk.full = False


def test_a_connection_that_comes_when_this_is_a_master_by_now_is_not_used(slave: InProcess) -> None:
    replication, link = slave.broker.replication, BufferedLink()
    client = replication.client
    assert client is not None

    class Late(Wire):
        async def dial(self, *_whom: object) -> BufferedLink:
            replication.lead(SYNC_MASTER)
            return link

    trio.run(replication._connect, cast(Shell, Late()), client, replication.master_ha)
    assert link.closed and client.link is None and link.take() == b""


def test_the_link_to_one_master_ends_when_another_one_is_learned_of(slave: InProcess) -> None:
    replication, link = slave.broker.replication, BufferedLink()
    assert replication.client is not None
    replication.client.opened(link)
    hung_up = []
    for configured in ("10.0.0.1:10912", ""):
        replication._static_master = configured
        replication.set_master("10.0.0.9:10912", "10.0.0.9:10911")
        hung_up.append(link.closed)
    assert hung_up == [False, True], "haMasterAddress says who it is"
    assert replication.client.wait_ms == 0
    assert (replication.master_ha, replication.master_address) == ("10.0.0.9:10912", "10.0.0.9:10911")


@pytest.mark.parametrize(
    "address", ["x", ":1", "h:", "h:99999999", "h:" + "9" * 5000, "http://h:1", "\N{SNOWMAN}..:1"]
)
def test_no_address_that_a_name_server_tells_ends_a_slave(tmp_path: Path, address: str) -> None:
    with InProcess(config_of(tmp_path, brokerRole=SLAVE, brokerId=1, namesrvAddr="10.0.0.9:9876")) as slave:
        replication = slave.broker.replication

        class Dialing(Wire):
            async def dial(self, host: str, port: int, *_rest: object) -> BufferedLink:
                host.encode("idna")
                raise OSError(111, "refused")

        async def connect() -> None:
            replication.set_master(address, address)
            client = replication.client
            if client is not None and replication.master_ha:
                await replication._connect(cast(Shell, Dialing()), client, replication.master_ha)

        trio.run(connect)
        assert master_address(slave.broker.member.record, replication, "") == address


def test_a_slave_forgets_commits_for_a_topic_that_its_master_deleted_and_created_again(
    slave: InProcess, tmp_path: Path
) -> None:
    """Consumers would go on at the old number after a failover, and pass over messages of the new topic."""
    master = World(tmp_path / "master")
    with master.opened() as source:
        put(source, [b"1", b"2", b"3"], "T")
        put(source, [b"1"], "U")
        half = source.log.end_offset
        source.delete_topic("T", lambda _done: None)
        master.clock.ms += 1_000
        put(source, [b"new"], "T")
        data = bytes(source.log.segments[0].map[: source.log.end_offset])
    store, offsets = slave.broker.store, slave.broker.offsets
    assert store.follower is not None
    for end in (half, len(data)):
        while store.follower.end < end:
            store.follower.append(store.follower.end, data[store.follower.end : end])
            slave.turn()
        store.limit_readable(end)
        if end == half:
            for topic, offset in (("T", 3), ("U", 1)):
                assert offsets.merge("g", topic, 0, offset, master.clock.ms - 500)
            assert offsets.merge("new", "T", 0, 1, master.clock.ms + 500)
    assert [offsets.query("g", topic, 0) for topic in ("T", "U")] == [None, 1]
    assert offsets.query("new", "T", 0) == 1, "it was told before the message was here"
    assert [record.body for record in slave.stored("T")] == [b"new"]


def test_a_large_table_of_a_master_is_read_between_the_turns_of_others() -> None:
    table = ",".join(f'"topic{n}@group":{{0:{n},1:{n}}}' for n in range(5_000))
    answer = Command(0, {}, b'{"offsetTable":{%b}}' % table.encode())
    turns = 0

    async def both() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            found = await read_answer(answer)
            assert len(found["offsetTable"]) == 5_000
            nursery.cancel_scope.cancel()

    trio.run(both)
    assert turns > 20
