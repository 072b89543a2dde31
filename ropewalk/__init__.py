"""Ropewalk: a commitlog message broker that speaks RocketMQ's protocol, and what programs import to use one.

    from ropewalk import Message, Producer

`Producer`, `PullConsumer`, `PushConsumer` and `Admin` block; the same with `Async` before the name are for trio and
asyncio. Every public name is imported when it is first used, so that `import ropewalk` costs nothing and a blocking
program never pays for an event loop. `ropewalk.testing` holds pytest fixtures.

`format` holds every byte layout as pure functions, `client` the sans-IO client core and its shells, `codes` the
numbers both ends agree on, `errors` what callers can catch. Nothing here imports the broker's own rooms (`broker`,
`ha`, `store`, `tools`); only `python -m ropewalk` starts them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.client.admin import AsyncAdmin
    from ropewalk.client.asking import NoReply, ReplyMessage
    from ropewalk.client.blocking_admin import Admin
    from ropewalk.client.blocking_producer import Producer
    from ropewalk.client.blocking_pull_consumer import PullConsumer
    from ropewalk.client.blocking_push_consumer import PushConsumer
    from ropewalk.client.core import Unreachable
    from ropewalk.client.messages import Message, SendResult, SendStatus
    from ropewalk.client.producer import AsyncProducer
    from ropewalk.client.pull_consumer import AsyncPullConsumer
    from ropewalk.client.push_consumer import AsyncPushConsumer
    from ropewalk.client.received import ReceivedMessage, RetryLater, TopicQueue
    from ropewalk.client.routes import Queue
    from ropewalk.errors import (
        LocalProtocolError,
        OutcomeUnknown,
        Refused,
        Rejected,
        RopewalkError,
        TryElsewhere,
        TryLater,
    )

__version__ = "0.1.0"

__all__ = [
    "Message",
    "Producer",
    "AsyncProducer",
    "SendResult",
    "SendStatus",
    "ReplyMessage",
    "NoReply",
    "PullConsumer",
    "AsyncPullConsumer",
    "PushConsumer",
    "AsyncPushConsumer",
    "Admin",
    "AsyncAdmin",
    "ReceivedMessage",
    "RetryLater",
    "Queue",
    "TopicQueue",
    "RopewalkError",
    "LocalProtocolError",
    "Refused",
    "Rejected",
    "TryLater",
    "TryElsewhere",
    "OutcomeUnknown",
    "Unreachable",
]

_HOMES = {
    "ropewalk.client.admin": ("AsyncAdmin",),
    "ropewalk.client.asking": ("NoReply", "ReplyMessage"),
    "ropewalk.client.blocking_admin": ("Admin",),
    "ropewalk.client.blocking_producer": ("Producer",),
    "ropewalk.client.blocking_pull_consumer": ("PullConsumer",),
    "ropewalk.client.blocking_push_consumer": ("PushConsumer",),
    "ropewalk.client.core": ("Unreachable",),
    "ropewalk.client.messages": ("Message", "SendResult", "SendStatus"),
    "ropewalk.client.producer": ("AsyncProducer",),
    "ropewalk.client.pull_consumer": ("AsyncPullConsumer",),
    "ropewalk.client.push_consumer": ("AsyncPushConsumer",),
    "ropewalk.client.received": ("ReceivedMessage", "RetryLater", "TopicQueue"),
    "ropewalk.client.routes": ("Queue",),
    "ropewalk.errors": (
        "LocalProtocolError",
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
