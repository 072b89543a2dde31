"""The broker's configuration: who may say what, who wins, and what is told to whoever got it wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from broker.process.announcement import print_config
from broker.settings.config import BrokerConfig, ConfigError, _as_text, load_config
from broker.settings.keys import KEYS, Key, Kind, Mark

DATA_FIELDS = {"warnings", "texts", "origins"}


def write(directory: Path, text: str) -> Path:
    path = directory / "broker.conf"
    path.write_text(text, encoding="utf-8")
    return path


def load_text(
    directory: Path,
    text: str,
    *,
    settings: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> BrokerConfig:
    return load_config(
        config_file=write(directory, text),
        settings=settings,
        named=named,
        environ=environ,
        host_name=lambda: "host.example",
        local_ip=lambda: "10.0.0.7",
    )


def mistakes_of(directory: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_text(directory, text)
    return caught.value.mistakes


# --- the table -----------------------------------------------------------------------------------------


def test_every_honoured_key_is_an_attribute_and_nothing_else_is() -> None:
    honoured = {key.attribute for key in KEYS.values() if key.mark is Mark.HONOURED}
    assert {field.name for field in fields(BrokerConfig)} - DATA_FIELDS == honoured


def test_every_key_has_an_environment_variable_of_its_own() -> None:
    variables = [variable for key in KEYS.values() for variable in key.variables]
    assert len(variables) == len(set(variables)) and all(
        key.variable in key.variables for key in KEYS.values()
    )
    assert KEYS["flushDiskType"].variable == "ROPEWALK_FLUSH_DISK_TYPE"
    assert KEYS["brokerIP1"].variable == "ROPEWALK_BROKER_IP1"
    assert KEYS["tls.server.mode"].variable == "ROPEWALK_TLS_SERVER_MODE"
    assert KEYS["storePathDLedgerCommitLog"].variable == "ROPEWALK_STORE_PATH_D_LEDGER_COMMIT_LOG"


@pytest.mark.parametrize("variable", ["ROPEWALK_SECRET", "ROPEWALK_ROPEWALK_SECRET"])
def test_a_key_that_begins_with_ropewalk_does_not_need_the_word_twice(tmp_path: Path, variable: str) -> None:
    config = load_text(tmp_path, "", environ={variable: "hush"})
    assert config.ropewalk_secret == "hush" and not config.warnings
    assert config.origin("ropewalkSecret") == f"environment {variable}"
    other = {"ROPEWALK_SECRET": "hush", "ROPEWALK_ROPEWALK_SECRET": "hush"}
    assert load_text(tmp_path, "", environ=other).ropewalk_secret == "hush"
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "", environ=other | {variable: "other"})
    [mistake] = caught.value.mistakes
    assert "ROPEWALK_SECRET and ROPEWALK_ROPEWALK_SECRET" in mistake and "hush" not in mistake


def test_the_table_covers_the_classes_of_the_original() -> None:
    known = (
        "brokerClusterName", "popCkStayBufferTime", "enableLiteEventMode", "mappedFileSizeCommitLog",
        "timerWheelEnable", "dLegerPeers", "serverSelectorThreads", "clientCloseSocketIfTimeout",
        "authenticationWhitelist", "tls.server.keyPath", "timerStopDequeue", "rocketmqHome",
    )  # fmt: skip
    assert set(known) <= set(KEYS)
    assert len(KEYS) > 500


def test_every_default_satisfies_its_own_rule() -> None:
    config = load_config()
    settings = [f"{key.name}={config.texts[key.name]}" for key in KEYS.values() if key.default is not None]
    again = load_config(settings=settings)
    assert [row.value for row in again.describe()] == [config.texts[row.key] for row in again.describe()]


# --- who wins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "expected", "origin"),
    [
        ("", "ASYNC_FLUSH", "default"),
        ("F", "SYNC_FLUSH", "file"),
        ("FE", "ASYNC_FLUSH", "environment ROPEWALK_FLUSH_DISK_TYPE"),
        ("FEN", "SYNC_FLUSH", "flag"),
        ("FENS", "ASYNC_FLUSH", "--set"),
        ("ES", "ASYNC_FLUSH", "--set"),
        ("N", "SYNC_FLUSH", "flag"),
    ],
)
def test_a_setting_beats_a_flag_beats_the_environment_beats_the_file(
    tmp_path: Path, sources: str, expected: str, origin: str
) -> None:
    file = "flushDiskType=SYNC_FLUSH" if "F" in sources else "regionId=r"
    config = load_text(
        tmp_path,
        file,
        environ={"ROPEWALK_FLUSH_DISK_TYPE": "ASYNC_FLUSH"} if "E" in sources else {},
        named={"flushDiskType": "SYNC_FLUSH"} if "N" in sources else {},
        settings=["flushDiskType=ASYNC_FLUSH"] if "S" in sources else [],
    )
    assert config.flush_disk_type == expected
    wanted = f"{tmp_path}/broker.conf:1" if origin == "file" else origin
    assert config.origin("flushDiskType") == wanted


def test_the_last_of_two_settings_counts() -> None:
    assert load_config(settings=["listenPort=20911", "listenPort=20931"]).listen_port == 20931


def test_rocketmqs_own_variable_names_the_name_servers_unless_ours_does(tmp_path: Path) -> None:
    assert load_text(tmp_path, "", environ={"NAMESRV_ADDR": "a:1;b:2"}).namesrv_addr == ("a:1", "b:2")
    both = {"NAMESRV_ADDR": "a:1", "ROPEWALK_NAMESRV_ADDR": "c:3"}
    assert load_text(tmp_path, "", environ=both).namesrv_addr == ("c:3",)


def test_an_empty_variable_or_text_counts_as_not_set(tmp_path: Path) -> None:
    environ = {"NAMESRV_ADDR": "", "ROPEWALK_LISTEN_PORT": ""}
    config = load_text(tmp_path, "namesrvAddr=\nbrokerName =  \n", environ=environ)
    assert config.namesrv_addr == ()
    assert config.broker_name == "host.example"
    assert config.listen_port == 10911
    assert config.origin("namesrvAddr") == "default"


# --- defaults that follow from the rest ----------------------------------------------------------------


def test_without_a_file_everything_stays_on_loopback_and_in_the_current_directory() -> None:
    config = load_config(host_name=lambda: "elsewhere", local_ip=lambda: "10.0.0.7")
    assert config.bind_address == config.broker_ip1 == config.broker_ip2 == "127.0.0.1"
    assert config.broker_name == "broker-a"
    assert config.store_path_root_dir == Path("ropewalk-data/broker-a")
    assert config.store_path_commit_log == Path("ropewalk-data/broker-a/commitlog")
    assert (config.listen_port, config.ha_listen_port, config.namesrv_port) == (10911, 10912, 9876)
    assert config.namesrv_addr == ()
    assert config.warnings == ()


def test_a_broker_name_alone_moves_the_data_directory() -> None:
    assert load_config(named={"brokerName": "b2"}).store_path_root_dir == Path("ropewalk-data/b2")


def test_with_a_file_the_broker_is_as_rocketmq_would_start_it(tmp_path: Path) -> None:
    config = load_text(tmp_path, "brokerRole=ASYNC_MASTER\n", environ={"HOME": "/home/mq"})
    assert config.bind_address == "0.0.0.0"
    assert config.broker_ip1 == config.broker_ip2 == "10.0.0.7"
    assert config.broker_name == "host.example"
    assert config.store_path_root_dir == Path("/home/mq/store")


def test_the_advertised_address_follows_the_bound_one(tmp_path: Path) -> None:
    config = load_text(tmp_path, "bindAddress=192.168.1.5")
    assert config.broker_ip1 == config.broker_ip2 == "192.168.1.5"
    config = load_text(tmp_path, "bindAddress=0.0.0.0\nbrokerIP1=203.0.113.9")
    assert config.broker_ip1 == config.broker_ip2 == "203.0.113.9"


def test_an_address_that_cannot_be_found_is_told(tmp_path: Path) -> None:
    config = load_config(config_file=write(tmp_path, ""), host_name=lambda: "h", local_ip=lambda: None)
    assert config.broker_ip1 == "127.0.0.1"
    assert any("brokerIP1" in warning for warning in config.warnings)


def test_the_ha_port_stands_beside_the_listen_port() -> None:
    assert load_config(settings=["listenPort=20911"]).ha_listen_port == 20912
    assert load_config(settings=["listenPort=0"]).ha_listen_port == 0
    assert load_config(settings=["listenPort=20911", "haListenPort=30000"]).ha_listen_port == 30000


def test_a_host_name_becomes_a_name_that_topics_and_folders_can_carry(tmp_path: Path) -> None:
    path = write(tmp_path, "brokerIP1=10.0.0.1")
    assert load_config(config_file=path, host_name=lambda: "a b/ü").broker_name == "a-b--"
    assert load_config(config_file=path, host_name=lambda: "").broker_name == "broker-a"


def test_a_consume_queue_file_is_rounded_up_to_whole_entries() -> None:
    assert load_config(settings=["mappedFileSizeConsumeQueue=6001"]).mapped_file_size_consume_queue == 6020


def test_the_registration_period_is_moved_into_its_bounds_and_told() -> None:
    config = load_config(settings=["registerNameServerPeriod=1000"])
    assert config.register_name_server_period == 10_000
    assert any("registerNameServerPeriod" in warning for warning in config.warnings)


def test_delay_levels_are_milliseconds() -> None:
    assert load_config().message_delay_level[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert len(load_config().message_delay_level) == 18
    assert load_config(settings=["messageDelayLevel=1s 2h 1d"]).message_delay_level == (
        1_000,
        7_200_000,
        86_400_000,
    )


# --- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("listenPort=99999", "from 0 to 65534"),
        ("listenPort=ten", "whole number"),
        ("listenPort=", "whole number"),
        ("listenPort=2", "the port two below"),
        ("listenPort=1_0911", "whole number"),
        ("haListenPort=10911", "are the same port 10911"),
        ("haListenPort=10909", "are the same port 10909"),
        ("namesrvPort=10912", "are the same port 10912"),
        ("mappedFileSizeCommitLog=4096", "from 65536 to 2147483647"),
        ("mappedFileSizeCommitLog=2147483648", "from 65536 to 2147483647"),
        ("maxMessageSize=0", "from 1 to"),
        ("brokerId=-1", "from 0 to"),
        ("brokerPermission=8", "from 0 to 7"),
        ("autoCreateTopicEnable=yes", "true or false"),
        ("flushDiskType=SYNC", "must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("brokerName=../up", "1 to 127 letters"),
        ("brokerName=a/b", "1 to 127 letters"),
        ("brokerClusterName=" + "c" * 128, "1 to 127 letters"),
        ("brokerIP1=::1", "IPv4 address or a host name"),
        ("bindAddress=a:b:c:d", "IPv4 address or a host name"),
        ("bindAddress=2001:db8::1", "set brokerIP1 to a host name"),
        ("namesrvAddr=localhost", "host:port"),
        ("namesrvAddr=a:1,b:2", "host:port"),
        ("namesrvAddr=a:0", "host:port"),
        ("namesrvAddr=;", "host:port"),
        ("messageDelayLevel=1s 5", "units s, m, h or d"),
        ("messageDelayLevel=1 s", "units s, m, h or d"),
        ("msgTraceTopicName=a b", "topic name"),
        ("storePathCommitLog=/a,/b", "several log directories"),
        ("regionId=a\\u0001b", "control characters"),
        ("timerPrecisionMs=soon", "whole number"),
        ("logicalDiskSpaceCleanForciblyThreshold=much", "must be a number"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_what_is_allowed(
    tmp_path: Path, line: str, says: str
) -> None:
    found = mistakes_of(tmp_path, f"# a comment\n{line}\n")
    assert len(found) == 1, found
    assert says in found[0]


@pytest.mark.parametrize(
    "line",
    [
        "transientStorePoolEnable=true",
        "enableControllerMode=true",
        "storeType=defaultRocksDB",
        "authenticationEnabled=true",
        "authorizationEnabled = TRUE",
        "duplicationEnable=true",
        "enableSlaveActingMaster=true",
        "allAckInSyncStateSet=true",
        "tls.server.mode=enforcing",
        "readOnlyCommitLogStorePaths=/old",
    ],
)
def test_what_would_promise_more_than_is_built_stops_the_start(tmp_path: Path, line: str) -> None:
    (mistake,) = mistakes_of(tmp_path, line)
    assert "is refused: " in mistake
    assert mistake.startswith(f"{tmp_path}/broker.conf:1: ")


@pytest.mark.parametrize(
    "key", [key for key in KEYS.values() if key.mark is Mark.REFUSED], ids=lambda k: k.name
)
def test_a_refused_key_may_be_set_to_its_default(key: Key) -> None:
    default = "false" if key.kind is Kind.BOOL else str(key.default or "")
    assert load_config(settings=[f"{key.name}={default}"]).warnings == ()


def test_only_the_value_that_counts_is_refused(tmp_path: Path) -> None:
    config = load_text(tmp_path, "storeType=defaultRocksDB", settings=["storeType=default"])
    assert config.texts["storeType"] == "default"


# -- replication --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "copies"),
    [
        ("brokerRole=ASYNC_MASTER", 1),
        ("brokerRole=SYNC_MASTER", 2),
        ("brokerRole=SYNC_MASTER\ninSyncReplicas=3", 3),
        ("brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=h:1", 1),
    ],
)
def test_a_sync_master_waits_for_one_slave_unless_told_otherwise(
    tmp_path: Path, lines: str, copies: int
) -> None:
    config = load_text(tmp_path, lines)
    assert config.in_sync_replicas == copies
    assert config.warnings == ()


def test_a_sync_master_that_waits_for_nobody_is_warned_about(tmp_path: Path) -> None:
    config = load_text(tmp_path, "brokerRole=SYNC_MASTER\ninSyncReplicas=1")
    assert config.in_sync_replicas == 1
    assert any("acknowledges like an ASYNC_MASTER" in warning for warning in config.warnings)


def test_a_slave_has_an_id_and_somebody_to_ask_for_its_master(tmp_path: Path) -> None:
    text = "\n".join(mistakes_of(tmp_path, "brokerRole=SLAVE"))
    assert "brokerId" in text and "haMasterAddress" in text
    config = load_text(tmp_path, "brokerRole=SLAVE\nbrokerId=3\nhaMasterAddress=10.0.0.1:10912")
    assert (config.broker_role, config.broker_id, config.ha_master_address) == ("SLAVE", 3, "10.0.0.1:10912")


def test_peers_are_given_longer_than_a_heartbeat_takes(tmp_path: Path) -> None:
    (mistake,) = mistakes_of(tmp_path, "haSendHeartbeatInterval=5000\nhaHousekeepingInterval=5000")
    assert "must be longer" in mistake


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("flushDiskTpye", "flushDiskType"),
        ("FlushDiskType", "flushDiskType"),
        ("clusterName", "brokerClusterName"),
        ("nameSrvAddr", "namesrvAddr"),
        ("storeRootDir", "storePathRootDir"),
    ],
)
def test_an_unknown_key_is_a_mistake_that_names_its_neighbour(tmp_path: Path, word: str, near: str) -> None:
    (mistake,) = mistakes_of(tmp_path, f"{word}=x")
    assert f"there is no key {word!r}; the nearest one is {near}" in mistake


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(
            tmp_path,
            "flushDiskTpye=SYNC_FLUSH\nlistenPort=x\nstoreType=defaultRocksDB\n",
            settings=["brokerName", "=x"],
            named={"namesrvAddr": "nowhere"},
            environ={"ROPEWALK_BROKER_ID": "one"},
        )
    assert len(caught.value.mistakes) == 7
    assert str(caught.value).splitlines() == list(caught.value.mistakes)


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.conf", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(config_file=path)


def test_a_file_far_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a configuration file"):
        load_text(tmp_path, "#" * (1 << 20) + "\n")


def test_a_damaged_escape_is_told_with_its_line(tmp_path: Path) -> None:
    (mistake,) = mistakes_of(tmp_path, "\nregionId=\\u00")
    assert mistake.startswith(f"{tmp_path}/broker.conf:2: ")


# --- warnings ------------------------------------------------------------------------------------------


def test_one_warning_lists_what_was_set_without_effect(tmp_path: Path) -> None:
    config = load_text(
        tmp_path, "warmMapedFileEnable=true\nasyncSendEnable=false\nsendMessageThreadPoolNums=16\n"
    )
    (warning,) = config.warnings
    assert warning.endswith("asyncSendEnable, sendMessageThreadPoolNums, warmMapedFileEnable")


def test_a_key_set_twice_is_told_and_the_second_counts(tmp_path: Path) -> None:
    config = load_text(tmp_path, "brokerName=a\nbrokerName=b\nregionId=r\nregionId=r\n")
    assert config.broker_name == "b"
    (warning,) = config.warnings
    assert "broker.conf:2: brokerName is set a second time" in warning


def test_a_variable_close_to_a_known_one_is_told() -> None:
    config = load_config(environ={"ROPEWALK_FLUSH_DISK_TPYE": "SYNC_FLUSH", "ROPEWALK_LONG": "1"})
    (warning,) = config.warnings
    assert "was ROPEWALK_FLUSH_DISK_TYPE meant?" in warning


def test_variables_that_a_container_platform_invents_are_no_mistake() -> None:
    environ = {"ROPEWALK_SERVICE_HOST": "10.0.0.1", "ROPEWALK_PORT_9876_TCP": "tcp://10.0.0.1:9876"}
    assert load_config(environ=environ).warnings == ()


def test_a_master_with_another_id_is_told_that_it_has_id_0(tmp_path: Path) -> None:
    config = load_text(tmp_path, "brokerId=1")
    assert config.broker_id == 0
    assert "brokerId" in config.warnings[0]


def test_a_message_size_beyond_the_segment_is_told() -> None:
    config = load_config(settings=["mappedFileSizeCommitLog=65536", "maxMessageSize=65536"])
    assert "does not fit into a segment" in config.warnings[0]
    assert load_config(settings=["mappedFileSizeCommitLog=65536"]).warnings == ()


# --- what is shown -------------------------------------------------------------------------------------


def test_every_value_is_shown_with_its_origin(tmp_path: Path) -> None:
    config = load_text(tmp_path, "brokerName=b\nwarmMapedFileEnable=true\n", named={"namesrvAddr": "a:1;b:2"})
    rows = {row.key: row for row in config.describe()}
    assert (rows["brokerName"].value, rows["brokerName"].origin) == ("b", f"{tmp_path}/broker.conf:1")
    assert (rows["namesrvAddr"].value, rows["namesrvAddr"].origin) == ("a:1;b:2", "flag")
    assert (rows["haListenPort"].value, rows["haListenPort"].origin) == ("10912", "default")
    assert rows["traceOn"].value == "true"
    assert rows["messageDelayLevel"].value.startswith("1s 5s")
    assert rows["warmMapedFileEnable"].mark is Mark.NO_EFFECT
    assert "putMessageTimeout" not in rows
    assert "putMessageTimeout" in {row.key for row in config.describe(every_key=True)}


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    config = load_text(tmp_path, "tls.server.keyPassword=s3cret")
    assert "s3cret" not in str(config.describe(every_key=True))
    assert "s3cret" not in repr(config)
    assert "s3cret" not in str(mistakes_of(tmp_path, "tls.server.keyPassword=s3cret\\u0001"))


def test_an_origin_is_only_told_of_keys_that_exist() -> None:
    with pytest.raises(KeyError):
        load_config().origin("flushDiskTpye")


def test_a_sample_file_of_rocketmq_starts_here_too(tmp_path: Path) -> None:
    text = """
