"""Ropewalk: a commitlog message broker that speaks RocketMQ's protocol, and what programs import to use one.

    from ropewalk import Message, Producer

`Producer`, `TransactionProducer`, `PullConsumer`, `PushConsumer`, `Kv` and `Admin` block; the same with `Async` before
the name are for trio and asyncio. Every public name is imported when it is first used, so that `import ropewalk` costs
nothing and a blocking program never pays for an event loop. `ropewalk.testing` holds pytest fixtures.

`format` holds every byte layout as pure functions, `client` the sans-IO client core and its shells, `codes` the
numbers both ends agree on, `errors` what callers can catch. Nothing here imports the broker's own rooms (`broker`,
`ha`, `store`, `tools`); only `python -m ropewalk` starts them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.client.aio.admin import AsyncAdmin
    from ropewalk.client.aio.kv.client import AsyncKv
    from ropewalk.client.aio.producer import AsyncProducer
    from ropewalk.client.aio.pull_consumer import AsyncPullConsumer
    from ropewalk.client.aio.push_consumer import AsyncPushConsumer
    from ropewalk.client.aio.transaction_producer import AsyncTransactionProducer
    from ropewalk.client.blocking.admin import Admin
    from ropewalk.client.blocking.kv import Kv
    from ropewalk.client.blocking.producer import Producer
    from ropewalk.client.blocking.pull_consumer import PullConsumer
    from ropewalk.client.blocking.push_consumer import PushConsumer
    from ropewalk.client.blocking.transaction_producer import TransactionProducer
    from ropewalk.client.core.addresses import BadAddress
    from ropewalk.client.core.connection import NotOpen, Unreachable
    from ropewalk.client.core.consume.received import ReceivedMessage, RetryLater, TopicQueue
    from ropewalk.client.core.consume.skipped import Skipped
    from ropewalk.client.core.directory import NoNameServer
    from ropewalk.client.core.messages import Message, SendResult, SendStatus
    from ropewalk.client.core.produce.transacting import Outcome, Transaction
    from ropewalk.client.core.request_reply import NoReply, ReplyMessage
    from ropewalk.client.core.routes import Queue
    from ropewalk.client.kv.results import Fenced, KvLock, KvStatus
    from ropewalk.errors import (
        BodyTooLarge,
        BodyUnreadable,
        LocalProtocolError,
        OutcomeUnknown,
        Refused,
        Rejected,
        RopewalkError,
        TryElsewhere,
        TryLater,
    )
    from ropewalk.filter.sql92.tokens import SqlSyntaxError

__version__ = "0.2.0.dev0"

__all__ = [
    "Message",
    "Producer",
    "AsyncProducer",
    "SendResult",
    "SendStatus",
    "ReplyMessage",
    "NoReply",
    "TransactionProducer",
    "AsyncTransactionProducer",
    "Transaction",
    "Outcome",
    "PullConsumer",
    "AsyncPullConsumer",
    "PushConsumer",
    "AsyncPushConsumer",
    "Admin",
    "AsyncAdmin",
    "Kv",
    "AsyncKv",
    "KvLock",
    "KvStatus",
    "Fenced",
    "ReceivedMessage",
    "RetryLater",
    "Skipped",
    "Queue",
    "TopicQueue",
    "RopewalkError",
    "LocalProtocolError",
    "Refused",
    "Rejected",
    "TryLater",
    "TryElsewhere",
    "OutcomeUnknown",
    "BodyTooLarge",
    "BodyUnreadable",
    "Unreachable",
    "NoNameServer",
    "NotOpen",
    "BadAddress",
    "SqlSyntaxError",
]

_HOMES = {
    "ropewalk.client.aio.admin": ("AsyncAdmin",),
    "ropewalk.client.aio.kv.client": ("AsyncKv",),
    "ropewalk.client.blocking.kv": ("Kv",),
    "ropewalk.client.kv.results": ("Fenced", "KvLock", "KvStatus"),
    "ropewalk.client.core.request_reply": ("NoReply", "ReplyMessage"),
    "ropewalk.client.blocking.admin": ("Admin",),
    "ropewalk.client.blocking.producer": ("Producer",),
    "ropewalk.client.blocking.pull_consumer": ("PullConsumer",),
    "ropewalk.client.blocking.push_consumer": ("PushConsumer",),
    "ropewalk.client.blocking.transaction_producer": ("TransactionProducer",),
    "ropewalk.client.core.addresses": ("BadAddress",),
    "ropewalk.client.core.directory": ("NoNameServer",),
    "ropewalk.filter.sql92.tokens": ("SqlSyntaxError",),
    "ropewalk.client.core.connection": ("NotOpen", "Unreachable"),
    "ropewalk.client.core.messages": ("Message", "SendResult", "SendStatus"),
    "ropewalk.client.aio.producer": ("AsyncProducer",),
    "ropewalk.client.aio.pull_consumer": ("AsyncPullConsumer",),
    "ropewalk.client.aio.push_consumer": ("AsyncPushConsumer",),
    "ropewalk.client.aio.transaction_producer": ("AsyncTransactionProducer",),
    "ropewalk.client.core.produce.transacting": ("Outcome", "Transaction"),
    "ropewalk.client.core.consume.received": ("ReceivedMessage", "RetryLater", "TopicQueue"),
    "ropewalk.client.core.consume.skipped": ("Skipped",),
    "ropewalk.client.core.routes": ("Queue",),
    "ropewalk.errors": (
        "LocalProtocolError",
        "BodyTooLarge",
        "BodyUnreadable",
        "OutcomeUnknown",
        "Refused",
        "Rejected",
        "RopewalkError",
        "TryElsewhere",
        "TryLater",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
