"""`Processors`: who handles what. The processors of a broker, and the tables by which sessions find them.

The main port serves everything, the fast port at P-2 the same without the pull family. Requests that come again and
again are taken by an intake before any table is asked (`broker.intake`). A processor gets what it needs as arguments;
none of them knows this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from broker.acknowledgement import Acknowledgement
from broker.admin.base import AdminContext
from broker.admin.registry import Admin
from broker.consume.bulk_pull import BulkPull
from broker.consume.filters import FilterTable
from broker.consume.member_notifier import MemberNotifier
from broker.consume.pull import PullProcessor
from broker.consume.query import Queries
from broker.consume.requests import Requests
from broker.consume.retry import RetryRules, SendBack
from broker.context import BrokerContext
from broker.intake import FastIntake
from broker.kv.requests import KvRequests
from broker.produce.fast.runs import SendRuns
from broker.produce.request_reply import ReplyProcessor
from broker.produce.send import SendProcessor
from broker.produce.timer_requests import TimerRequests
from broker.refusal import Refusal
from broker.remoting.session import PULL_FAMILY, Handlers
from broker.replication.dledger.member import LedgerMember
from broker.replication.group_member import GroupMember
from broker.rules import bulk_rules, pull_rules, send_rules
from broker.settings.config import BrokerConfig
from broker.sinks.service import SinkService
from broker.timers.placement import Placement
from broker.transactions.end import EndTransaction
from broker.transactions.end_runs import EndRuns
from broker.transactions.service import TransactionService
from ropewalk.client.core.ids import UniqueKeys
from ropewalk.codes import RequestCode
from store.read.bulk import BulkReader

__all__ = ["Processors"]


class Processors:
    """All processors of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        group: GroupMember,
        *,
        admin: AdminContext,
        transactions: TransactionService,
        placement: Placement,
        filters: FilterTable,
        bulk_reader: BulkReader,
        notifier: MemberNotifier,
        refusal: Refusal,
        acknowledgement: Acknowledgement,
        wake: Callable[[], None],
    ) -> None:
        """`wake` has the loop take in soon what was left for it."""
        config = context.config

        def is_slave() -> bool:
            return not group.is_leader

        retries = RetryRules(
            context.groups, context.topics, context.locks, context.now_ms, context.monotonic_ms
        )
        self.sends = sends = SendProcessor(
            send_rules(config),
            context.store,
            context.topics,
            context.groups,
            context.statistics,
            chance=context.rng,
            make_unique_key=_unique_keys(context).next,
            refusal=refusal.judge,
            topic_created=context.topics_changed,
            retries=retries,
            place=placement.place,
            transactions=transactions,
            recall_handle=placement.recall_handle,
            slot_of=placement.slot_of,
        )
        sends.appends.stall_s = config.os_page_cache_busy_time_out_mills / 1000
        sends.appends.stalled = refusal.append_stalled
        sends.replicate_early = group.replicate_early
        self.sinks = SinkService(context, sends, is_slave=is_slave, refusal=refusal.judge, wake=wake)
        self.pulls = PullProcessor(
            pull_rules(config),
            context.store,
            context.reader,
            context.topics,
            context.groups,
            context.clients,
            context.offsets,
            context.held_pulls,
            context.catch_up_pulls,
            context.statistics,
            filters,
            group.limits,
            monotonic_ms=context.monotonic_ms,
        )
        self._bulk = BulkPull(
            bulk_rules(config),
            context.store,
            bulk_reader,
            context.topics,
            context.groups,
            context.statistics,
            group.limits,
        )
        self._replies = ReplyProcessor(
            sends,
            context.store,
            context.clients,
            context.client_calls,
            context.acks,
            keep=config.store_reply_message_enable,
            address=context.address,
            wait=acknowledgement.wait,
            now_ms=context.now_ms,
            monotonic_ms=context.monotonic_ms,
        )
        self._ends = EndTransaction(
            context,
            transactions,
            is_slave=is_slave,
            refusal=refusal.judge,
            waits=lambda: sends.waits,
            wait=acknowledgement.wait,
            place=placement.place,
        )
        self._send_back = SendBack(context, retries, placement.place, refusal.judge, context.rng)
        self._timer_requests = TimerRequests(context, context.timers, placement, refusal.judge)
        self._timer_requests.waits = lambda: sends.waits
        self._requests = Requests(context, filters, notifier)
        self._queries = Queries(context)
        member = group if isinstance(group, LedgerMember) else None
        self._kv = KvRequests(context, lambda: member.kv if member is not None else None)
        if member is not None:
            member.reads.handle_forwarded = self._requests.commit_offset
            self.pulls.commit = member.reads.commit_of_pull
        self.admin = Admin(admin, group, self.sinks)
        self.handlers = self._make_handlers()
        self.fast_handlers = self.handlers.without(PULL_FAMILY)
        self.intake: FastIntake | None = None
        """The intake of the main port; None where `fastPathEnable` is off."""
        self.fast_port_intake: FastIntake | None = None
        if config.fast_path_enable:
            runs = SendRuns(sends)
            ends = EndRuns(
                context,
                transactions,
                is_slave=is_slave,
                refusal=refusal.judge,
                waits=lambda: sends.waits,
            )
            self.intake = FastIntake(runs, ends, self.pulls, group.replicate_early)
            self.fast_port_intake = FastIntake(runs, ends, None, group.replicate_early)

    def _make_handlers(self) -> Handlers:
        handlers, sends, sinks = Handlers(), self.sends, self.sinks
        handlers.hot = {
            RequestCode.SEND_MESSAGE: sends.send,
            RequestCode.SEND_MESSAGE_V2: sends.send,
            RequestCode.SEND_BATCH_MESSAGE: sends.send,
            RequestCode.PULL_MESSAGE: self.pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pulls.pull,
            RequestCode.ROPEWALK_BULK_PULL: self._bulk.pull,
            RequestCode.SEND_REPLY_MESSAGE: self._replies.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._replies.reply,
            RequestCode.END_TRANSACTION: self._ends.end,
            RequestCode.ROPEWALK_SINK_INIT: sinks.init,
            RequestCode.ROPEWALK_SINK_APPEND: sinks.append,
            RequestCode.ROPEWALK_SINK_COMMIT: sinks.commit,
        }
        self._requests.register(handlers)
        self._timer_requests.register(handlers)
        self._queries.register(handlers)
        self._kv.register(handlers)
        self.admin.register(handlers)
        handlers.cold[RequestCode.CONSUMER_SEND_MSG_BACK] = self._send_back.handle
        handlers.cold.update(self._ends.handlers)
        return handlers

    def configure(self, config: BrokerConfig) -> None:
        """Go by another configuration, as far as it may change while the broker runs."""
        self.sends.configure(send_rules(config))
        self.pulls.configure(pull_rules(config))
        self._bulk.rules = bulk_rules(config)


def _unique_keys(context: BrokerContext) -> UniqueKeys:
    """The ids of messages that come without one."""
    ip = context.store.config.store_host[:-4]
    return UniqueKeys(ip, os.getpid() & 0xFFFF, context.rng.getrandbits(31), context.now_ms)
