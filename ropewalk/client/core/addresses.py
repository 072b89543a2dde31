"""Addresses as RocketMQ writes them: `host:port`, lists separated by semicolons.

`a:9876;b:9876` names two name servers of which any one will do. IPv6 hosts stand in brackets
(`[::1]:9876`). Commas and blanks between addresses are accepted too, since people write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ropewalk.errors import RopewalkError

NAME_SERVER_PORT = 9876
PORT_MAX = 65535
DEFAULT_NAME_SERVER = f"127.0.0.1:{NAME_SERVER_PORT}"
NAME_SERVER_VARIABLES = ("ROPEWALK_NAMESRV_ADDR", "NAMESRV_ADDR")
"""Where the environment may say which name servers a client uses, Ropewalk's own first."""


class Address(NamedTuple):
    """The address of a peer."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BadAddress(RopewalkError, ValueError):
    """The text is not an address; the message names the expected form."""


def parse_address(text: str, default_port: int | None = None) -> Address:
    """Read one `host:port`. Raises `BadAddress`; the port may be absent only with a `default_port`."""
    text = text.strip()
    if "://" in text:
        raise BadAddress(f"{text!r} is a URL: write host:port and nothing else")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadAddress(f"{text!r} is not an address: write IPv6 as [host]:port")
        port_text = rest[1:]
    elif text.count(":") > 1:
        host, _, port_text = text.rpartition(":")  # RocketMQ prints IPv6 hosts without brackets
    else:
        host, _, port_text = text.partition(":")
    if not host:
        raise BadAddress(f"{text!r} is not an address: the host is missing (write host:port)")
    if not port_text and default_port is not None:
        return Address(host, default_port)
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) <= PORT_MAX:
        raise BadAddress(f"{text!r} is not an address: write host:port with a port from 1 to {PORT_MAX}")
    return Address(host, int(port_text))


def parse_address_list(text: str, default_port: int | None = NAME_SERVER_PORT) -> tuple[Address, ...]:
    """Read `a:9876;b:9876`. Repeated addresses count once; an empty list is an error."""
    parts = [part for part in re.split(r"[;,\s]+", text) if part]
    if not parts:
        raise BadAddress("the address list is empty: write host:port, or host:port;host:port for several")
    return tuple(dict.fromkeys(parse_address(part, default_port) for part in parts))


def choose_name_servers(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the name servers of a client: those that its program gives, else the environment's, else a local one."""
    if given is not None:
        if not isinstance(given, str):
            raise TypeError(f'name servers are text, as in "host:port;host:port", and not {given!r}')
        return given
    return next(filter(None, map(environ.get, NAME_SERVER_VARIABLES)), DEFAULT_NAME_SERVER)


class AddressRing:
    """A list of equal peers, one of which is the current one.

    Official clients stay with a server that answers and move on, round robin, when it does not.
    """

    def __init__(self, addresses: Sequence[Address], start: int = 0) -> None:
        assert addresses, "a ring of nobody has no current one"
        self._addresses = tuple(addresses)
        self._current = start % len(self._addresses)

    @property
    def current(self) -> Address:
        return self._addresses[self._current]

    def __len__(self) -> int:
        return len(self._addresses)

    def __str__(self) -> str:
        return ";".join(map(str, self._addresses))

    def advance(self) -> Address:
        """Give up the current one; the next takes its place."""
        self._current = (self._current + 1) % len(self._addresses)
        return self.current

    def one_round(self) -> Iterator[Address]:
        """Yield every address once, the current one first; each step makes the next one current."""
        for step in range(len(self._addresses)):
            yield self.current if step == 0 else self.advance()
