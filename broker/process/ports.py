"""`PortBinder`: the ports of a broker, bound as its configuration says, or refused in words with the way out."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from broker.process.launch import StartFailed, way_out
from broker.remoting.connection import MakeSession
from broker.remoting.shell import Shell
from broker.remoting.sockets import Kind
from broker.settings.config import METRICS_PORTS, BrokerConfig
from broker.settings.dledger import peers_of
from broker.web.server import MetricsServer

__all__ = ["PortBinder", "Ports"]

log = structlog.get_logger("broker.process")


@dataclass(slots=True)
class Ports:
    """The ports that a broker serves; None for those that it does without."""

    broker: int
    fast: int | None
    namesrv: int | None
    ha: int
    metrics: int | None


class PortBinder:
    """The listening sockets of one process."""

    def __init__(self, config: BrokerConfig, shell: Shell) -> None:
        self._config = config
        self._shell = shell

    def bind_broker(self, session: MakeSession, fast_session: MakeSession) -> tuple[int, int | None]:
        """Listen for clients; return the port, and the fast one if it is free."""
        config = self._config
        port = self._listen("listenPort", config.listen_port, session)
        if config.listen_port == 0 or config.listen_port <= 2:
            # Any free port was asked for: the one at P-2 is served if it happens to be free.
            try:
                return port, self._shell.listeners.listen(config.bind_address, port - 2, fast_session)
            except OSError:
                return port, None
        fast = self._listen(
            "the fast port (listenPort - 2)",
            config.listen_port - 2,
            fast_session,
        )
        return port, fast

    def bind_members(self, session: MakeSession) -> int:
        """Listen for other members; return the port."""
        config = self._config
        if config.enable_d_leger_commit_log:
            (own,) = [
                each for each in peers_of(config.d_leger_peers) if each.member == config.d_leger_self_id
            ]
            return self._listen("dLegerPeers", own.port, session, Kind.MEMBER)
        return self._listen("haListenPort", config.ha_listen_port, session, Kind.MEMBER)

    def bind_name_server(self, session: MakeSession) -> int:
        """Listen for clients of the embedded name server; return the port."""
        return self._listen("namesrvPort", self._config.namesrv_port, session, Kind.LOOKUP)

    def bind_metrics(self, server: MetricsServer) -> int:
        """Have the server of the metrics listen; return the port."""
        config = self._config
        host, port = config.metrics_prom_exporter_host, config.metrics_prom_exporter_port
        # Nobody asked for the default port, and another broker of this machine may well have it.
        asked = port == 0 or config.origin("metricsPromExporterPort") != "default"
        try:
            found = server.listen(host, port, tried=1 if asked else METRICS_PORTS)
        except OSError as exc:
            raise StartFailed(
                f"cannot listen on {host}:{port} (metricsPromExporterPort): {exc.strerror}. "
                + way_out(exc, "--set metricsPromExporterPort=0", "--set metricsPromExporterHost=ADDRESS")
                + "; --set metricsExporterType=DISABLE does without metrics"
            ) from exc
        if not asked and found != port:
            log.warning("the metrics port is taken: metrics are at the next free one", taken=port, port=found)
        return found

    def _listen(self, what: str, port: int, make: MakeSession, kind: Kind = Kind.CLIENT) -> int:
        try:
            return self._shell.listeners.listen(self._config.bind_address, port, make, kind)
        except OSError as exc:
            key = what if what in ("namesrvPort", "haListenPort") else "listenPort"
            if what == "dLegerPeers":  # its port is known to the others: no free one will do
                advice = "Stop what uses it, or give this member another port in everybody's dLegerPeers"
            else:
                advice = way_out(exc, f"--set {key}=0", "--set bindAddress=ADDRESS")
            raise StartFailed(
                f"cannot listen on {self._config.bind_address}:{port} ({what}): {exc.strerror}. {advice}"
            ) from exc
