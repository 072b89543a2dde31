"""`KvReads`: reads of a key-value client, region by region. They may go to any member.

A read sees every write that was answered before it began. A member that cannot serve it is followed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ropewalk.client.core.messages import command_of
from ropewalk.client.core.steps import Steps, ask
from ropewalk.client.kv.asking import RegionRequests, decoded
from ropewalk.client.kv.operations import Text, as_bytes, checked_key
from ropewalk.client.kv.routes import Route
from ropewalk.client.kv.trial import Trial
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import Rejected, RemoteProtocolError, RopewalkError, error_for
from ropewalk.format.headers import KvHeader
from ropewalk.format.kv.commands import Status, decode_found
from ropewalk.format.kv.items import encode_values

__all__ = ["KvReads"]

_PAGE: Final = 1000


def _check_count(values: Sequence[bytes | None], count: int) -> None:
    """Raise `RemoteProtocolError` for an answer with another number of values than was asked for."""
    if len(values) != count:
        raise RemoteProtocolError(f"the key-value store answered {len(values)} values instead of {count}")


def _page_untrusted(values: Sequence[bytes | None], begin: bytes, size: int) -> list[tuple[bytes, bytes]]:
    """Return keys and values in an answer to a scan that began at `begin`. Raises `RemoteProtocolError`.

    Keys that do not rise would have the scan read the same page for ever.
    """
    page: list[tuple[bytes, bytes]] = []
    least = begin
    for key, value in zip(values[::2], values[1::2], strict=False):
        if key is None or value is None or key < least:
            raise RemoteProtocolError("the key-value store answered a scan with keys that were not asked for")
        page.append((key, value))
        least = key + b"\0"
    if len(values) % 2 or len(page) > size:
        raise RemoteProtocolError(
            f"the key-value store answered {len(values)} values to a scan of {size} keys"
        )
    return page


class KvReads(RegionRequests):
    """Reads of one key, of several, and of a range."""

    def get(self, key: Text, *, unsafe: bool = False) -> Steps[bytes | None]:
        """Return the value of a key, the newest there is; None if it has none.

        unsafe: read what a member has, however old, without asking the leader.
        """
        name = checked_key(key)
        _route, values = yield from self._read(
            RequestCode.ROPEWALK_KV_GET, name, lambda route: [name], unsafe=unsafe
        )
        _check_count(values, 1)
        return values[0]

    def multi_get(self, keys: Iterable[Text], *, unsafe: bool = False) -> Steps[dict[Text, bytes | None]]:
        """Return the values of keys; None for those that have none.

        Those of one region are as they were together at one moment.
        """
        named = list(keys)
        wanted = list(dict.fromkeys(checked_key(each) for each in named))
        found: dict[bytes, bytes | None] = {}
        trial = Trial(self._clock, self._whole_s)
        while missing := [key for key in wanted if key not in found]:

            def those_of(route: Route, missing: list[bytes] = missing) -> list[bytes]:
                return [key for key in missing if route.has(key)]

            code = RequestCode.ROPEWALK_KV_MULTI_GET
            route, values = yield from self._read(code, missing[0], those_of, unsafe=unsafe, trial=trial)
            those = those_of(route)
            _check_count(values, len(those))
            found.update(zip(those, values, strict=True))
        return {each: found[checked_key(each)] for each in named}

    def scan(
        self, start: Text = b"", end: Text = b"", *, limit: int | None = None, unsafe: bool = False
    ) -> Steps[list[tuple[bytes, bytes]]]:
        """Return keys and values from `start` to before `end`, in order; an empty end is behind every key.

        Up to a thousand pairs of one region are of one moment; what is longer is read in pages, each newer than the one
        before.
        """
        found: list[tuple[bytes, bytes]] = []
        begin, last = as_bytes("start", start), as_bytes("end", end)
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(limit - len(found), _PAGE)

            def part(route: Route, begin: bytes = begin) -> list[bytes]:
                return [begin, route.clip(last)]

            code = RequestCode.ROPEWALK_KV_SCAN
            route, values = yield from self._read(code, begin, part, unsafe=unsafe, limit=size)
            page = _page_untrusted(values, begin, size)
            found += page
            if page:
                begin = page[-1][0] + b"\0"
            elif route.reaches(last):
                break
            else:
                begin = route.end
        return found

    def _read(
        self,
        code: int,
        key: bytes,
        make: Callable[[Route], list[bytes]],
        *,
        unsafe: bool,
        limit: int = _PAGE,
        trial: Trial | None = None,
    ) -> Steps[tuple[Route, list[bytes | None]]]:
        """Read from the region that has `key` what `make` says of that region; return the region, too."""
        trial = trial or Trial(self._clock, self._whole_s)
        while True:
            with trial.attempt():
                routes = yield from self._known_routes()
                route = routes.of(key)
                address = routes.members[self._reader % len(routes.members)]
                header = KvHeader(route.id, route.epoch, unsafe, limit)
                body = encode_values(make(route))
                try:
                    answer = yield from ask(address, command_of(code, header, body), trial.seconds)
                    if answer.code != ResponseCode.SUCCESS:
                        raise error_for(answer.code, answer.remark)
                except RopewalkError:
                    self._reader += 1
                    self._failures += 1
                    raise
                status, found = decoded(decode_found, answer)
                if status is Status.WRONG_EPOCH:
                    moved = self._moved(answer, routes, route.id, route.epoch)
                    if not moved.is_final:  # that member has not applied what this client knows of
                        self._reader += 1
                        self._failures += 1
                    raise moved
                self._failures = 0
                if status is Status.OK:
                    return route, found
                self._refuse(status)
            yield from trial.pause()

    # -- reads that were asked for apart -----------------------------------------------------------------

    def read_each(self, keys: Sequence[bytes], *, unsafe: bool = False) -> Steps[list[bytes | None]]:
        """Return the values of keys that were asked for apart, in one request to each region if that will do."""
        try:
            values = yield from self.multi_get(dict.fromkeys(keys), unsafe=unsafe)
        except Rejected:  # together they are too large for an answer
            values = {}
            for key in dict.fromkeys(keys):
                values[key] = yield from self.get(key, unsafe=unsafe)
        return [values[key] for key in keys]

    def apart(self, keys: Sequence[bytes]) -> list[list[int]]:
        """Return the places of keys, region by region as far as those are known: requests for each may go at once."""
        if self._routes is None:
            return [list(range(len(keys)))]
        groups: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            groups.setdefault(self._routes.of(key).id, []).append(at)
        return list(groups.values())
