"""A throw-away group of DLedger mode: members that elect their leader, with doors for what they say to each other.

node-1 is n0, node-2 is n1, node-3 is n2; the port of `dLegerPeers` is three above the broker's.
A spare names the members that begin the group, and itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from tools.drill.testbed.cluster import Cluster

_PEER_PORT = 3


class LedgerCluster(Cluster):
    """A name server, members of one DLedger group, and the proxy."""

    def _settings(self, number: int, members: int, settings: Mapping[str, str]) -> dict[str, str]:
        found = super()._settings(number, members, settings)
        for key in ("brokerId", "brokerRole", "slaveTimeout"):
            found.pop(key)
        founders = {*range(1, members + 1), number}
        peers = [self.peer(each) for each in sorted(founders)]
        return {
            **found,
            "enableDLegerCommitLog": "true",
            "dLegerSelfId": f"n{number - 1}",
            "dLegerPeers": ";".join(peers),
            **settings,
        }

    def peer(self, number: int) -> str:
        """Return a member as `dLegerPeers` names it."""
        return f"n{number - 1}-{self._net}.{100 + number}:{self.port + _PEER_PORT}"

    async def _add_doors(self) -> None:
        await super()._add_doors()
        for node in self.nodes:
            inside, outside = node.settings["bindAddress"], node.settings["brokerIP1"]
            await self.proxy.add_door(
                (outside, self.port + _PEER_PORT), (inside, self.port + _PEER_PORT), node.name
            )
