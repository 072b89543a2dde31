"""Three members of one group, as a name server tells of them."""

from __future__ import annotations

MEMBERS = ("a:1", "b:1", "c:1")
CLUSTER: dict[str, dict[str, object]] = {
    "brokerAddrTable": {
        "g": {
            "cluster": "c",
            "brokerName": "g",
            "brokerAddrs": dict(zip(("0", "2", "3"), MEMBERS, strict=True)),
        }
    },
    "clusterAddrTable": {"c": ["g"]},
}