# Licensed to somebody
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""
    config = load_text(tmp_path, text)
    assert (config.broker_name, config.broker_id, config.flush_disk_type) == ("broker-a", 0, "ASYNC_FLUSH")


def test_a_file_in_utf_8_or_latin_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    for content in (b"\xef\xbb\xbfregionId=r\n# \xc3\xbc", b"regionId=r\n# \xfc"):
        path.write_bytes(content)
        assert load_config(config_file=path, host_name=lambda: "h").region_id == "r"


# --- a throw-away broker, and what asks for protection -------------------------------------------------


REAL = {"NAMESRV_ADDR": "real.example:9876"}


def test_the_variable_of_clients_makes_no_broker_join_a_cluster_unless_a_file_configures_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=orders\n")
    assert load_config(config_file=file, environ=REAL).namesrv_addr == ("real.example:9876",)
    for config in (
        load_config(environ=REAL),
        load_config(environ=REAL, ephemeral=True, config_file=file),
    ):
        assert config.namesrv_addr == ()
        assert any("NAMESRV_ADDR = real.example:9876 is for clients" in each for each in config.warnings)
    own = {"ROPEWALK_NAMESRV_ADDR": "mine:9876"} | REAL
    config = load_config(environ=own)
    assert config.namesrv_addr == ("mine:9876",) and config.warnings == ()


