"""`BrokerContext`: what every request handler may know of its broker, and nothing of who handles what.

One object with the configuration, the clocks, the store and the tables. `broker.assembly` builds it, and
`broker.broker` hands it to handlers; a handler that needs more (the group, the delay service) is given that as an
argument of its own. So a handler can be read without the composition root, and a test can build one over tables alone.

`config` and `ha_status` are replaced whole while the broker runs: read them here each time, keep no copy.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from broker.remoting.rpc_times import RpcTimes
from broker.settings.config import BrokerConfig
from broker.state.clients import ClientRegistry
from broker.state.groups import GroupTable
from broker.state.ha_status import HaStatus
from broker.state.offsets import OffsetTable
from broker.state.queue_locks import LockTable
from broker.state.request_modes import RequestModes
from broker.state.route_status import RouteStatus
from broker.state.statistics import Statistics
from broker.state.topics import TopicTable
from broker.timers.delay_service import DelayService
from broker.timers.timer_service import TimerService
from broker.waiting.catch_up_pulls import CatchUpPulls
from broker.waiting.client_calls import ClientCalls
from broker.waiting.held_pulls import PullHold
from broker.waiting.pending_acks import AckQueue
from ropewalk.client.core.routes import BrokerData, QueueData, TopicRoute
from ropewalk.format.remoting import Command
from store.io.disk import Disk
from store.message_store import MessageStore
from store.read.reader import Reader

__all__ = ["BrokerContext", "FindRoute"]

FindRoute = Callable[[str, Callable[[TopicRoute | None], None]], None]
"""Topic, and what is called with its route on all brokers, or None where no broker has it."""


class NewestReads(Protocol):
    """Reads that see every write that was answered before they began, wherever in the group that was."""

    @property
    def takes_offsets(self) -> bool:
        """Return whether offsets are committed at this member, which is the leader."""

    def forward(
        self, request: Command, refuse: Callable[[int, str], Command], send: Callable[[Command], None]
    ) -> None:
        """Send the leader's answer to a request that only it may answer, or a refusal by code and words."""

    def read(
        self, look: Callable[[], Command], refuse: Callable[[str], Command], send: Callable[[Command], None]
    ) -> None:
        """Send the answer of `look` when the tables of this member are those of the group, or a refusal in words."""

    def logged(
        self, refuse: Callable[[str], Command], answer: Command, send: Callable[[Command], None]
    ) -> None:
        """Send `answer` when the offsets that are committed here are so on a quorum, or a refusal in words."""


@dataclass(slots=True)
class BrokerContext:
    """The state of one broker, as request handlers see it. The loop owns it."""

    config: BrokerConfig
    address: tuple[str, int]
    """The host and port that clients are told to connect to."""
    disk: Disk
    now_ms: Callable[[], int]
    """The wall clock: what is stored, scheduled and shown goes by it."""
    monotonic_ms: Callable[[], int]
    """How long something may still take or last (locks, clients, waiting answers) is measured with this clock alone."""
    rng: random.Random
    store: MessageStore
    reader: Reader
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    clients: ClientRegistry
    statistics: Statistics
    delays: DelayService
    timers: TimerService
    acks: AckQueue
    catch_up_pulls: CatchUpPulls
    held_pulls: PullHold
    topics_changed: Callable[[], None] = lambda: None
    """Has name servers and the config file hear of changed topics when this turn ends; replaced by the broker."""
    find_route: FindRoute = field(init=False)
    """Finds the queues of a topic on all brokers: `own_route`, until a process has name servers to ask."""
    client_calls: ClientCalls = field(default_factory=ClientCalls)
    locks: LockTable = field(default_factory=LockTable)
    request_modes: RequestModes = field(default_factory=RequestModes)
    ha_status: HaStatus = field(default_factory=HaStatus)
    """The status of replication; the member of the group replaces it whole."""
    routes: RouteStatus = field(default_factory=RouteStatus)
    """The name servers that give this broker's place to another; the process puts its registrar's here."""
    when_kept: Callable[[str, Callable[[str | None], None]], None] | None = None
    """Calls back when a table is on disk in its file of this name, as it is now, or with the reason why it is not.

    None where nothing writes tables in the background.
    """
    stopping: bool = False
    newest: NewestReads | None = None
    """Has reads see the newest state of a group; None in a broker that is no member of a DLedger group."""

    def __post_init__(self) -> None:
        self.find_route = self.own_route

    @property
    def rpc_times(self) -> RpcTimes:
        """Return the durations of requests that `statistics` keeps."""
        return self.statistics.rpc

    def own_route(self, topic: str, found: Callable[[TopicRoute | None], None]) -> None:
        """Call `found` with the queues of this broker alone."""
        config = self.topics.get(topic)
        if config is None:
            found(None)
            return
        name = self.config.broker_name
        queues = QueueData(name, config.read_queues, config.write_queues, config.perm)
        address = ":".join(map(str, self.address))
        found(TopicRoute({name: BrokerData(name, self.config.broker_cluster_name, {0: address})}, (queues,)))

    def unready(self) -> tuple[str, ...]:
        """Return why messages are not taken, or not copied here: a sentence each, or none."""
        ha, store = self.ha_status, self.store
        stopping = "the broker is shutting down" if self.stopping else None
        reasons = (stopping, store.refusal, store.full, ha.fence, ha.quorum_missing, ha.refused)
        return tuple(why for why in reasons if why is not None)
