"""A throw-away group of DLedger mode: members that elect their leader, with doors for what they say to each other.

node-1 is n0, node-2 is n1, node-3 is n2; the port of `dLegerPeers` is three above the broker's
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
        peers = [f"n{each}-{self._net}.{101 + each}:{self.port + _PEER_PORT}" for each in range(members)]
        return {
            **found,
            "enableDLegerCommitLog": "true",
            "dLegerSelfId": f"n{number - 1}",
            "dLegerPeers": ";".join(peers),
            **settings,
        }

    async def _add_doors(self) -> None:
        await super()._add_doors()
        for node in self.nodes:
            inside, outside = node.settings["bindAddress"], node.settings["brokerIP1"]
            await self.proxy.add_door(
                (outside, self.port + _PEER_PORT), (inside, self.port + _PEER_PORT), node.name
            )