@pytest.mark.parametrize("variable", ["NAMESRV_ADDR", "ROPEWALK_NAMESRV_ADDR"])
def test_who_asks_for_a_name_server_of_its_own_takes_none_from_the_environment(
    tmp_path: Path, variable: str
) -> None:
    """As the test fixture does: whatever the shell of a developer has set."""
    environ = {variable: "real.example:9876"}
    assert load_config(environ=environ, named={"namesrvPort": "0"}).namesrv_addr == ()
    both = {"namesrvPort": "0", "namesrvAddr": "mine:1"}
    assert load_config(environ=environ, named=both).namesrv_addr == ("mine:1",)


@pytest.mark.parametrize(
    "setting",
    [
        "aclEnable=true",
        "authenticationEnabled=true",
        "authorizationEnabled=true",
        "migrateAuthFromV1Enabled=true",
        "useTLS=true",
        "tls.enable=true",
        "tls.server.mode=enforcing",
        "tls.server.need.client.auth=require",
        "tls.server.authClient=true",
        "tls.client.authServer=true",
    ],
)
def test_a_setting_that_asks_for_protection_is_refused_until_the_protection_is_there(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"is refused: .* is not built yet"):
        load_config(settings=[setting])


def test_protection_that_is_turned_off_is_an_ordinary_setting() -> None:
    settings = ["aclEnable=false", "tls.enable=false", "tls.server.mode=permissive"]
    assert load_config(settings=settings).warnings == ()


