"""The secret of a group is changed while the group works, as docs/operate/hardening.md tells it step by step."""

from __future__ import annotations

from pathlib import Path

from tests.ha.pairs import Pair, until_acknowledged
from tests.support.ports import free_ports

OLD, NEW = "the old secret of a group", "the new secret of a group"
STEPS = ((OLD, NEW), (NEW, OLD), (NEW, ""))


def test_a_secret_is_changed_by_a_rolling_restart_and_no_member_is_refused(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        (port,) = free_ports(1)
        before = {"ropewalkSecret": OLD}
        master = pair.start(
            "master", brokerRole="SYNC_MASTER", listenPort=port, haListenPort=port + 1, **before
        )
        pair.start("slave", brokerRole="SLAVE", brokerId=1, **before)
        until_acknowledged(master.address)
        for secret, also in STEPS:
            for name in ("slave", "master"):
                pair.end(name)
                place = pair.places[name]
                place.settings |= {"ropewalkSecret": secret, "ropewalkSecretAlso": also}
                if not also:
                    del place.settings["ropewalkSecretAlso"]
                pair.start(name)
                until_acknowledged(
                    master.address
                )  # which needs the slave, that proved itself, and was proven to
        for name, place in pair.places.items():
            told = place.errors()
            assert "no proof of ropewalkSecret" not in told, f"{name}: {told}"
            assert "does not prove" not in told and "is not listened to" not in told, f"{name}: {told}"
            assert OLD not in told and NEW not in told
