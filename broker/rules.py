"""The rules of a broker's parts, as its configuration has them."""

from __future__ import annotations

import os

from broker.consume.bloom import BloomGeometry
from broker.consume.bulk_pull import BulkRules
from broker.consume.pull import PullRules
from broker.produce.send import SendRules
from broker.settings.config import BrokerConfig
from broker.state.topics import TopicRules
from broker.timers.placement import PlacementRules
from ropewalk.codes import Permission
from ropewalk.format.index import Geometry
from ropewalk.format.sidecar import BLOCK_SIZE
from store.config import StoreConfig
from store.read.results import ReadLimits
from store.recovery.delay_levels import DelayLevels
from store.retention.rules import HOUR_MS, RetentionRules, delete_hours
from store.timer.timer_store import TimerRules

CATCH_UP_DISTANCE_MIN = 64 << 20
"""A consumer no further than this behind the end of the log counts as one that keeps up."""


def send_rules(config: BrokerConfig) -> SendRules:
    """Return the rules by which sends are taken."""
    return SendRules(
        config.broker_cluster_name,
        config.region_id,
        config.trace_on,
        config.max_message_size,
        bool(config.broker_permission & Permission.WRITE),
        config.reject_transaction_message,
    )


def topic_rules(config: BrokerConfig) -> TopicRules:
    """Return the rules by which topics come to be."""
    return TopicRules(
        cluster=config.broker_cluster_name,
        broker=config.broker_name,
        auto_create_topic_enable=config.auto_create_topic_enable,
        default_topic_queue_nums=config.default_topic_queue_nums,
        cluster_topic_enable=config.cluster_topic_enable,
        broker_topic_enable=config.broker_topic_enable,
        trace_topic_enable=config.trace_topic_enable,
        msg_trace_topic_name=config.msg_trace_topic_name,
        timer_wheel_enable=config.timer_wheel_enable,
        topics_max=config.auto_create_topics_max,
    )


def timer_rules(config: BrokerConfig) -> TimerRules:
    """Return the shape of the timer wheel."""
    return TimerRules(
        config.timer_precision_ms, config.timer_roll_window_slot, config.mapped_file_size_timer_log
    )


def placement_rules(config: BrokerConfig) -> PlacementRules:
    """Return the rules of messages with a time."""
    return PlacementRules(
        config.broker_name,
        config.timer_wheel_enable,
        config.timer_max_delay_sec * 1000,
        config.timer_precision_ms,
        config.timer_congest_num_each_slot,
        config.recall_message_enable,
    )


def pull_rules(config: BrokerConfig) -> PullRules:
    """Return the rules by which pulls are answered."""
    return PullRules(
        bool(config.broker_permission & Permission.READ),
        config.long_polling_enable,
        config.short_polling_time_mills,
        config.lite_pull_message_enable,
        config.slave_read_enable,
    )


def bulk_rules(config: BrokerConfig) -> BulkRules:
    """Return the rules of bulk reads."""
    return BulkRules(bool(config.broker_permission & Permission.READ), config.bulk_read_max_bytes)


def bloom_geometry(config: BrokerConfig) -> BloomGeometry:
    """Return the shape of the Bloom filters of consumer groups."""
    return BloomGeometry.of(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)


def store_config(config: BrokerConfig, host: bytes) -> StoreConfig:
    """Return the configuration of the store, whose records carry `host`."""
    return StoreConfig(
        root=config.store_path_root_dir,
        log_directory=config.store_path_commit_log,
        store_host=host,
        segment_size=config.mapped_file_size_commit_log,
        queue_file_size=config.mapped_file_size_consume_queue,
        ledger=config.store_path_root_dir / f"dledger-{config.d_leger_self_id}"
        if config.enable_d_leger_commit_log
        else None,
        sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        flush_interval_ms=config.flush_interval_commit_log,
        warm_window=config.warm_window_bytes,
        index=Geometry(config.max_hash_slot_num, config.max_index_num)
        if config.message_index_enable
        else None,
        retention=retention_rules(config),
        delay_levels=DelayLevels(config.message_delay_level),
        checksum_block=BLOCK_SIZE,
        check_at_start=config.check_at_start_bytes,
        scrub_bytes_per_second=config.scrub_bytes_per_second,
    )


def retention_rules(config: BrokerConfig) -> RetentionRules:
    """Return the rules of retention, which count until an administrator changes them."""
    return RetentionRules(
        reserved_ms=config.file_reserved_time * HOUR_MS,
        delete_hours=delete_hours(config.delete_when),
        max_used=config.disk_max_used_space_ratio,
        force_used=config.disk_space_clean_forcibly_ratio,
        warning_used=config.disk_space_warning_level_ratio,
        force=config.clean_file_forcibly_enable,
        batch_max=config.delete_file_batch_max,
        interval_ms=config.clean_resource_interval,
        log_pause_ms=config.delete_commit_log_files_interval,
        queue_pause_ms=config.delete_consume_queue_files_interval,
    )


def read_limits(config: BrokerConfig) -> ReadLimits:
    """Return the limits of one read, from memory and from disk."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ReadLimits(
        memory_count=config.max_transfer_count_on_message_in_memory,
        memory_bytes=config.max_transfer_bytes_on_message_in_memory,
        disk_count=config.max_transfer_count_on_message_in_disk,
        disk_bytes=config.max_transfer_bytes_on_message_in_disk,
        memory_window=memory * config.access_message_in_memory_max_ratio // 100,
        warm_window=config.warm_window_bytes,
        catch_up_distance=max(config.warm_window_bytes, CATCH_UP_DISTANCE_MIN),
    )