@pytest.mark.parametrize(
    "key", [key for key in KEYS.values() if key.mark is Mark.REFUSED], ids=lambda key: key.name
)
def test_a_value_that_a_broker_starts_with_is_not_shown_as_refused(
    key: Key, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(settings=[f"{key.name}={_as_text(key.default)}"])
    print_config(config, as_json=True)
    print_config(config, as_json=False)
    shown = capsys.readouterr().out
    assert "refused" not in shown.lower()
    assert key.default is None or f"{key.name} = {_as_text(key.default)}" in shown


def test_the_cluster_file_of_every_tutorial_starts_a_broker_and_says_what_it_does_not_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker-a.properties"
    file.write_text(
        "brokerClusterName=rocketmq-cluster\nbrokerName=broker-a\nbrokerId=0\nnamesrvAddr=one:9876;two:9876\n"
        "defaultTopicQueueNums=4\nlistenPort=10911\ndeleteWhen=04\nfileReservedTime=120\n"
        "mapedFileSizeCommitLog=1073741824\nmapedFileSizeConsumeQueue=300000\n"
        "destroyMapedFileIntervalForcibly=120000\nredeleteHangedFileInterval=120000\ndiskMaxUsedSpaceRatio=88\n"
        "storePathRootDir=${user.home}/store\nstorePathCommitLog=${user.home}/store/commitlog\n"
        "storePathConsumeQueue=/store/consumequeue\nstorePathIndex=/store/index\n"
        "storeCheckpoint=/store/checkpoint\nabortFile=/store/abort\nmaxMessageSize=65536\n"
        "flushCommitLogLeastPages=4\nbrokerRole=ASYNC_MASTER\nflushDiskType=ASYNC_FLUSH\n"
        "checkTransactionMessageEnable=false\nsendMessageThreadPoolNums=128\n"
    )
    config = load_config(config_file=file, environ={"HOME": "/home/mq"})
    assert config.store_path_root_dir == Path("/home/mq/store")
    assert config.store_path_commit_log == Path("/home/mq/store/commitlog")
    told = "\n".join(config.warnings)
    for dead in ("mapedFileSizeCommitLog", "storePathConsumeQueue", "storePathIndex", "abortFile"):
        assert f"{dead} is a key of RocketMQ 3" in told
    assert "broker-a.properties:9: mapedFileSizeCommitLog" in told
    assert "mappedFileSizeCommitLog is the one that counts" in told
