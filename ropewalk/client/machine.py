"""The machine's clocks and addresses, and the cores built on them: for shells to hand out."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping

from ropewalk.client.core.addresses import choose_name_servers
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.client.core.consume.consuming import ConsumerCore, ConsumerIdentity
from ropewalk.client.core.consume.membership import SQL92, Subscription
from ropewalk.client.core.consume.pulling import PullCore
from ropewalk.client.core.consume.skipped import OnSkipped
from ropewalk.client.core.ids import default_unique_keys, local_ip
from ropewalk.client.core.produce.bodies import BODY_BYTES_MAX
from ropewalk.client.core.produce.options import ProducerOptions
from ropewalk.client.core.produce.sending import ProducerCore
from ropewalk.client.resolver import ip_within
from ropewalk.errors import LocalProtocolError
from ropewalk.filter.sql92 import compile_filter
from ropewalk.format.names import check_topic
from ropewalk.member_proof import NONCE_SIZE, Asker

RESOLVE_S = 3.0
"""How long the name of a member may be looked up for its proof."""
TRACE_GROUP = "_INNER_TRACE_PRODUCER"
"""The producer group of consumers that trace."""


def clock() -> float:
    """Return seconds of a clock that never goes back.

    Tests that freeze the time freeze `time.monotonic` with it, and every time limit and pause of a client would last
    for ever: the system's clock goes on. What messages carry is the frozen time, which such tests are about.
    """
    return time.clock_gettime(time.CLOCK_MONOTONIC)


if sys.platform == "win32":  # which has one way to ask
    clock = time.monotonic


def now_ms() -> int:
    """Return milliseconds since 1970: what messages carry."""
    return time.time_ns() // 1_000_000


def name_servers_or_default(given: str | None) -> str:
    """Return the name servers to use: the given ones, else those of ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR."""
    return choose_name_servers(given, os.environ)


def new_asker(secret: str, address: str) -> Asker:
    """Return this end of the proof between operators and members, for a connection to an address."""
    host, _, port = address.rpartition(":")
    try:
        socket = f"{ip_within(host, RESOLVE_S)}:{port}"
    except (OSError, Unreachable):
        socket = ""  # the connect says why
    return Asker(secret, address, socket, secrets.token_bytes(NONCE_SIZE), takes_older=False)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a program to end."""
    return signal.SIGINT, signal.SIGTERM


def new_client_id(instance: str | None = None) -> str:
    """Return `ip@instance`; without a name for the instance, one that no other client has."""
    ip = ".".join(map(str, local_ip()))
    return f"{ip}@{instance or f'{os.getpid()}#{time.monotonic_ns()}'}"


def own_client_id(given: str | None) -> str:
    """Return the client id for a process that was forked: a given one, told apart by the process, or a new one."""
    return new_client_id() if given is None else f"{given}#{os.getpid()}"


def new_consumer_core(name_servers: str, identity: ConsumerIdentity) -> ConsumerCore:
    """Return a consumer's core on this machine's clocks. Raises `BadAddress` when the list cannot be read."""
    return ConsumerCore(name_servers, identity, unique_keys=default_unique_keys(), clock=clock, now_ms=now_ms)


def new_trace_core(name_servers: str, topic: str, client_id: str, traced_group: str) -> ProducerCore:
    """Return the core by which a consumer of a group sends its traces.

    Raises `LocalProtocolError` for a topic that cannot be one.
    """
    return ProducerCore(
        name_servers,
        ProducerOptions(group=TRACE_GROUP, retries=0, trace=True, trace_topic=topic),
        client_id=client_id,
        unique_keys=default_unique_keys(),
        clock=clock,
        now_ms=now_ms,
        traced_group=traced_group,
    )


def subscriptions(
    topics: Mapping[str, str], sql: Mapping[str, str] | None = None
) -> tuple[Subscription, ...]:
    """Return topics with their tags or `*`, and others with an SQL92 expression, as subscriptions made now.

    Expressions are read here first. Raises `SqlSyntaxError`, a ValueError, for one that brokers would not take, and
    ValueError for a topic with tags and an expression: a subscription is one or the other.
    """
    if not isinstance(topics, Mapping):
        raise TypeError(f'topics say what is wanted of each, as in {{"orders": "*"}}; this is {topics!r}')
    sql = {} if sql is None else sql
    if not isinstance(sql, Mapping):
        raise TypeError(
            f'sql says what is wanted of each topic, as in {{"orders": "amount > 3"}}; this is {sql!r}'
        )
    if not topics and not sql:
        raise ValueError('a consumer needs a topic, as in {"orders": "*"}')
    for topic, expression in (*topics.items(), *sql.items()):
        _check_subscription(topic, expression)
    if both := sorted(topics.keys() & sql.keys()):
        raise ValueError(
            f"{', '.join(both)}: a topic is filtered by tags or by an SQL92 expression, not by both"
        )
    for expression in sql.values():
        compile_filter(expression)
    return (
        *[Subscription(topic, expression, now_ms()) for topic, expression in topics.items()],
        *[Subscription(topic, expression, now_ms(), SQL92) for topic, expression in sql.items()],
    )


def _check_subscription(topic: object, expression: object) -> None:
    if not isinstance(topic, str) or not isinstance(expression, str):
        raise TypeError(f"a topic and what is wanted of it are text, and not {topic!r} and {expression!r}")
    if (wrong := check_topic(topic)) is not None:
        raise LocalProtocolError(f"{topic!r}: {wrong}")
    tags = [tag.split() for tag in expression.split("||")]
    if any("|" in words for words in tags) or (len(tags) > 1 and not all(tags)):
        raise ValueError(
            f'{topic}: {expression!r}: tags are names, as in "new || changed"; an expression is given as sql='
        )


def new_pull_core(
    group: str,
    topics: Mapping[str, str],
    name_servers: str,
    consume_from: ConsumeFrom,
    on_skipped: OnSkipped,
    sql: Mapping[str, str] | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> PullCore:
    """Return a pull consumer's core. Raises `LocalProtocolError` for a group that cannot be one."""
    identity = ConsumerIdentity(
        group,
        new_client_id(),
        subscriptions(topics, sql),
        consume_from,
        active=True,
        body_bytes_max=body_bytes_max,
    )
    return PullCore(new_consumer_core(name_servers, identity), clock, on_skipped)
