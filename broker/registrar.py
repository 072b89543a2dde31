"""Keeping the name servers told: at start, every half minute, and at once when topics or permissions change.

An embedded name server is told by a plain call in the same turn, so that a topic has its route before the producer
that created it has its answer. The others are told over the wire by one task each; one that is away is tried again
and delays nobody.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import structlog
import trio

from broker.namesrv import NameServer
from ropewalk.client.anyio_shell import open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command

log = structlog.get_logger("broker.registrar")

_RETRY_S = 3.0


class Registrar:
    """Registers one broker with all its name servers."""

    def __init__(
        self,
        identity: dict[str, str],
        body: Callable[[], bytes],
        *,
        period_s: float,
        call_s: float,
        local: NameServer | None,
        remote: tuple[str, ...],
    ) -> None:
        """`identity` holds brokerName, brokerAddr, clusterName, haServerAddr and brokerId as the wire spells them."""
        self._identity = identity
        self._body = body
        self._period_s = period_s
        self._call_s = call_s
        self._local = local
        self._remote = remote
        self._changed = {address: trio.Event() for address in remote}
        self._registered: set[str] = set()

    def _command(self) -> Command:
        body = self._body()
        ext = self._identity | {
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "enableActingMaster": "false",
        }
        return Command(RequestCode.REGISTER_BROKER, ext, body)

    def _farewell(self) -> Command:
        names = ("brokerName", "brokerAddr", "clusterName", "brokerId")
        return Command(RequestCode.UNREGISTER_BROKER, {name: self._identity[name] for name in names})

    def changed(self) -> None:
        """Topics or permissions are different now: tell everyone at once."""
        self.tell_local()
        for address, event in self._changed.items():
            self._changed[address] = trio.Event()
            event.set()

    def tell_local(self) -> None:
        if self._local is not None:
            answer = self._local.handle(self._command(), self)
            assert answer is not None
            if answer.code != ResponseCode.SUCCESS:
                log.error("the embedded name server refused this broker", reason=answer.remark)

    async def run(self) -> None:
        """Register and stay registered, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_local)
            for address in self._remote:
                nursery.start_soon(self._keep, address)

    async def _keep_local(self) -> None:
        while self._local is not None:
            await trio.sleep(self._period_s)
            self.tell_local()

    async def _keep(self, address: str) -> None:
        """Register with one name server for ever; its troubles are logged once each time they begin."""
        trouble = False
        while True:
            try:
                async with open_connection(address) as connection:
                    while True:
                        # Taken before the call: a change during the call is told in the next round.
                        changed = self._changed[address]
                        answer = await connection.call(self._command(), self._call_s)
                        if answer.code != ResponseCode.SUCCESS:
                            log.error(
                                "a name server refused this broker", namesrv=address, reason=answer.remark
                            )
                        elif address not in self._registered or trouble:
                            log.info("registered", namesrv=address)
                            self._registered.add(address)
                        trouble = False
                        with trio.move_on_after(self._period_s):
                            await changed.wait()
            except* (RopewalkError, OSError) as group:
                if not trouble:
                    log.warning("name server out of reach", namesrv=address, reason=str(group.exceptions[0]))
                trouble = True
                self._registered.discard(address)
            await trio.sleep(_RETRY_S)

    async def unregister(self) -> None:
        """Say good-bye, so that no client is sent here any more; gives up on a name server after a second."""
        if self._local is not None:
            self._local.handle(self._farewell(), self)
        async with trio.open_nursery() as nursery:
            for address in self._remote:
                nursery.start_soon(self._leave, address)

    async def _leave(self, address: str) -> None:
        with trio.move_on_after(1.0):
            try:
                async with open_connection(address) as connection:
                    await connection.call(self._farewell(), 1.0)
            except* (RopewalkError, OSError):
                pass  # it will notice by itself: no heartbeat comes any more
