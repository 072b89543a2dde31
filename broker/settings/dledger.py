"""The keys of DLedger mode: the syntax of members and election times, and what must hold among them.

    dLegerPeers       n0-192.0.2.1:40911;n1-192.0.2.2:40911;n2-192.0.2.3:40911     this member too; see below
    dLegerSelfId      n0            a letter and a number; the number decides the broker id of a follower
    raftElectionMs    500-900       the bounds of an election timeout, which is drawn anew each time
    raftLeaseReads    false         reads of a leader without asking the others; the same on all members
    ropewalkKvRegions 4             a number of regions, or the keys that a new store is cut at: g;n;t;

`dLegerPeers` says with which members a group begins. From its first entry on the log says who they are, and
`dLegerPeers` only where a new, empty member looks for the group, and where one that has moved may be.

`check` and `derive` see the values of all keys by name, as `config` has read them, and change them in place. Keys of
other modes are without effect here and told so, as those of this mode are where it is off.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ha.kv.region import REGIONS_MAX
from ropewalk.format.kv.items import key_refusal

__all__ = [
    "LedgerPeer",
    "check",
    "derive",
    "election_bounds",
    "is_member_id",
    "peers_of",
    "ports",
    "read_member",
    "read_peers",
    "region_cuts",
    "region_keys",
]

ENTRY_SIZE_MAX: Final = 4 << 20
"""Bytes of a log entry at most, as in DLedger."""
_PEER: Final = re.compile(r"([A-Za-z][0-9]{1,9})-([A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})):([0-9]{1,5})")
_MEMBER: Final = re.compile(r"[A-Za-z][0-9]{1,9}")
_FIRST_LETTERS: Final = string.digits + string.ascii_lowercase
_SYNTAX: Final = (
    "must be ID-HOST:PORT, several separated by ';', each ID a letter and a number: n0-192.0.2.1:40911"
)
_OWN: Final = (
    "dLegerGroup", "dLegerPeers", "dLegerSelfId", "preferredLeaderId", "storePathDLedgerCommitLog", "kvMemoryMax",
    "ropewalkKvRegions",
)  # fmt: skip
_OTHERS: Final = (
    "ackAfterFlush",
    "brokerId",
    "brokerRole",
    "flushDiskType",
    "haListenPort",
    "haMasterAddress",
    "haSyncFromLastFile",
    "inSyncReplicas",
    "minInSyncReplicas",
    "storePathCommitLog",
)
"""Keys of master and slaves, and of a plain log, without effect in DLedger mode."""


class LedgerPeer(NamedTuple):
    """A member of a group as `dLegerPeers` names it."""

    member: str
    host: str
    port: int


def read_peers(text: str) -> tuple[str, ...]:
    """Return the members in a `dLegerPeers` text; raise ValueError that tells the syntax."""
    peers = tuple(part.strip() for part in text.split(";") if part.strip())
    for peer in peers:
        found = _PEER.fullmatch(peer)
        if found is None or not 1 <= int(found[3]) <= 65535:
            raise ValueError(_SYNTAX)
    if not peers:
        raise ValueError(_SYNTAX)
    return peers


def read_member(text: str) -> LedgerPeer:
    """Return the one member that ID-HOST:PORT names, which others are to reach; raise ValueError for anything else."""
    found = _PEER.fullmatch(text)
    host = found[2] if found is not None else text.partition("-")[2].rpartition(":")[0]
    if re.search(r"[;,\s]", text):
        why = "one member is taken in at a time, without blanks"
    elif ":" in host or "[" in host:
        why = "its host is a name or an IPv4 address, and an IPv6 address is given by a name"
    elif len(host) > 253:
        why = "a host has 253 characters at most"
    elif found is None:
        why = ""
    elif not 1 <= int(found[3]) <= 65535:
        why = "a port is a number from 1 to 65535"
    elif not host.strip("0."):
        why = f"nobody reaches {host}, so name the address that the others reach it at"
    elif host.replace(".", "").isdecimal() and not _is_ipv4(host):
        why = f"{host} is no IPv4 address"
    else:
        return LedgerPeer(found[1], host, int(found[3]))
    remedy = "write ID-HOST:PORT, the ID a letter and a number: n3-192.0.2.4:40911"
    raise ValueError(f"{text[:80]!r} is written wrong: {f'{why}; ' if why else ''}{remedy}")


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def is_member_id(text: str) -> str:
    """Return a `dLegerSelfId` unchanged; raise ValueError for anything but a letter and a number."""
    if not _MEMBER.fullmatch(text):
        raise ValueError("must be a letter and a number, as n0")
    return text


def election_bounds(text: str) -> str:
    """Return a `raftElectionMs` text unchanged; raise ValueError unless it is two rising numbers."""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 10 <= int(low[:9]) < int(high[:9]) <= 600_000):
        raise ValueError("must be two numbers of milliseconds, the smaller one first, as 500-900")
    return text


def region_cuts(text: str) -> str:
    """Return a `ropewalkKvRegions` text unchanged; raise ValueError unless it is a number of regions, or keys."""
    if text.isdecimal():
        if len(text) < 3 and int(text) <= REGIONS_MAX:
            return text
    elif ";" in text:
        keys = text.split(";")[:-1]
        if text.endswith(";") and 0 < len(set(keys)) == len(keys) < REGIONS_MAX and all(map(_is_key, keys)):
            return text
    raise ValueError(
        f"must be a number of regions from 0 to {REGIONS_MAX}, or up to {REGIONS_MAX - 1} keys to cut at, each with a "
        "';' behind it: g;n;t;"
    )


def _is_key(text: str) -> bool:
    return key_refusal(text.encode()) is None


def region_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys at which a checked `ropewalkKvRegions` has a new store cut, in order."""
    if not text.isdecimal():
        return tuple(sorted(key.encode() for key in text.split(";")[:-1]))
    count = int(text)
    return tuple(_FIRST_LETTERS[len(_FIRST_LETTERS) * at // count].encode() for at in range(1, count))


def peers_of(texts: tuple[str, ...]) -> tuple[LedgerPeer, ...]:
    """Return the members of a checked `dLegerPeers`."""
    found = [_PEER.fullmatch(text) for text in texts]
    return tuple(LedgerPeer(each[1], each[2], int(each[3])) for each in found if each is not None)


def _is_elsewhere(host: str) -> bool:
    """Return whether a host is an address that is not the loopback interface's."""
    return host.replace(".", "").isdecimal() and not host.startswith("127.")


def derive(values: dict[str, Any]) -> None:
    """Fill in the defaults of this mode; where it is on, the log of entries takes the place of the plain one."""
    values.setdefault("dLegerGroup", values["brokerName"])
    for name in ("dLegerSelfId", "preferredLeaderId"):
        values.setdefault(name, "")
    values.setdefault("dLegerPeers", ())
    own = values["storePathRootDir"] / f"dledger-{values['dLegerSelfId']}" / "data"
    data = values.setdefault("storePathDLedgerCommitLog", own)
    if values["enableDLegerCommitLog"]:
        values["storePathCommitLog"] = data
        values["flushDiskType"] = "SYNC_FLUSH"
        values["brokerRole"], values["brokerId"] = "ASYNC_MASTER", 0


def ports(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the port of this member under the key that gives it; empty where this mode is off."""
    if not values["enableDLegerCommitLog"]:
        return {}
    me = values["dLegerSelfId"]
    own = [peer.port for peer in peers_of(values["dLegerPeers"]) if peer.member == me]
    return {"dLegerPeers": own[0]} if own else {}


def check(
    values: Mapping[str, Any], origins: Mapping[str, str], mistakes: list[str], warnings: list[str]
) -> None:
    """Judge the keys of this mode together."""
    if not values["enableDLegerCommitLog"]:
        if given := [name for name in _OWN if name in origins]:
            warnings.append(
                f"set, but without effect unless enableDLegerCommitLog = true: {', '.join(given)}"
            )
        return
    if given := [name for name in _OTHERS if name in origins]:
        warnings.append(f"set, but without effect in DLedger mode: {', '.join(given)}")
    peers, me = peers_of(values["dLegerPeers"]), values["dLegerSelfId"]
    if not peers or not me:
        missing = [name for name in ("dLegerPeers", "dLegerSelfId") if name not in origins]
        if missing:  # a wrong one has been told
            mistakes.append(
                f"enableDLegerCommitLog = true needs {' and '.join(missing)}: dLegerPeers = "
                "n0-HOST:PORT;n1-HOST:PORT;… names every member of the group, dLegerSelfId = n0 the one that this "
                "broker is"
            )
        return
    ids, places = [peer.member for peer in peers], [peer[1:] for peer in peers]
    for name, given in (("members", ids), ("addresses", [f"{host}:{port}" for host, port in places])):
        if twice := sorted({each for each in given if given.count(each) > 1}):
            mistakes.append(f"dLegerPeers has {name} twice: {', '.join(twice)}")
    for nowhere in [peer for peer in peers if not peer.host.strip("0.")]:
        mistakes.append(
            f"dLegerPeers = {nowhere.member}-{nowhere.host}:{nowhere.port}: nobody reaches {nowhere.host}, so name the "
            f"address that the others reach {nowhere.member} at (bindAddress = 0.0.0.0 has it listen on all of its own)"
        )
    if len({member[1:].lstrip("0") for member in ids}) < len(set(ids)):
        mistakes.append(
            "dLegerPeers: the numbers of two ids are the same, and followers would share a broker id"
        )
    if me not in ids:
        mistakes.append(f"dLegerSelfId = {me} is none of dLegerPeers ({', '.join(ids)})")
    preferred = [each for each in values["preferredLeaderId"].split(";") if each]
    if strangers := sorted({*preferred} - {*ids}):
        mistakes.append(
            f"preferredLeaderId = {', '.join(strangers)} is none of dLegerPeers ({', '.join(ids)})"
        )
    if len(peers) > 1 and not values["namesrvAddr"]:
        mistakes.append(
            "enableDLegerCommitLog with several dLegerPeers needs namesrvAddr: the name server inside a broker ends "
            "with that broker, and clients would not find the next leader"
        )
    bind, own = values["bindAddress"], dict(peer[:2] for peer in peers).get(me, "")
    if bind in ("127.0.0.1", "::1") and _is_elsewhere(own) and len(peers) > 1:
        mistakes.append(
            f"bindAddress = {bind}, but the others are to find {me} at {own} (dLegerPeers): set bindAddress=0.0.0.0"
        )
    if len(peers) % 2 == 0:
        warnings.append(
            f"dLegerPeers has {len(peers)} members, which survive the loss of no more members than {len(peers) - 1} "
            "would: an odd number is better"
        )
    low = int(values["raftElectionMs"].partition("-")[0])
    if low < 3 * values["raftHeartbeatMs"]:
        mistakes.append(
            f"raftElectionMs = {values['raftElectionMs']} must begin at three times raftHeartbeatMs = "
            f"{values['raftHeartbeatMs']} at least: one late heartbeat would cost the leader its place"
        )
