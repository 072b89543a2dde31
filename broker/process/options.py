"""Options from the command line to a server process: plain values, already parsed, not yet judged.

Whether a key exists, a file can be read or a port is free is for the process to find out; the
command line only knows how things are spelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """`ropewalk broker`. Precedence of values: flag, environment, file, default."""

    config_file: Path | None = None
    name_server: str | None = None
    """`a:9876;b:9876`, or None: then an embedded name server is started unless the file names one."""
    settings: tuple[str, ...] = ()
    """Each `key=value`, as given with `--set`; the last one of a key wins."""
    ephemeral: bool = False
    namesrv_port: int | None = None
    """Port of the embedded name server; 0 means any free one, None the default."""
    take_place: bool = False
    """Whether to register although another broker has this one's place."""
    print_config: bool = False
    json: bool = False
    log_level: str | None = None
    """A log level of `broker.process.logs.LEVELS`; None leaves level, form and file to the configuration."""
    log_format: str | None = None
    log_file: Path | None = None


@dataclass(frozen=True, slots=True)
class NamesrvOptions:
    """`ropewalk namesrv`."""

    port: int = 9876
    """0 means any free one, printed in the ready line."""
    host: str = "127.0.0.1"
    json: bool = False
    log_level: str = "info"
    log_format: str = "auto"
    log_file: Path | None = None
