"""Name the actions of strangers that a configuration allows: warnings at a start, and lines of `/readyz`.

The broker has no users and no TLS yet, so the network is its fence; docs/operate/hardening.md has the whole table. A
finding is one sentence, which says what is open and what to do. A broker that only its own machine reaches has none,
but for a secret that is no good one.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from broker.settings.config import BrokerConfig
from broker.settings.keys import KEYS
from ropewalk.member_proof import short_secret

__all__ = ["exposures"]

_PAGE: Final = "docs/operate/hardening.md"


def exposures(config: BrokerConfig, *, has_members: bool) -> tuple[str, ...]:
    """Return the actions that are open to strangers, a sentence each.

    `has_members`: other brokers belong to this one's group.
    """
    found = []
    for key, secret in (
        ("ropewalkSecret", config.ropewalk_secret),
        ("ropewalkSecretAlso", config.ropewalk_secret_also),
    ):
        if (why := short_secret(secret)) is not None:
            found.append(f"{key} is too short: {why}")
        if config.origin(key) == "--set":
            found.append(
                f"{key} stands on the command line, where `ps` shows it to every user of this machine: give it in the "
                f"environment ({KEYS[key].variable})"
            )
    if not _is_loopback(config.bind_address):
        found.append(
            f"there are no users and no TLS yet: whoever reaches this broker at {config.bind_address} may send, read "
            f"and administer. Let only clients, members and operators reach its ports ({_PAGE})"
        )
        is_of_group = has_members or config.broker_role != "ASYNC_MASTER" or config.enable_d_leger_commit_log
        if is_of_group and not config.ropewalk_secret and not config.ropewalk_open_group:
            found.append(
                "the members of this group prove nothing to each other: give them one ropewalkSecret, or set "
                f"ropewalkOpenGroup=true where only members reach them ({_PAGE})"
            )
    host = config.metrics_prom_exporter_host
    if config.metrics_exporter_type == "PROM" and not _is_loopback(host):
        found.append(
            f"the metrics port shows topics, groups and members to whoever reaches it at {host}: "
            f"metricsPromExporterHost binds it elsewhere ({_PAGE})"
        )
    return tuple(found)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
