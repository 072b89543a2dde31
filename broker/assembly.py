"""The state of a broker, made from its configuration: the store, the tables, and the services that read them.

Nothing is opened or loaded here (`Broker.open`), and nothing handles a request yet (`broker.processors`).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from broker.context import BrokerContext
from broker.rules import read_limits, store_config, timer_rules, topic_rules
from broker.settings.config import BrokerConfig
from broker.state.clients import ClientRegistry
from broker.state.groups import GroupTable
from broker.state.offsets import OffsetTable
from broker.state.shares import NewNames
from broker.state.statistics import Statistics
from broker.state.topics import TopicTable
from broker.timers.delay_service import DelayService
from broker.timers.timer_service import TimerService
from broker.waiting.catch_up_pulls import CatchUpPulls
from broker.waiting.held_pulls import PullHold
from broker.waiting.pending_acks import AckQueue
from ropewalk.format.record import encode_host
from store.io.disk import Disk
from store.io.workers import Worker
from store.log.durable_bound import boot_id
from store.message_store import MessageStore
from store.read.reader import Reader
from store.timer.progress import ProgressPage
from store.timer.timer_store import TimerStore

__all__ = ["new_context"]


def new_context(
    config: BrokerConfig,
    *,
    address: tuple[str, int],
    ip: str | None,
    disk: Disk,
    now_ms: Callable[[], int],
    monotonic_ms: Callable[[], int],
    rng: random.Random,
    wake: Callable[[], None],
    clock: Callable[[], float],
) -> BrokerContext:
    """Return the state of a broker whose store is not open yet; the arguments are those of `Broker`."""
    host = encode_host(ip or address[0], address[1])
    store = MessageStore(store_config(config, host), disk, now_ms, wake)
    topics = TopicTable(topic_rules(config), NewNames(config.new_names_per_minute, monotonic_ms))
    groups = GroupTable(
        auto_create_subscription_group=config.auto_create_subscription_group,
        groups_max=config.auto_create_groups_max,
        new_names=NewNames(config.new_names_per_minute, monotonic_ms),
    )
    statistics = Statistics(config.broker_cluster_name, now_ms(), clock)
    reader = Reader(store.log, read_limits(config), store.completions)
    root = config.store_path_root_dir
    return BrokerContext(
        config=config,
        address=address,
        disk=disk,
        now_ms=now_ms,
        monotonic_ms=monotonic_ms,
        rng=rng,
        store=store,
        reader=reader,
        topics=topics,
        groups=groups,
        offsets=OffsetTable(now_ms, config.offset_pairs_max),
        clients=ClientRegistry(groups.notifies, expiry_ms=config.channel_expired_timeout),
        statistics=statistics,
        delays=DelayService(store.config.delay_levels, store, reader, topics, statistics, now_ms),
        timers=TimerService(
            TimerStore(root, timer_rules(config), disk),
            ProgressPage(root, disk, boot_id(disk)),
            store,
            reader,
            statistics,
            now_ms,
            lambda name: Worker(f"ropewalk-timer-{name}", store.completions),
            enabled=config.timer_wheel_enable,
            serves=topics.__contains__,
            read_queue=topics.read_queue,
        ),
        acks=AckQueue(statistics.rpc),
        catch_up_pulls=CatchUpPulls(config.catch_up_read_ratio, clock),
        held_pulls=PullHold(clock, wake),
    )
