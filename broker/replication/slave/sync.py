"""Talk to the other members: a slave's hello, its synchronization, and the search for a newer master.

Three tasks over the remoting port, with the client's own connections. None of them decides: the comparison of logs is
`ha.group.divergence`'s, roles are `ha.group.roles`'s, tables are taken over by `broker.replication.table_sync`. Each
change of the broker's state is made in a turn of its own, between two awaits.

    before_report    with the HA connection open: compare the logs; only a log that continues goes on
    sync             ten times a second: fetch what moved at the master, bring what consumers committed here
    newer master     once a second: ask every member that is known, and follow a master of a newer epoch

A master that answers 3 to the challenge is RocketMQ's: it is followed as RocketMQ's slaves do it, with requests 21, 43,
45, 60, 61 and 201, and the logs are not compared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog
import trio

from broker.context import BrokerContext
from broker.remoting.shell import Connection, Shell
from broker.replication.group_member import Turns
from broker.replication.log_view import LogPins
from broker.replication.master_slave import Replication
from broker.replication.member import HaMember
from broker.state.data_version import DataVersion, int_of
from ha.group.divergence import Bytes, Compared, Extent, Finding, LogQuery, compare, sums_of, tail
from ha.group.epochs import Epochs
from ha.group.hello import (
    Challenge,
    Hello,
    MemberStatusMessage,
    RangesRequest,
    Sums,
    Welcome,
    decode_untrusted,
    encode,
    proof_of,
)
from ha.group.metadata import SyncRequest, SyncResponse
from ha.group.roles import MASTER_ID, SLAVE, QuorumPolicy, RoleDecision, RoleRecord
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from store.offline.diverged import About
from store.timer.layout import Checkpoint
from store.timer.progress import Progress

__all__ = ["Peer", "SlaveSync", "master_address"]

log = structlog.get_logger("broker.ha")

SYNC_S = 0.1
RETRY_S = 0.4
PROBE_S = 1.0
ROCKETMQ_SYNC_S = 1.0
TIMER_COUNTS_S = 5.0
CALL_S = 2.0
COMPARE_S = 30.0
TROUBLE_S = 2.0
_PAUSE_S = 0.05


class NotSame(OSError):
    """A refusal to follow this master, or to follow it now: the text says why."""


class Peer:
    """A connection to another member, over which questions are proven where the group has a secret."""

    def __init__(self, link: AsyncConnection, secret: str, challenge: Challenge) -> None:
        self._link = link
        self._secret = secret
        self._challenge = challenge.challenge

    @classmethod
    async def of(cls, link: AsyncConnection, secret: str) -> Peer | None:
        """Ask for the peer's challenge; return None for a RocketMQ broker."""
        answer = await link.call(Command(RequestCode.ROPEWALK_CHALLENGE), CALL_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise NotSame(f"{link.address}: {answer.remark}")
        return cls(link, secret, decode_untrusted(Challenge, answer.body))

    async def ask(self, code: int, message: msgspec.Struct, timeout_s: float = CALL_S) -> bytes:
        """Ask a question and return the body of the answer. Raises `NotSame` with the peer's words if it says no."""
        body = encode(message)
        ext = {"proof": proof_of(self._secret, self._challenge, code, body)} if self._secret else {}
        answer = await self._link.call(Command(code, ext, body), timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise NotSame(f"{self._link.address}: {answer.remark or f'code {answer.code}'}")
        return answer.body

    async def timer_counts(self) -> dict[str, Any] | None:
        """Ask for the pending timer messages by topic (61)."""
        return await timer_counts(self._link)

    async def status(self) -> MemberStatusMessage:
        return decode_untrusted(
            MemberStatusMessage, await self.ask(RequestCode.ROPEWALK_MEMBER_STATUS, RangesRequest([]))
        )


async def timer_counts(link: AsyncConnection) -> dict[str, Any] | None:
    """Ask a master for its pending timer messages by topic; None where its wheel is switched off."""
    answer = await link.call(Command(RequestCode.GET_TIMER_METRICS), CALL_S)
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        value = fastjson.loads(answer.body)
    except fastjson.FastjsonError as exc:
        raise NotSame(f"{link.address} answered {RequestCode.GET_TIMER_METRICS}: {exc}") from exc
    return value if isinstance(value, dict) else None


def master_address(record: RoleRecord, replication: Replication, configured: str) -> str:
    """Return the master's remoting address: by epoch, name server, configuration, or next to its HA port."""
    known = record.master or replication.master_address or configured
    if known or not replication.master_ha:
        return known
    host, _, port = replication.master_ha.rpartition(":")
    return f"{host}:{int(port) - 1}"


class SlaveSync:
    """The tasks of one broker."""

    def __init__(
        self, broker: BrokerContext, member: HaMember, replication: Replication, turns: Turns, shell: Shell
    ) -> None:
        self._broker = broker
        self._member = member
        self._replication = replication
        self._turns = turns
        self._shell = shell
        self._secret = broker.config.ropewalk_secret
        self._sent = 0
        """Of the own journal of commits, up to where this master was told."""
        self._rocketmq_versions: dict[int, DataVersion] = {}
        self._troubles: dict[str, tuple[float, str]] = {}
        """Faults by name: since when each has lasted, and the part of it that was logged."""
        self._replication.before_report = self.before_report
        self._replication.service.secret_required = bool(self._secret)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_synced)
            nursery.start_soon(self._watch_for_newer_master)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """A turn of the broker, in which its state may change."""
        self._turns.begin_turn()
        try:
            yield
        finally:
            self._turns.end_turn()
            self._shell.flush()

    async def _saved(self, begin: Callable[[Callable[[], None]], None]) -> None:
        """Begin something that ends with a record on disk, and wait for that."""
        done = trio.Event()
        with self._turn():
            begin(done.set)
        await done.wait()

    def _report_trouble(self, what: str, trouble: str | None) -> None:
        """Tell people once of a trouble that lasts, and once when it is over; what passes in a moment is none."""
        now = trio.current_time()
        if trouble is None:
            if self._troubles.pop(what, (0.0, ""))[1]:
                log.info("over", trouble=what)
            return
        since, told = self._troubles.setdefault(what, (now, ""))
        if told != trouble and now - since >= TROUBLE_S:
            self._troubles[what] = since, trouble
            log.warning(what, reason=trouble)

    def _master_address(self) -> str:
        return master_address(
            self._member.record, self._replication, self._broker.config.ropewalk_master_address
        )

    # -- hello -----------------------------------------------------------------------------------------

    async def before_report(self, connection: Connection) -> None:
        """Say hello about this connection, and compare the logs. Raises OSError where the slave must not go on."""
        address = self._master_address()
        try:
            async with open_connection(address, timeout=CALL_S) as link:
                peer = await Peer.of(link, self._secret)
                if peer is None:
                    self._begin_with_rocketmq(address)
                    return
                await self._hello(peer, address, connection)
        except (RopewalkError, OSError) as exc:
            raise NotSame(str(exc)) from exc

    def _begin_with_rocketmq(self, address: str) -> None:
        epoch = self._member.record.promised_epoch
        if epoch or self._secret:
            why = f"epoch {epoch} was accepted here" if epoch else "this group has a ropewalkSecret"
            raise NotSame(f"{address} is a RocketMQ broker, which knows nothing of either: {why}")
        if not self._broker.store.log.segments:
            log.info("a RocketMQ master gives an empty slave its newest segment only", master=address)

    async def _hello(self, peer: Peer, address: str, connection: Connection) -> None:
        broker, member, store = self._broker, self._member, self._broker.store
        record = member.record
        view = LogPins(store.log, store.whole_end if store.log.segments else 0, store.damage)
        try:
            ranges = tail(view.begin, view.end)
            sums = await trio.to_thread.run_sync(sums_of, view, ranges)
            host, port = connection.local
            hello = Hello(
                cluster=broker.config.broker_cluster_name,
                broker_name=broker.config.broker_name,
                broker_id=record.broker_id,
                address=member.address,
                socket=f"{host}:{port}",
                promised_epoch=record.promised_epoch,
                begin=view.begin,
                end=view.end,
                segment_size=store.log.segment_size,
                epochs=member.epochs.pairs(),
                ranges=list(ranges),
                sums=list(sums),
                policy_version=member.on_disk.policy.version,
                policy_epoch=member.on_disk.leader_epoch,
            )
            body = await peer.ask(RequestCode.ROPEWALK_SLAVE_HELLO, hello, COMPARE_S)
            welcome = decode_untrusted(Welcome, body)
            if not member.core.listens_to(welcome.leader_epoch):
                raise NotSame(
                    f"{address} leads epoch {welcome.leader_epoch}, and {member.record.promised_epoch} is accepted here"
                )
            if welcome.leader_epoch > member.record.leader_epoch:
                await self._become_slave(welcome.leader_epoch, address, welcome.policy)
                raise NotSame(f"epoch {welcome.leader_epoch} has begun: connecting anew")
            epochs = Epochs.of(welcome.epochs)
            mine = Extent(view.begin, view.end)
            theirs = Extent(welcome.begin, welcome.end)
            parted = member.epochs.agree_up_to(mine.end, epochs, theirs.end)
            if tuple(welcome.sums) == sums and None not in sums:
                found = Compared(Finding.SAME, view.end)
            else:
                found = await self._compare(peer, view, mine, theirs)
        except ValueError as exc:
            raise NotSame(f"{address} says what makes no sense: {exc}") from exc
        finally:
            view.release()
        self._check_followed(address, welcome.leader_epoch)
        self._judge(found, mine, theirs, address, welcome.leader_epoch, parted)
        await self._saved(lambda done: member.adopt_epochs(epochs, done))
        self._check_followed(address, welcome.leader_epoch)
        await self._saved(lambda done: member.adopt_policy(welcome.policy, done))
        member.tables.forget_progress()

    def _check_followed(self, address: str, epoch: int) -> None:
        """Reject what a master said that was overtaken meanwhile. Raises `NotSame`.

        A member that was promoted while it compared its log has to keep what it was promoted for.
        """
        core = self._member.core
        if not core.listens_to(epoch) or core.record.leader_epoch != epoch:
            raise NotSame(
                f"{address} leads epoch {epoch}, and meanwhile {core.record.promised_epoch} was accepted here"
            )

    async def _compare(self, peer: Peer, view: LogPins, mine: Extent, theirs: Extent) -> Compared:
        """Ask the master what the search wants to know; the own log is read by a thread."""
        search = compare(view, mine, theirs)
        answer: Any = None

        def step() -> LogQuery | Compared:
            try:
                return search.send(answer)
            except StopIteration as end:
                found: Compared = end.value
                return found

        while True:
            asked = await trio.to_thread.run_sync(step)
            if isinstance(asked, Compared):
                return asked
            if isinstance(asked, Bytes):
                question = RangesRequest([(asked.start, asked.end)])
                answer = await peer.ask(RequestCode.ROPEWALK_LOG_BYTES, question, COMPARE_S)
            else:
                question = RangesRequest(list(asked.ranges))
                answer = decode_untrusted(
                    Sums, await peer.ask(RequestCode.ROPEWALK_LOG_SUMS, question, COMPARE_S)
                ).sums

    def _judge(
        self, found: Compared, mine: Extent, theirs: Extent, address: str, epoch: int, parted: int
    ) -> None:
        """Go on, or say why not; a log that has to be cut is left to the process."""
        if found.finding is Finding.SAME:
            return
        here, there = f"{mine.begin} to {mine.end}", f"{theirs.begin} to {theirs.end}"
        if found.finding is Finding.STRANGERS:
            raise NotSame(
                f"the log here ({here}) and that of {address} ({there}) have no record in common. Nothing was "
                "changed: if the master's is the right one, move this slave's store away, and it starts with a copy"
            )
        begin = found.common
        why = f"{mine.end - begin} bytes that {address} does not have, from {begin} on"
        if found.finding is Finding.BEHIND:
            begin, why = (
                mine.begin,
                f"the log ends at {mine.end}, and that of {address} begins at {theirs.begin}",
            )
        log.warning(
            "this log is not the beginning of its master's",
            finding=found.finding.value,
            why=why,
            writers_part_at=parted,
        )
        about = About(why, begin, mine.end, self._broker.now_ms(), address, epoch)
        self._member.request_cut(about, behind=found.finding is Finding.BEHIND)
        raise NotSame(f"the log has to be cut first: {why}")

    async def _become_slave(self, epoch: int, address: str, policy: QuorumPolicy, broker_id: int = 0) -> None:
        member = self._member
        decision: RoleDecision = member.core.follow(
            epoch, broker_id or member.record.broker_id, address, policy
        )
        if decision.refusal is not None:
            raise NotSame(decision.refusal)
        await self._saved(lambda done: member.apply_decision(decision, done))

    # -- metadata --------------------------------------------------------------------------------------

    async def _keep_synced(self) -> None:
        while True:
            address = self._master_address() if not self._member.core.is_master else ""
            if not address:
                await trio.sleep(_PAUSE_S)
                continue
            try:
                async with open_connection(address, timeout=CALL_S) as link:
                    peer = await Peer.of(link, self._secret)
                    if peer is None:
                        await self._sync_with_rocketmq(link, address)
                    else:
                        await self._sync(peer, address)
            except (RopewalkError, OSError) as exc:
                with self._turn():
                    self._member.lost_contact()
                self._report_trouble("no metadata from the master", str(exc))
                await trio.sleep(RETRY_S)
            await trio.sleep(SYNC_S)

    def _follows(self, address: str) -> bool:
        return not self._member.core.is_master and self._master_address() == address

    async def _sync(self, peer: Peer, address: str) -> None:
        member, broker = self._member, self._broker
        self._sent = 0
        wanted = False
        counted = -TIMER_COUNTS_S
        while self._follows(address):
            counts = None
            if broker.timers.enabled and trio.current_time() - counted >= TIMER_COUNTS_S:
                counted, counts = trio.current_time(), await peer.timer_counts()
            topics, groups = member.tables.adopted_topics, member.tables.adopted_groups
            commits, sequence = broker.offsets.journal.since(self._sent)
            record = member.record
            ask = SyncRequest(
                broker_id=record.broker_id,
                address=member.address,
                promised_epoch=record.promised_epoch,
                seen=member.tables.seen,
                end=broker.store.whole_end,
                flushed=broker.store.flushed_offset,
                policy_version=member.on_disk.policy.version,
                policy_epoch=member.on_disk.leader_epoch,
                commits=[
                    (topic, group, queue_id, offset, time_ms)
                    for (topic, group, queue_id), time_ms in commits
                    if (offset := broker.offsets.query(group, topic, queue_id)) is not None
                ],
                topics_version=(topics.state_version, topics.counter, topics.timestamp),
                groups_version=(groups.state_version, groups.counter, groups.timestamp),
                topics=broker.topics.to_wrapper() if wanted else None,
                groups=broker.groups.to_wrapper() if wanted else None,
            )
            answer = decode_untrusted(SyncResponse, await peer.ask(RequestCode.ROPEWALK_SYNC, ask))
            if not self._follows(address) or answer.leader_epoch < member.record.leader_epoch:
                return
            self._sent, wanted = sequence, answer.wants_tables
            with self._turn():
                member.apply_sync(answer)
                if counts is not None:
                    broker.timers.metrics.adopt(counts)
            self._report_trouble("no metadata from the master", None)
            if not wanted and not answer.more and len(commits) == len(ask.commits):
                await trio.sleep(SYNC_S)

    # -- metadata of a RocketMQ master -----------------------------------------------------------------

    async def _sync_with_rocketmq(self, link: AsyncConnection, address: str) -> None:
        host, _, port = address.rpartition(":")
        async with open_connection(f"{host}:{int(port) - 2}", timeout=CALL_S) as fast:
            while self._follows(address):
                topics = await self._rocketmq_table(fast, RequestCode.GET_ALL_TOPIC_CONFIG)
                offsets = await self._rocketmq_table(link, RequestCode.GET_ALL_CONSUMER_OFFSET)
                delays = await self._rocketmq_table(link, RequestCode.GET_ALL_DELAY_OFFSET)
                groups = await self._rocketmq_table(link, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
                timers = await self._rocketmq_timers(fast)
                counts = await timer_counts(fast) if timers is not None else None
                with self._turn():
                    if timers is not None:
                        self._broker.timers.follow(timers)
                    if counts is not None:
                        self._broker.timers.metrics.adopt(counts)
                    self._adopt_rocketmq_tables(topics, offsets, delays, groups)
                    self._member.lost_ms = -1
                self._report_trouble("no metadata from the master", None)
                await trio.sleep(ROCKETMQ_SYNC_S)

    async def _rocketmq_timers(self, link: AsyncConnection) -> Progress | None:
        """The progress of a RocketMQ master's timers; None where its wheel is switched off."""
        answer = await link.call(Command(RequestCode.GET_TIMER_CHECK_POINT), CALL_S)
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            found = Checkpoint.decode(answer.body)
        except ValueError as exc:
            raise NotSame(f"{link.address} answered {RequestCode.GET_TIMER_CHECK_POINT}: {exc}") from exc
        return Progress(found.read_ms, found.master_queue_offset)

    async def _rocketmq_table(self, link: AsyncConnection, code: int) -> dict[str, Any] | None:
        """A table of a RocketMQ master; None if it has not moved since it was taken."""
        answer = await link.call(Command(code), CALL_S)
        if answer.code != ResponseCode.SUCCESS:
            raise NotSame(f"{link.address} answered {answer.code} to {code}: {answer.remark}")
        try:
            value = fastjson.loads(answer.body)
        except fastjson.FastjsonError as exc:
            raise NotSame(f"{link.address} answered {code} with what is no JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise NotSame(f"{link.address} answered {code} with what is no object")
        if code in (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET):
            return value  # RocketMQ moves their versions once in hundreds of changes
        version = DataVersion.from_json(value.get("dataVersion"))
        if version != DataVersion() and self._rocketmq_versions.get(code) == version:
            return None
        self._rocketmq_versions[code] = version
        return value

    def _adopt_rocketmq_tables(
        self,
        topics: dict[str, Any] | None,
        offsets: dict[str, Any] | None,
        delays: dict[str, Any] | None,
        groups: dict[str, Any] | None,
    ) -> None:
        broker = self._broker
        if topics is not None:
            self._member.tables.adopt_topics(topics)
        if groups is not None:
            broker.groups.adopt(groups)
        if offsets is not None:
            # The whole table, also where it goes back: when a commit was made RocketMQ does not say.
            fresh = type(broker.offsets)()
            fresh.load(offsets)
            for (topic, group, queue_id), _time_ms in fresh.journal.since(0, 1 << 30)[0]:
                offset = fresh.query(group, topic, queue_id)
                if offset is not None:
                    broker.offsets.commit(group, topic, queue_id, offset)
        table = (delays or {}).get("offsetTable")
        if isinstance(table, dict):
            found = {int_of(level, 0): int_of(offset, -1) for level, offset in table.items()}
            self._member.tables.follow_delays(
                {level: offset for level, offset in found.items() if level > 0 and offset >= 0}
            )

    # -- looking around --------------------------------------------------------------------------------

    async def _watch_for_newer_master(self) -> None:
        while True:
            if self._member.has_replicas:
                await self._find_newest_master()
                self._member.asked.set()
            await trio.sleep(PROBE_S if not self._member.master_hint else _PAUSE_S)

    async def _find_newest_master(self) -> None:
        """Find the newest master among everybody who may know, and follow it if it is newer than what is known."""
        member = self._member
        asked: set[str] = set()
        statuses: list[MemberStatusMessage] = []
        addresses = await self._candidate_addresses()
        for _round in range(2):  # whom the first ones name is asked too
            fresh = sorted(addresses - asked - {member.address, ""})
            asked |= set(fresh)
            found = await self._statuses_of(fresh)
            statuses += found
            addresses = {each.master for each in found}
        member.master_hint = ""
        config = self._broker.config
        masters = [
            each
            for each in statuses
            if each.role != SLAVE
            and (each.cluster, each.broker_name) == (config.broker_cluster_name, config.broker_name)
        ]
        newest = max(masters, key=lambda each: each.leader_epoch, default=None)
        record = member.record
        answered = {each.address for each in statuses}
        moved = record.role == SLAVE and record.master != "" and record.master not in answered
        # A master of the same epoch elsewhere is the same one, started again on another port.
        enough = record.leader_epoch if moved else record.leader_epoch + 1
        if (
            newest is not None
            and newest.leader_epoch >= max(enough, record.promised_epoch)
            and newest.address != record.master
        ):
            broker_id = self._id_under(newest)
            log.warning(
                "there is a newer master",
                address=newest.address,
                epoch=newest.leader_epoch,
                broker_id=broker_id,
            )
            try:
                await self._become_slave(newest.leader_epoch, newest.address, newest.policy, broker_id)
            except NotSame as exc:
                self._report_trouble("the newer master is not followed", str(exc))
        elif member.core.is_master:
            with self._turn():
                member.confirm_no_newer_master()
        if not member.core.is_master:
            master = next((each for each in statuses if each.address == member.record.master), None)
            if master is not None and master.role != SLAVE and master.ha_address:
                with self._turn():
                    self._replication.set_master(master.ha_address, master.address)

    def _id_under(self, master: MemberStatusMessage) -> int:
        """The id that the new master keeps for this broker, or the lowest that nobody has."""
        own = [int(name) for name, address in master.policy.slaves.items() if address == self._member.address]
        if own:
            return min(own)
        if self._member.record.broker_id != MASTER_ID:
            return self._member.record.broker_id
        # Where the new master did not know whose place it took, it kept that place for whoever comes.
        return next(n for n in range(1, 1 << 16) if not master.policy.slaves.get(str(n)))

    async def _candidate_addresses(self) -> set[str]:
        member = self._member
        addresses = {member.master_hint, member.record.master, *member.record.policy.slaves.values()}
        found: list[str] = []

        async def ask(name_server: str) -> None:
            with trio.move_on_after(PROBE_S):
                try:
                    async with open_connection(name_server, timeout=PROBE_S) as link:
                        found.extend(await self._members(link))
                except (RopewalkError, OSError):
                    pass  # whoever else knows is asked too

        await _together(ask, self._broker.config.namesrv_addr)
        return addresses | set(found)

    async def _members(self, link: AsyncConnection) -> list[str]:
        config = self._broker.config
        ext = {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}
        answer = await link.call(Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext), PROBE_S)
        if answer.code != ResponseCode.SUCCESS:
            return []
        document = fastjson.loads(answer.body)
        group = document.get("brokerMemberGroup") if isinstance(document, dict) else None
        addresses = group.get("brokerAddrs") if isinstance(group, dict) else None
        return (
            [each for each in addresses.values() if isinstance(each, str)]
            if isinstance(addresses, dict)
            else []
        )

    async def _statuses_of(self, addresses: list[str]) -> list[MemberStatusMessage]:
        found: list[MemberStatusMessage] = []

        async def ask_one(address: str) -> None:
            with trio.move_on_after(PROBE_S):
                try:
                    async with open_connection(address, timeout=PROBE_S) as link:
                        peer = await Peer.of(link, self._secret)
                        if peer is not None:
                            found.append(await peer.status())
                except (RopewalkError, OSError, ValueError):
                    pass  # it is away, or no member: nothing is learned from it

        await _together(ask_one, addresses)
        return found


async def _together(job: Callable[[str], Awaitable[None]], words: list[str] | tuple[str, ...]) -> None:
    async with trio.open_nursery() as nursery:
        for word in words:
            nursery.start_soon(job, word)
