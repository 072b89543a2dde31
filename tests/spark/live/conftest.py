"""Readers of the live source, as Spark would make them; what they leave open is closed behind each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ropewalk.testing import RopewalkBroker
from tests.spark.live.readers import options_for

if TYPE_CHECKING:
    from ropewalk.spark.live.source import LiveReader, LiveStreamReader
    from tests.spark.live.readers import MakeReader, MakeStream


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    from ropewalk.spark.live.read import _pool

    yield
    for connection, _ in _pool()._idle.values():
        connection.close()
    _pool()._idle.clear()


@pytest.fixture
def make_reader(ropewalk_broker: RopewalkBroker) -> MakeReader:
    from ropewalk.spark.live.source import LiveReader

    def make(broker: RopewalkBroker = ropewalk_broker, **given: Any) -> LiveReader:
        options = options_for(broker, "read", given)
        return LiveReader(options, options.selection())

    return make


@pytest.fixture
def make_stream(ropewalk_broker: RopewalkBroker) -> Iterator[MakeStream]:
    from ropewalk.spark.live.source import LiveStreamReader

    made: list[LiveStreamReader] = []

    def make(
        broker: RopewalkBroker = ropewalk_broker, clock: Callable[[], float] | None = None, **given: Any
    ) -> LiveStreamReader:
        options = options_for(broker, "stream", given)
        more = {} if clock is None else {"monotonic": clock}
        made.append(LiveStreamReader(options, options.selection(), **more))
        return made[-1]

    yield make
    for stream in made:
        stream.stop()
