"""Sends a client's trace records over plain sockets, in a thread of its own: no send and no poll waits for them.

The thread begins with the first record. It shares the client's core under the client's lock, which is not held while
it waits for a broker, and has connections of its own. It is a daemon: a program that ends without `close` ends.
"""

from __future__ import annotations

import threading

from ropewalk.client.blocking.links import BlockingLinks
from ropewalk.client.core.produce.sending import ProducerCore
from ropewalk.client.core.tracing.trace_buffer import BATCH_COUNT
from ropewalk.client.log import Troubles
from ropewalk.errors import RopewalkError

LINGER_S = 0.5
"""How long a trace record waits for others."""
FAILED_PAUSE_S = 3.0
"""How long traces rest after one was not taken."""
CLOSE_S = 1.0
"""How long `close` waits for the last traces."""


class TraceThread:
    """The thread that sends the traces of one client, if there are any."""

    def __init__(self, core: ProducerCore, lock: threading.RLock, troubles: Troubles) -> None:
        """Make it without starting it. `lock` guards the core."""
        assert core.trace is not None
        self._core = core
        self._trace = core.trace
        self._lock = lock
        self._more = threading.Condition(lock)
        self._troubles = troubles
        self._closing = False
        self._thread: threading.Thread | None = None
        self._trace.on_waiting = self._wake

    def close(self) -> None:
        """Send the last records, within `CLOSE_S`, and end. Closing twice is harmless."""
        with self._lock:
            self._closing = True
            self._more.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    def _wake(self) -> None:
        """Start or wake the thread. Called with the lock held, by whoever recorded."""
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="ropewalk-traces", daemon=True)
            self._thread.start()
        self._more.notify_all()

    def _run(self) -> None:
        links = BlockingLinks(timeout=self._core.options.timeout, troubles=self._troubles)
        topic = self._trace.topic
        while self._await_records():
            try:
                links.drive(self._core.send_traces(), self._lock)
            except RopewalkError as exc:
                self._troubles.began(("trace", topic), exc, "traces not sent", topic=topic)
                with self._lock:
                    if self._more.wait_for(lambda: self._closing, FAILED_PAUSE_S):
                        break
            else:
                self._troubles.ended(("trace", topic), "traces sent again", topic=topic)
        links.close()

    def _await_records(self) -> bool:
        """Wait until a whole trace message waits, or a record has waited for long enough. False when all is sent."""
        with self._lock:
            self._more.wait_for(lambda: len(self._trace) > 0 or self._closing)
            self._more.wait_for(lambda: len(self._trace) >= BATCH_COUNT or self._closing, LINGER_S)
            return len(self._trace) > 0
