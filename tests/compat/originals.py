"""Brokers of Apache RocketMQ as members of a group of Ropewalk's."""

from __future__ import annotations

from tests.bench.peers.rocketmq.original import Original
from tests.ha.pairs import (
    SETTINGS,
    Pair,
)

HEAP = "192m"


def original(pair: Pair, **settings: str | int) -> Original:
    """A broker of Apache RocketMQ in this group."""
    # The interval is also how long a RocketMQ slave is silent before its first report.
    own: dict[str, str | int] = {
        "timerWheelEnable": "false",
        "waitTimeMillsInSendQueue": "10000",
        "haSendHeartbeatInterval": 1000,
    }
    every: dict[str, str | int] = {**SETTINGS, **own, **settings}
    config = {key: str(value) for key, value in every.items()}
    return Original(pair.root / "original", HEAP, config, namesrv=pair.namesrv, short_lived=True)
