"""The process `ropewalk namesrv`: a name server on its own."""

from __future__ import annotations

import json
import time

import structlog
import trio

import ropewalk
from broker.namesrv.handlers import name_server_handlers
from broker.namesrv.server import EXPIRE_INTERVAL_S, NameServer
from broker.process.launch import (
    StartFailed,
    connections_max,
    monotonic_ms,
    open_log,
    raise_file_limit,
    refuse_unfit_interpreter,
    restrict_files,
    umask_of_environment,
    way_out,
)
from broker.process.options import NamesrvOptions
from broker.process.service_manager import notify
from broker.process.stop_signals import StopSignals, ignore_stop_signals
from broker.remoting.cold_lane import TURN_S, ColdLane
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Session
from broker.remoting.shell import Shell
from broker.remoting.sockets import Kind
from ropewalk.client.core.addresses import Address

log = structlog.get_logger("broker.process")

_KEPT_FILES = 64
"""Descriptors for all but connections."""


class NamesrvProcess:
    """A name server on its own."""

    peer_reply_expected = False
    next_turn_s = None

    def __init__(self) -> None:
        self.shell = Shell(self, connections_max=connections_max(_KEPT_FILES))
        self.name_server = NameServer(monotonic_ms)
        self._budget = IncomingBudget(monotonic_ms)
        self._lane = ColdLane(time.perf_counter, self.shell.loop.wake)

    def begin_turn(self) -> None:
        self._lane.left_s = TURN_S

    def end_turn(self) -> None:
        if self._lane.size:
            self._lane.run()

    def on_wakeup(self) -> None:
        pass

    def on_priority_served(self) -> None:
        pass

    def start(self, options: NamesrvOptions) -> int:
        handlers = name_server_handlers(self.name_server)
        try:
            return self.shell.listeners.listen(
                options.host,
                options.port,
                lambda link: Session(
                    link, handlers, self.name_server.closed, budget=self._budget, lane=self._lane
                ),
                Kind.LOOKUP,
            )
        except OSError as exc:
            raise StartFailed(
                f"cannot listen on {options.host}:{options.port}: {exc.strerror}. "
                + way_out(exc, "--port 0", "--host ADDRESS")
            ) from exc

    async def run(self, ready_line: str) -> None:
        signals = StopSignals()
        print(ready_line, flush=True)
        notify("READY=1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.shell.run)
            nursery.start_soon(self._sweep)
            first = await signals.wait()
            log.info("stopping", signal=first.name)
            notify("STOPPING=1")
            nursery.cancel_scope.cancel()

    async def _sweep(self) -> None:
        seconds = 0
        while True:
            await trio.sleep(1)
            seconds += 1
            self.shell.sweep()
            self._budget.sweep()
            self.shell.flush()
            self.name_server.purge()
            if seconds % EXPIRE_INTERVAL_S == 0:
                self.name_server.expire()


def run_namesrv(options: NamesrvOptions) -> None:
    """Run a name server in the foreground."""
    refuse_unfit_interpreter()
    restrict_files(umask_of_environment())
    open_log(options.log_level, options.log_format, options.log_file)
    raise_file_limit()
    process = NamesrvProcess()
    port = process.start(options)
    address = str(Address(options.host, port))
    if options.json:
        line = json.dumps({"version": ropewalk.__version__, "namesrv": address})
    else:
        line = f"ropewalk {ropewalk.__version__} name server ready: {address}"
    try:
        trio.run(process.run, line)
    finally:
        process.shell.close()
    ignore_stop_signals()
