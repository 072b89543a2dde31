"""The output of a starting broker: its configuration on request, and the ready line."""

from __future__ import annotations

import json

import ropewalk
from broker.process.ports import Ports
from broker.replication.group_member import GroupMember
from broker.settings.config import BrokerConfig
from broker.settings.keys import Mark
from ropewalk.client.core.addresses import Address


def ready_line(
    config: BrokerConfig,
    group: GroupMember,
    ports: Ports,
    took_s: float,
    silent: tuple[str, ...],
    *,
    as_json: bool,
) -> str:
    """Return the ready line: the addresses of a broker, and the meaning of its SEND_OK.

    `silent` are the name servers that do not answer.
    """
    words = group.ready_words()
    bound = config.bind_address
    host = config.broker_ip1 if bound in ("0.0.0.0", "::") else bound
    own = None if ports.namesrv is None else str(Address(host, ports.namesrv))
    namesrv = own or ";".join(config.namesrv_addr)
    shown = own or shown_name_servers(config.namesrv_addr, silent)
    ready = {
        "version": ropewalk.__version__,
        "broker": f"{config.broker_ip1}:{ports.broker}",
        "fast": None if ports.fast is None else f"{config.broker_ip1}:{ports.fast}",
        "namesrv": namesrv,
        "namesrvSilent": list(silent),
        "ha": group.ha_address,
        "metrics": None if ports.metrics is None else f"{_shown_host(config)}:{ports.metrics}",
        "dataDir": str(config.store_path_root_dir.absolute()),
        "mode": words.mode,
        "sendOk": words.send_ok,
        "startMs": round(took_s * 1000),
        "brokerId": group.broker_id,
        "epoch": group.epoch,
    }
    if as_json:
        return json.dumps(ready)
    embedded = " (embedded)" if ports.namesrv is not None else ""
    reach = f" (listening on all addresses: {bound})" if bound in ("0.0.0.0", "::") else ""
    return (
        f"ropewalk {ropewalk.__version__} ready: broker {ready['broker']}{reach}, name server {shown}{embedded}, "
        + (f"metrics {ready['metrics']}, " if ready["metrics"] else "")
        + f"data {ready['dataDir']}, {words.mode}"
        + (f" ({words.place})" if words.place else "")
        + ", "
        + (f"SEND_OK means {words.send_ok}" if words.takes_messages else words.send_ok)
    )


def shown_name_servers(name_servers: tuple[str, ...], silent: tuple[str, ...]) -> str:
    """Return name servers as the ready line shows them."""
    return ";".join(
        f"{each} (NOT REACHED: clients that ask it do not find this broker)" if each in silent else each
        for each in name_servers
    )


def _shown_host(config: BrokerConfig) -> str:
    """Where people find what is bound to `metricsPromExporterHost`."""
    host = config.metrics_prom_exporter_host
    return config.broker_ip1 if host in ("0.0.0.0", "::") else host


def print_config(config: BrokerConfig, *, as_json: bool) -> None:
    """Every honoured key and every key that was set: its value, and who gave it."""
    rows = config.describe()
    if as_json:
        print(
            json.dumps(
                [{"key": r.key, "value": r.value, "origin": r.origin, "mark": r.mark.name} for r in rows]
            )
        )
        return
    width = max(len(f"{row.key} = {row.value}") for row in rows)
    for row in rows:
        effect = ", no effect" if row.mark is Mark.NO_EFFECT else ""
        print(f"{row.key} = {row.value}".ljust(min(width, 60)) + f"  # {row.origin}{effect}")
    for warning in config.warnings:
        print(f"# {warning}")
