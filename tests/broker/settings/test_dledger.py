"""The keys of DLedger mode: members by name, and what must hold among them."""

from pathlib import Path

import pytest

from broker.settings.config import BrokerConfig, ConfigError, load_config
from broker.settings.dledger import LedgerPeer, peers_of

THREE = "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913"


def load(**changes: str) -> BrokerConfig:
    settings = {
        "enableDLegerCommitLog": "true",
        "dLegerPeers": THREE,
        "dLegerSelfId": "n1",
        "namesrvAddr": "127.0.0.1:9876",
        "storePathRootDir": "/data",
    } | changes
    return load_config(settings=[f"{name}={value}" for name, value in settings.items() if value])


def mistakes(**changes: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(**changes)
    return list(caught.value.mistakes)


def test_a_member_knows_its_group_and_has_its_log_where_dledger_has_it() -> None:
    config = load(brokerName="raft0")
    assert config.d_leger_group == "raft0"
    assert peers_of(config.d_leger_peers)[2] == LedgerPeer("n2", "127.0.0.1", 40913)
    assert config.store_path_commit_log == Path("/data/dledger-n1/data")
    assert config.flush_disk_type == "SYNC_FLUSH", (
        "an acknowledgement is of flushed bytes, whatever the key says"
    )
    assert config.warnings == ()
    assert load(storePathDLedgerCommitLog="/log").store_path_commit_log == Path("/log")


def test_keys_of_master_and_slaves_are_told_to_have_no_effect() -> None:
    config = load(brokerRole="SLAVE", brokerId="3", flushDiskType="ASYNC_FLUSH", inSyncReplicas="2")
    (warning,) = config.warnings
    assert "DLedger mode: brokerId, brokerRole, flushDiskType, inSyncReplicas" in warning
    assert (config.broker_role, config.flush_disk_type) == ("ASYNC_MASTER", "SYNC_FLUSH")


def test_keys_of_this_mode_are_told_to_have_no_effect_where_it_is_off() -> None:
    config = load(enableDLegerCommitLog="false", dLegerGroup="g")
    (warning,) = config.warnings
    assert "unless enableDLegerCommitLog = true: dLegerGroup, dLegerPeers, dLegerSelfId" in warning
    assert config.store_path_commit_log == Path("/data/commitlog")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dLegerPeers": ""}, "needs dLegerPeers: dLegerPeers = n0-HOST:PORT;n1-HOST:PORT"),
        ({"dLegerSelfId": ""}, "needs dLegerSelfId"),
        ({"dLegerSelfId": "n7"}, "dLegerSelfId = n7 is none of dLegerPeers (n0, n1, n2)"),
        ({"dLegerSelfId": "seven"}, "must be a letter and a number"),
        ({"dLegerPeers": "n0-a:1;n1-b;n2-c:3"}, "must be ID-HOST:PORT"),
        ({"dLegerPeers": "n0-a:70000;n1-b:2"}, "must be ID-HOST:PORT"),
        ({"dLegerPeers": "n0:1;n1:2"}, "must be ID-HOST:PORT"),
        ({"dLegerPeers": ";"}, "must be ID-HOST:PORT"),
        ({"dLegerPeers": "n0-a:1;n1-b:2;n1-c:3"}, "dLegerPeers has members twice: n1"),
        ({"dLegerPeers": "n0-a:1;n1-a:1;n2-c:3"}, "dLegerPeers has addresses twice: a:1"),
        ({"dLegerPeers": "n1-a:1;m1-b:2;n2-c:3"}, "the numbers of two ids are the same"),
        (
            {"dLegerPeers": "n0-0.0.0.0:40911;n1-b:2;n2-c:3"},
            "n0-0.0.0.0:40911: nobody reaches 0.0.0.0, so name",
        ),
        ({"dLegerPeers": "n1-0.0.0.0:40911"}, "nobody reaches 0.0.0.0"),
        ({"namesrvAddr": ""}, "needs namesrvAddr"),
        ({"preferredLeaderId": "n1;n9"}, "preferredLeaderId = n9 is none of dLegerPeers"),
        ({"raftElectionMs": "900-500"}, "two numbers of milliseconds, the smaller one first"),
        ({"raftElectionMs": "soon"}, "two numbers of milliseconds"),
        ({"raftElectionMs": "200-400"}, "three times raftHeartbeatMs = 100"),
        ({"raftHeartbeatMs": "0"}, "must be a whole number from 5"),
        ({"listenPort": "40912"}, "listenPort and dLegerPeers are the same port 40912"),
    ],
)
def test_a_group_that_cannot_work_stops_the_start_in_words(changes: dict[str, str], says: str) -> None:
    found = mistakes(**changes)
    assert len(found) == 1 and says in found[0], found


def test_one_member_alone_needs_no_name_server_of_its_own() -> None:
    config = load(dLegerPeers="n0-127.0.0.1:40911", dLegerSelfId="n0", namesrvAddr="")
    assert config.warnings == ()


def test_an_even_group_is_told_that_it_survives_no_more() -> None:
    (warning,) = load(dLegerPeers="n0-a:1;n1-b:2").warnings
    assert "2 members, which survive the loss of no more members than 1 would" in warning
