"""The configuration of a broker: values, their origins, and which of them count.

    --set key=value  >  named flag  >  environment  >  file  >  default

The environment spells flushDiskType as ROPEWALK_FLUSH_DISK_TYPE, and ropewalkSecret as ROPEWALK_SECRET: the doubled
word of ROPEWALK_ROPEWALK_SECRET is accepted too, and two values that differ are a mistake. NAMESRV_ADDR is where
clients look for a name server, and on a developer's machine that is often a real one: it stands for namesrvAddr only
beside a configuration file, as with RocketMQ's own scripts, and never for a broker that is `--ephemeral` or starts a
name server of its own (`--namesrv-port`), which takes no name servers from the environment at all. An empty variable
and an empty text count as not set. `config_keys` knows every key; a key it does not know is a mistake, because a
broker that starts with a misspelt `flushDiskType` has promised less than its owner believes.

All mistakes are collected and raised together. What merely has no effect is a warning, told once.

Some defaults depend on the rest. Without a configuration file the broker is somebody's experiment: it binds
to loopback and keeps its data below the current directory. With one it binds to all addresses and keeps its
data where RocketMQ would. What it advertises follows from what it binds to.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broker.settings import dledger
from broker.settings.java_properties import PropertiesError, read_properties
from broker.settings.keys import (
    ANY,
    DEAD,
    INT_MAX,
    INT_MIN,
    KEYS,
    LONG_MAX,
    LONG_MIN,
    SEVERAL_DIRECTORIES,
    Key,
    Kind,
    Mark,
)
from ropewalk.errors import RopewalkError
from store.retention.rules import delete_hours

CONFIG_FILE_SIZE_MAX = 1 << 20
CONSUME_QUEUE_ENTRY_SIZE = 20
LOOPBACK = "127.0.0.1"
METRICS_PORT = 5557
METRICS_PORTS = 16
"""From the default port on, how many are tried for the brokers of one machine."""
DISK_RATIOS = {
    "diskMaxUsedSpaceRatio": (10, 95),
    "diskSpaceCleanForciblyRatio": (30, 85),
    "diskSpaceWarningLevelRatio": (35, 90),
}
"""Percent; a value outside is moved to the nearer end, as RocketMQ does."""
REGISTER_PERIOD_MS = (10_000, 60_000)
"""RocketMQ moves the registration period into these bounds instead of refusing it."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%|-]{0,126}")
_TOPIC = re.compile(r"[A-Za-z0-9%|_-]{1,127}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_DELAY = re.compile(r"([0-9]{1,9})([smhd])")
_DELAY_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HIDDEN = re.compile(r"password|credential|secret|initAuthenticationUser", re.IGNORECASE)


class ConfigError(RopewalkError):
    """The configuration cannot be used; `mistakes` holds every reason, each a sentence of its own."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """A line of --print-config."""

    key: str
    value: str
    origin: str
    mark: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The honoured keys under their Python names. Times are milliseconds unless the name says otherwise."""

    broker_cluster_name: str
    broker_name: str
    broker_id: int
    broker_role: str
    broker_ip1: str
    """The host that clients are told to connect to."""
    broker_ip2: str
    """The host that slaves are told to connect to."""
    bind_address: str
    listen_port: int
    """0: any free port, and then also for the ports derived from it."""
    ha_listen_port: int
    namesrv_addr: tuple[str, ...]
    """`host:port` of every name server; empty: the broker embeds one."""
    region_id: str
    register_name_server_period: int
    register_broker_timeout_mills: int
    ha_master_address: str
    """`host:port` of the master's HA port; empty: the name server says."""
    in_sync_replicas: int
    """Copies, the master's among them, that make an acknowledgement."""
    min_in_sync_replicas: int
    """Copies without which no message is taken."""
    slave_timeout: int
    ha_send_heartbeat_interval: int
    ha_housekeeping_interval: int
    ha_transfer_batch_size: int
    ha_max_gap_not_in_sync: int
    ha_flow_control_enable: bool
    max_ha_transfer_byte_in_second: int
    slave_read_enable: bool
    ack_after_flush: bool
    enable_d_leger_commit_log: bool
    d_leger_group: str
    d_leger_peers: tuple[str, ...]
    """Every member of the group as `id-host:port`; `broker.settings.dledger.peers_of` takes them apart."""
    d_leger_self_id: str
    preferred_leader_id: str
    store_path_d_ledger_commit_log: Path
    """The directory of the log's files; in DLedger mode `store_path_commit_log` is the same one."""
    raft_heartbeat_ms: int
    raft_election_ms: str
    raft_lease_reads: bool
    ropewalk_kv_regions: str
    kv_memory_max: int
    ropewalk_secret: str
    """The secret that the members of a group prove to each other to know; empty asks for no proof."""
    ropewalk_secret_also: str
    """A second secret that is taken and never sent; empty but while the secret is changed."""
    ropewalk_secret_v1: bool
    """Whether members that prove their questions alone are spoken to."""
    ropewalk_address_aliases: tuple[str, ...]
    """Further addresses at which members dial this broker."""
    ropewalk_open_group: bool
    """Whether the start and `/readyz` say nothing of a group that has no secret."""
    ropewalk_master_address: str
    """The master's remoting address, where no name server tells it."""
    ha_sync_from_last_file: bool
    store_path_root_dir: Path
    store_path_commit_log: Path
    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    """A multiple of the 20 bytes of an entry."""
    message_index_enable: bool
    max_hash_slot_num: int
    max_index_num: int
    max_msgs_num_batch: int
    default_query_max_num: int
    file_reserved_time: int
    """Hours."""
    delete_when: str
    disk_max_used_space_ratio: int
    disk_space_clean_forcibly_ratio: int
    disk_space_warning_level_ratio: int
    clean_file_forcibly_enable: bool
    clean_resource_interval: int
    os_page_cache_busy_time_out_mills: int
    delete_file_batch_max: int
    delete_commit_log_files_interval: int
    delete_consume_queue_files_interval: int
    flush_disk_type: str
    flush_interval_commit_log: int
    sync_flush_timeout: int
    flush_consumer_offset_interval: int
    auto_create_topic_enable: bool
    auto_create_subscription_group: bool
    default_topic_queue_nums: int
    cluster_topic_enable: bool
    broker_topic_enable: bool
    broker_permission: int
    trace_on: bool
    trace_topic_enable: bool
    msg_trace_topic_name: str
    message_delay_level: tuple[int, ...]
    """Milliseconds of level 1, 2, 3 …"""
    timer_wheel_enable: bool
    timer_max_delay_sec: int
    timer_precision_ms: int
    timer_roll_window_slot: int
    timer_congest_num_each_slot: int
    mapped_file_size_timer_log: int
    recall_message_enable: bool
    append_topic_for_timer_delete_key: bool
    store_reply_message_enable: bool
    """Whether the answers of request-reply calls are stored besides being pushed."""
    max_message_size: int
    reject_transaction_message: bool
    transaction_time_out: int
    """How long a half message is left alone before its producer is asked."""
    transaction_check_interval: int
    transaction_check_max: int
    transaction_op_msg_max_size: int
    """Bytes of the half offsets in one operation record, about."""
    long_polling_enable: bool
    lite_pull_message_enable: bool
    short_polling_time_mills: int
    max_transfer_bytes_on_message_in_memory: int
    max_transfer_count_on_message_in_memory: int
    max_transfer_bytes_on_message_in_disk: int
    max_transfer_count_on_message_in_disk: int
    access_message_in_memory_max_ratio: int
    enable_property_filter: bool
    filter_support_retry: bool
    filter_data_clean_time_span: int
    max_error_rate_of_bloom_filter: int
    expect_consumer_num_use_filter: int
    filter_ignore_trailing_text: bool
    bulk_read_max_bytes: int
    sink_expiry_hours: int
    sink_window_rows_max: int
    channel_expired_timeout: int
    server_channel_max_idle_time_seconds: int
    first_request_timeout_seconds: int
    warm_window_bytes: int
    catch_up_read_ratio: int
    """Percent of a busy loop that are for pulls far behind the end of the log; at 100 none is put off."""
    outgoing_bytes_max: int
    outgoing_bytes_total_max: int
    incoming_bytes_total_max: int
    auto_create_topics_max: int
    auto_create_groups_max: int
    new_names_per_minute: int
    offset_pairs_max: int
    fast_path_enable: bool
    """Whether requests that come again and again are recognised; without it each is handled by itself, as correctly."""
    check_at_start_bytes: int
    """How much of the log's end a start checks before it believes it."""
    scrub_bytes_per_second: int
    metrics_exporter_type: str
    metrics_prom_exporter_host: str
    metrics_prom_exporter_port: int
    metrics_label: str
    """`name:value,name:value`: labels that every metric carries besides its own."""
    log_level: str
    log_format: str
    log_file: Path | None
    """None: standard error."""
    ropewalk_umask: str
    """Octal digits; `file_mode_mask` is their number."""
    namesrv_port: int

    warnings: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Every known key with its value as a file would hold it."""
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Where the keys that were set come from."""

    @property
    def file_mode_mask(self) -> int:
        """The umask of this process: which permissions the files that it makes do not have."""
        return int(self.ropewalk_umask, 8)

    def origin(self, key: str) -> str:
        """Return the origin of a key's value. Raises KeyError for a key that does not exist."""
        return self.origins.get(KEYS[key].name, "default")

    def describe(self, *, every_key: bool = False) -> list[ConfigRow]:
        """The honoured keys and those that were set, or all of them; secrets are not shown."""
        return [
            ConfigRow(key.name, _shown(key, self.texts[key.name]), self.origin(key.name), _mark(key))
            for key in KEYS.values()
            if every_key or key.mark is Mark.HONOURED or key.name in self.origins
        ]


@dataclass(frozen=True, slots=True)
class _Given:
    """One key that somebody set, in the words it was set with."""

    name: str
    text: str
    origin: str


def load_config(
    *,
    config_file: Path | None = None,
    settings: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    host_name: Callable[[], str] = platform.node,
    local_ip: Callable[[], str | None] = lambda: None,
    ephemeral: bool = False,
) -> BrokerConfig:
    """Read all sources and judge them together; raises ConfigError with every mistake found.

    `settings` are the words behind --set, `named` the flags that stand for a key, by that key. `local_ip` is
    asked for the address to advertise when the broker binds to all of them and no brokerIP1 is given. An `ephemeral`
    broker is thrown away: it does not join whatever cluster RocketMQ's NAMESRV_ADDR names.
    """
    environ = environ or {}
    home = Path(environ.get("HOME") or "~").expanduser()
    embeds = "namesrvPort" in (named or {}) and "namesrvAddr" not in (named or {})
    named_it = (named or {}).get("namesrvAddr") == environ.get("NAMESRV_ADDR")
    clients_only = (ephemeral or config_file is None) and not named_it
    mistakes: list[str] = []
    warnings: list[str] = []
    given = [
        *_from_file(config_file, mistakes, warnings),
        *_from_environment(environ, mistakes, warnings, embeds=embeds, clients_only=clients_only),
        *(_Given(name, text, "flag") for name, text in (named or {}).items()),
        *_from_settings(settings, mistakes),
    ]
    values: dict[str, Any] = {}
    texts = {name: _as_text(key.default) for name, key in KEYS.items()}
    origins: dict[str, str] = {}
    for item in given:
        key = KEYS.get(item.name)
        if item.name in DEAD:
            use = f"; {DEAD[item.name]}" if DEAD[item.name] else ""
            warnings.append(
                f"{item.origin}: {item.name} is a key of RocketMQ 3 that no later version reads{use}"
            )
            continue
        if key is None:
            mistakes.append(f"{item.origin}: there is no key {item.name!r}{nearest_key(item.name)}")
            continue
        text = item.text.strip().replace("${user.home}", str(home))
        if not text and key.kind is Kind.TEXT:
            continue
        try:
            values[key.name] = _convert(key, text)
        except ValueError as error:
            shown = repr(_shown(key, item.text))
            mistakes.append(f"{item.origin}: {key.name} = {shown}: {error}")
            values.pop(key.name, None)
        texts[key.name] = text
        origins[key.name] = item.origin
    mistakes += _refusals(origins, texts)
    ignored = [name for name in origins if KEYS[name].mark is Mark.NO_EFFECT]
    if ignored:
        warnings.append(f"set, but without effect in Ropewalk: {', '.join(sorted(ignored))}")

    settled = {
        key.name: _convert(key, _as_text(key.default))
        for key in KEYS.values()
        if key.mark is Mark.HONOURED and key.default is not None
    }
    settled.update((name, value) for name, value in values.items() if KEYS[name].mark is Mark.HONOURED)
    _derive(settled, config_file is None, home, host_name, local_ip, warnings)
    _check_together(settled, origins, mistakes, warnings)
    if mistakes:
        raise ConfigError(mistakes)
    for key in KEYS.values():
        if key.mark is Mark.HONOURED and key.name != "messageDelayLevel":
            texts[key.name] = _as_text(settled[key.name])
    return BrokerConfig(
        **{KEYS[name].attribute: value for name, value in settled.items()},
        warnings=tuple(warnings),
        texts=texts,
        origins=origins,
    )


def change(config: BrokerConfig, changes: Mapping[str, str], origin: str) -> BrokerConfig:
    """The configuration with some honoured keys set anew while the broker runs; raises ConfigError.

    Which keys those may be is for the caller to say; values derived at the start stay as they are.
    """
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, text in changes.items():
        try:
            values[KEYS[name].attribute] = _convert(KEYS[name], text.strip())
        except ValueError as error:
            mistakes.append(f"{name} = {text!r}: {error}")
    if mistakes:
        raise ConfigError(mistakes)
    texts = {name: _as_text(values[KEYS[name].attribute]) for name in changes}
    return replace(
        config,
        **values,
        texts={**config.texts, **texts},
        origins={**config.origins, **dict.fromkeys(changes, origin)},
    )


def keep_settings(path: Path, changes: Mapping[str, str]) -> None:
    """Set keys in a configuration file, and leave every other line as its owner wrote it. Blocks.

    The file is replaced whole, so that a crash leaves the old text or the new one. Raises OSError.
    """
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    left = dict(changes)
    kept = []
    for line in text.splitlines():
        name = re.split(r"[\s=:]", line.lstrip(), maxsplit=1)[0]
        if name in changes and not line.endswith("\\"):
            if name in left:
                kept.append(f"{name}={left.pop(name)}")
        else:
            kept.append(line)
    kept += [f"{name}={value}" for name, value in left.items()]
    temporary = path.with_name(path.name + ".new")
    try:
        # Made for its owner alone before anything is in it: the file may hold a secret.
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write("".join(f"{line}\n" for line in kept).encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


# --- the sources ---------------------------------------------------------------------------------------


def _from_file(path: Path | None, mistakes: list[str], warnings: list[str]) -> list[_Given]:
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_FILE_SIZE_MAX + 1)
    except OSError as error:
        mistakes.append(f"{path}: cannot be read: {error.strerror or error}")
        return []
    if len(content) > CONFIG_FILE_SIZE_MAX:
        mistakes.append(f"{path}: larger than {CONFIG_FILE_SIZE_MAX} bytes; this is not a configuration file")
        return []
    try:
        # Java reads Latin-1. Whoever wrote UTF-8 meant it, and no sensible Latin-1 text happens to be it.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    given: dict[str, _Given] = {}
    try:
        for entry in read_properties(text):
            before = given.get(entry.key)
            if before and before.text != entry.value:
                warnings.append(f"{path}:{entry.line}: {entry.key} is set a second time, and this one counts")
            given[entry.key] = _Given(entry.key, entry.value, f"{path}:{entry.line}")
    except PropertiesError as error:
        mistakes.append(f"{path}:{error.line}: {error.reason}")
    return list(given.values())


def _from_environment(
    environ: Mapping[str, str],
    mistakes: list[str],
    warnings: list[str],
    *,
    embeds: bool,
    clients_only: bool,
) -> list[_Given]:
    """Take the variables that are set; `embeds`, `clients_only`: why name servers are not taken from there."""
    by_variable = {variable: key for key in KEYS.values() for variable in key.variables}
    given = []
    own = KEYS["namesrvAddr"].variable
    if environ.get("NAMESRV_ADDR") and not environ.get(own) and not embeds:
        if clients_only:
            warnings.append(
                f"environment NAMESRV_ADDR = {environ['NAMESRV_ADDR']} is for clients, and this broker does not "
                f"register there: give its name servers with --name-server, namesrvAddr or {own}"
            )
        else:
            given.append(_Given("namesrvAddr", environ["NAMESRV_ADDR"], "environment NAMESRV_ADDR"))
    for variable in sorted(environ):
        if variable == own and environ[own] and embeds:
            warnings.append(f"environment {own} is not read: --namesrv-port starts a name server of its own")
        elif variable in by_variable and environ[variable]:
            key = by_variable[variable]
            first = next(name for name in key.variables if environ.get(name))
            if variable == first:
                given.append(_Given(key.name, environ[variable], f"environment {variable}"))
            elif environ[variable] != environ[first]:
                mistakes.append(f"environment: {first} and {variable} are both {key.name}, and they differ")
        elif variable.startswith("ROPEWALK_") and variable not in by_variable:
            # Not a mistake: container platforms invent variables of this form for a service of that name.
            near = difflib.get_close_matches(variable, by_variable, n=1, cutoff=0.85)
            if near:
                warnings.append(f"environment {variable} is not read; was {near[0]} meant?")
    return given


def _from_settings(settings: Sequence[str], mistakes: list[str]) -> list[_Given]:
    given = []
    for word in settings:
        name, separator, text = word.partition("=")
        if separator and name.strip():
            given.append(_Given(name.strip(), text, "--set"))
        else:
            mistakes.append(f"--set {word}: write it as key=value")
    return given


def nearest_key(name: str) -> str:
    """Return the end of a sentence about an unknown key: the nearest one that exists, or nothing."""
    by_lower = {known.lower(): known for known in KEYS}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; the nearest one is {by_lower[near[0]]}" if near else ""


# --- one value -----------------------------------------------------------------------------------------


def _convert(key: Key, text: str) -> Any:
    """The typed value; raises ValueError that says what is allowed."""
    match key.kind:
        case Kind.BOOL:
            if text.lower() not in ("true", "false"):
                raise ValueError("must be true or false")
            return text.lower() == "true"
        case Kind.INT | Kind.LONG:
            bounds = (INT_MIN, INT_MAX) if key.kind is Kind.INT else (LONG_MIN, LONG_MAX)
            low, high = max(key.low, bounds[0]), min(key.high, bounds[1])
            if not re.fullmatch(r"[+-]?[0-9]{1,20}", text) or not low <= int(text) <= high:
                raise ValueError(f"must be a whole number from {low} to {high}")
            return int(text)
        case Kind.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise ValueError("must be a number") from None
        case Kind.TEXT:
            if any(ord(char) < 0x20 for char in text):
                raise ValueError("must not contain control characters")
            if key.choices and text not in key.choices:
                raise ValueError(f"must be one of {', '.join(key.choices)}")
            reader = _READERS.get(key.name)
            return reader(text) if reader else text


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            "must be 1 to 127 letters, digits or any of _ - . % | and begin with a letter, digit or _"
        )
    return text


