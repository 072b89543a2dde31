"""Sends a client's trace records over anyio, in a task of its own: no send and no handler waits for them."""

from __future__ import annotations

import anyio

from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.core.produce.sending import ProducerCore
from ropewalk.client.core.tracing.trace_buffer import BATCH_COUNT
from ropewalk.client.log import Troubles
from ropewalk.errors import RopewalkError

LINGER_S = 0.5
"""How long a trace record waits for others."""
FAILED_PAUSE_S = 3.0
"""How long traces rest after one was not taken."""
CLOSE_S = 1.0
"""How long leaving may take for the last traces."""


async def send_traces_forever(core: ProducerCore, links: AsyncLinks, troubles: Troubles) -> None:
    """Send the traces of a client as they gather. What no broker takes is dropped, and told once."""
    trace = core.trace
    assert trace is not None
    while True:
        more = anyio.Event()
        trace.on_waiting = more.set
        if not len(trace):
            await more.wait()
            continue
        if len(trace) < BATCH_COUNT:
            with anyio.move_on_after(LINGER_S):
                await more.wait()
        try:
            await links.drive(core.send_traces())
        except RopewalkError as exc:
            troubles.began(("trace", trace.topic), exc, "traces not sent", topic=trace.topic)
            await anyio.sleep(FAILED_PAUSE_S)
        else:
            troubles.ended(("trace", trace.topic), "traces sent again", topic=trace.topic)


async def send_last_traces(core: ProducerCore, links: AsyncLinks) -> None:
    """Send the last records when a client closes, within `CLOSE_S`."""
    if core.trace is not None and len(core.trace):
        with anyio.move_on_after(CLOSE_S, shield=True):
            try:
                await links.drive(core.send_traces())
            except RopewalkError:
                return