def _topic(text: str) -> str:
    if not _TOPIC.fullmatch(text):
        raise ValueError("must be a topic name: 1 to 127 letters, digits or any of _ - % |")
    return text


def _host(text: str) -> str:
    # Clients cut "host:port" at its one colon, so an address that has colons cannot be advertised.
    if not _HOST.fullmatch(text):
        raise ValueError("must be an IPv4 address or a host name")
    return text


def _bind(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return _host(text)


def _servers(text: str) -> tuple[str, ...]:
    servers = tuple(part.strip() for part in text.split(";") if part.strip())
    for server in servers:
        host, _, port = server.rpartition(":")
        if not _HOST.fullmatch(host) or not port.isdecimal() or not 1 <= int(port[:6]) <= 65535:
            raise ValueError("must be host:port, several separated by ';'")
    if not servers:
        raise ValueError("must be host:port, several separated by ';'")
    return tuple(dict.fromkeys(servers))


def _server(text: str) -> str:
    servers = _servers(text)
    if len(servers) != 1:
        raise ValueError("must be one host:port")
    return servers[0]


def _delays(text: str) -> tuple[int, ...]:
    matches = [_DELAY.fullmatch(word) for word in text.split()]
    levels = tuple(int(m[1]) * _DELAY_UNIT_MS[m[2]] for m in matches if m)
    if len(levels) != len(matches) or not 1 <= len(levels) <= 1_000:
        raise ValueError("must be delays such as '1s 5s 10m 2h', units s, m, h or d")
    return levels


def _directory(text: str) -> Path:
    if "," in text:
        raise ValueError(SEVERAL_DIRECTORIES)
    return Path(text).expanduser()


def _labels(text: str) -> str:
    for pair in filter(None, text.split(",")):
        if not _LABEL.fullmatch(pair.partition(":")[0]) or not pair.partition(":")[2]:
            raise ValueError("must be name:value, several separated by ',', a name of letters, digits and _")
    return text


def _members(text: str) -> str:
    for part in text.split(";"):
        dledger.is_member_id(part)
    return text


def _hours(text: str) -> str:
    delete_hours(text)
    return text


def umask_text(text: str) -> str:
    """Return the octal digits of a umask; raise ValueError unless they are ones that leave the owner its rights."""
    if not re.fullmatch(r"0?[0-7]{3}", text) or int(text, 8) & 0o700:
        raise ValueError("must be an octal number such as 077 (owner only) or 027 (the group may read)")
    return text


_READERS: Mapping[str, Callable[[str], Any]] = {
    "brokerClusterName": _name,
    "brokerName": _name,
    "brokerIP1": _host,
    "brokerIP2": _host,
    "bindAddress": _bind,
    "namesrvAddr": _servers,
    "haMasterAddress": _server,
    "ropewalkMasterAddress": _server,
    "storePathRootDir": lambda text: Path(text).expanduser(),
    "storePathCommitLog": _directory,
    "messageDelayLevel": _delays,
    "deleteWhen": _hours,
    "metricsPromExporterHost": _bind,
    "metricsLabel": _labels,
    "logFile": lambda text: Path(text).expanduser(),
    "msgTraceTopicName": _topic,
    "dLegerGroup": _name,
    "dLegerPeers": dledger.read_peers,
    "dLegerSelfId": dledger.is_member_id,
    "preferredLeaderId": _members,
    "storePathDLedgerCommitLog": _directory,
    "raftElectionMs": dledger.election_bounds,
    "ropewalkKvRegions": dledger.region_cuts,
    "ropewalkUmask": umask_text,
    "ropewalkAddressAliases": _servers,
}


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ";".join(value)
        case _:
            return str(value)


def _mark(key: Key) -> Mark:
    """Return the effect of a key's value in a broker that starts: what is refused would have stopped it."""
    return Mark.HONOURED if key.mark is Mark.REFUSED else key.mark


def _shown(key: Key, text: str) -> str:
    return "(hidden)" if text and key.kind is Kind.TEXT and _HIDDEN.search(key.name) else text


# --- all values together -------------------------------------------------------------------------------


def _refusals(origins: Mapping[str, str], texts: Mapping[str, str]) -> list[str]:
    found = []
    for name, origin in origins.items():
        key, text = KEYS[name], texts[name]
        wanted = text.lower() if key.kind is Kind.BOOL else text
        reason = key.refused.get(wanted) or key.refused.get(ANY)
        if reason:
            found.append(f"{origin}: {name} = {text} is refused: {reason}")
    return found


def _derive(
    values: dict[str, Any],
    without_file: bool,
    home: Path,
    host_name: Callable[[], str],
    local_ip: Callable[[], str | None],
    warnings: list[str],
) -> None:
    """Fill in the defaults that depend on other values, and round what RocketMQ rounds."""
    if "brokerName" not in values:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", host_name())[:127].lstrip(".-")
        values["brokerName"] = "broker-a" if without_file or not plain else plain
    values.setdefault("bindAddress", LOOPBACK if without_file else "0.0.0.0")
    if "brokerIP1" not in values:
        bind = values["bindAddress"]
        if bind not in ("0.0.0.0", "::"):
            values["brokerIP1"] = bind
        else:
            found = local_ip()
            values["brokerIP1"] = found or LOOPBACK
            if not found:
                warnings.append(f"brokerIP1 is not set and not found; clients are told to use {LOOPBACK}")
    values.setdefault("brokerIP2", values["brokerIP1"])
    values.setdefault("namesrvAddr", ())
    values.setdefault("haMasterAddress", "")
    values.setdefault("ropewalkMasterAddress", "")
    values.setdefault("ropewalkSecret", "")
    values.setdefault("ropewalkSecretAlso", "")
    values.setdefault("ropewalkAddressAliases", ())
    values.setdefault("inSyncReplicas", 2 if values["brokerRole"] == "SYNC_MASTER" else 1)
    port = values["listenPort"]
    values.setdefault("metricsPromExporterHost", values["bindAddress"])
    values.setdefault("metricsPromExporterPort", METRICS_PORT if port else 0)
    values.setdefault("metricsLabel", "")
    values.setdefault("logFile", None)
    if values.get("haListenPort", 0) == 0:
        values["haListenPort"] = port + 1 if port else 0
    if "storePathRootDir" not in values:
        here = Path("ropewalk-data") / values["brokerName"]
        values["storePathRootDir"] = here if without_file else home / "store"
    values.setdefault("storePathCommitLog", values["storePathRootDir"] / "commitlog")

    entries = -(-values["mappedFileSizeConsumeQueue"] // CONSUME_QUEUE_ENTRY_SIZE)
    values["mappedFileSizeConsumeQueue"] = entries * CONSUME_QUEUE_ENTRY_SIZE
    for name, (low, high) in DISK_RATIOS.items():
        values[name] = min(max(values[name], low), high)
    low, high = REGISTER_PERIOD_MS
    period = values["registerNameServerPeriod"]
    if not low <= period <= high:
        values["registerNameServerPeriod"] = min(max(period, low), high)
        warnings.append(
            f"registerNameServerPeriod = {period} is moved to {values['registerNameServerPeriod']}"
        )
    dledger.derive(values)


def _check_replication(
    values: dict[str, Any], origins: Mapping[str, str], mistakes: list[str], warnings: list[str]
) -> None:
    role, copies, least = values["brokerRole"], values["inSyncReplicas"], values["minInSyncReplicas"]
    if role == "SLAVE":
        if values["brokerId"] == 0:
            mistakes.append(
                "brokerRole = SLAVE needs a brokerId of its own, 1 or higher: 0 is every master's"
            )
        if not values["namesrvAddr"] and not values["haMasterAddress"]:
            mistakes.append(
                "brokerRole = SLAVE needs to know its master: give the group's name server (namesrvAddr), or the "
                "master's HA address (haMasterAddress)"
            )
    elif role == "SYNC_MASTER":
        if copies == 1:
            warnings.append(
                "inSyncReplicas = 1: a SYNC_MASTER that waits for no slave acknowledges like an ASYNC_MASTER"
            )
    elif copies > 1 or least > 1:
        warnings.append("inSyncReplicas and minInSyncReplicas bind a SYNC_MASTER only")
    if values["haHousekeepingInterval"] <= values["haSendHeartbeatInterval"]:
        mistakes.append(
            f"haHousekeepingInterval = {values['haHousekeepingInterval']} must be longer than haSendHeartbeatInterval "
            f"= {values['haSendHeartbeatInterval']}: peers would be hung up on between two heartbeats"
        )


def _check_together(
    values: dict[str, Any], origins: Mapping[str, str], mistakes: list[str], warnings: list[str]
) -> None:
    """Judge what no value can tell alone."""
    if values["brokerRole"] != "SLAVE" and values["brokerId"] != 0:
        # RocketMQ does the same, silently: many copied files leave a slave's id in a master's.
        warnings.append(f"brokerId = {values['brokerId']} is taken as 0, the id of every master")
        values["brokerId"] = 0
    bind = values["bindAddress"]
    if ":" in bind and bind != "::" and "brokerIP1" not in origins:
        mistakes.append(
            f"bindAddress = {bind}: clients cannot be told an IPv6 address; set brokerIP1 to a host name that stands "
            "for it"
        )
    if not values["enableDLegerCommitLog"]:
        _check_replication(values, origins, mistakes, warnings)
    if values["ropewalkSecretAlso"] and not values["ropewalkSecret"]:
        mistakes.append(
            "ropewalkSecretAlso needs ropewalkSecret: it is the second secret of a group that has one"
        )
    dledger.check(values, origins, mistakes, warnings)
    port = values["listenPort"]
    if port in (1, 2):
        mistakes.append(f"listenPort = {port}: the port two below it must exist too")
    elif port:
        uses = {"listenPort": port, "listenPort - 2": port - 2}
        uses |= dledger.ports(values) or {"haListenPort": values["haListenPort"]}
        if not values["namesrvAddr"]:
            uses["namesrvPort"] = values["namesrvPort"]
        if values["metricsExporterType"] != "DISABLE":
            uses["metricsPromExporterPort"] = values["metricsPromExporterPort"]
        for name, other in uses.items():
            first = next(n for n, p in uses.items() if p == other)
            if other and first != name:
                mistakes.append(f"{first} and {name} are the same port {other}")
    segment = values["mappedFileSizeCommitLog"]
    if "maxMessageSize" in origins and values["maxMessageSize"] >= segment:
        warnings.append(
            f"maxMessageSize = {values['maxMessageSize']} does not fit into a segment of {segment} bytes;"
            " larger messages will be refused"
        )
