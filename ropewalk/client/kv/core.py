"""`KvCore`: the conversations of a client of the key-value store.

    trial     the attempts of one call, and the pauses between them
    asking    one attempt at a member, and the routes that lead to it
    reads     any member serves them                        locks    leases and tokens
    writes    a write that is sent again is applied once    core     the other writes, and splits

Reads and deletions of ranges are done region by region; a write that is done as a whole has all its keys in one region.
Between two attempts a client pauses, twice as long each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ropewalk.client.core.messages import command_of
from ropewalk.client.core.steps import Steps
from ropewalk.client.kv.locks import KvLocks
from ropewalk.client.kv.operations import (
    Text,
    as_bytes,
    checked_key,
    compare_and_put_of,
    counted,
    delete_of,
    put_if_absent_of,
    put_of,
    result_untrusted,
    sequence_of,
    swapped,
)
from ropewalk.client.kv.reads import KvReads
from ropewalk.client.kv.results import KvLock
from ropewalk.client.kv.routes import Route
from ropewalk.client.kv.trial import Trial
from ropewalk.codes import RequestCode
from ropewalk.format.headers import KvHeader
from ropewalk.format.kv.commands import Status
from ropewalk.format.kv.items import RANGE_KEYS_MAX, Count, Delete, DeleteRange, Operation, Put, encode_values

__all__ = ["KV_TIMEOUT_S", "KvCore"]

KV_TIMEOUT_S: Final = 10.0


class KvCore(KvReads, KvLocks):
    """A client of the key-value store, with a session in each region that it writes to."""

    def put(self, key: Text, value: Text, *, guard: KvLock | None = None) -> Steps[None]:
        """Store a value. Raises `Fenced` if the lock `guard` was granted to another owner, or given back, meanwhile.

        The lock's name and the key have to be in one region, else it raises `Rejected`.
        """
        yield from self._write(put_of(key, value), guard=guard)

    def put_if_absent(self, key: Text, value: Text) -> Steps[bytes | None]:
        """Store a value where there is none; return None then, else the value that is there."""
        (result,) = yield from self._write(put_if_absent_of(key, value))
        return swapped(result).value

    def compare_and_put(self, key: Text, expect: Text | None, value: Text | None) -> Steps[bool]:
        """Store a value if the key has the expected one, and return whether it did; None stands for no value."""
        (result,) = yield from self._write(compare_and_put_of(key, expect, value))
        return bool(swapped(result).done)

    def delete(self, key: Text) -> Steps[bool]:
        """Delete a key, and return whether it was there."""
        return (yield from self._count(delete_of(key))) > 0

    def delete_range(self, start: Text, end: Text) -> Steps[int]:
        """Delete the keys from `start` to before `end`, and return how many; an empty end is behind every key.

        Up to ten thousand keys of one region go at one moment, what is more in turn.
        """
        begin, last = as_bytes("start", start), as_bytes("end", end)
        count = 0
        while True:

            def part(route: Route, begin: bytes = begin) -> tuple[Operation, ...]:
                return (DeleteRange(begin, route.clip(last)),)

            route, results = yield from self._write_at(begin, part)
            deleted = result_untrusted(Count, results).number
            count += deleted
            if deleted >= RANGE_KEYS_MAX:
                continue
            if route.reaches(last):
                return count
            begin = route.end

    def batch(
        self,
        *,
        put: Mapping[Text, Text] | None = None,
        delete: Iterable[Text] = (),
        guard: KvLock | None = None,
    ) -> Steps[None]:
        """Store and delete several keys, all of them or none; `guard` as for `put`.

        Raises `Rejected` if they are not all in one region, and has done nothing then.
        """
        puts = [Put(checked_key(key), as_bytes("value", value)) for key, value in (put or {}).items()]
        yield from self._write(*puts, *(Delete(checked_key(key)) for key in delete), guard=guard)

    def sequence(self, name: Text, count: int = 1) -> Steps[range]:
        """Return the next numbers of a sequence; every number is handed out once."""
        first = yield from self._count(sequence_of(name, count))
        return range(first, first + count)

    def _count(self, operation: Operation) -> Steps[int]:
        (result,) = yield from self._write(operation)
        return counted(result)

    # -- splits ------------------------------------------------------------------------------------------

    def split(self, key: Text) -> Steps[int]:
        """Cut the region that has a key in two at that key, and return the id of the region that begins there.

        Where one begins there already, nothing is changed.
        """
        name = checked_key(key)
        trial = Trial(self._clock, self._whole_s)
        self._routes = None
        while True:
            with trial.attempt():
                routes = yield from self._known_routes()
                route = routes.of(name)
                if route.start == name:
                    return route.id
                header = KvHeader(route.id, route.epoch)
                command = command_of(RequestCode.ROPEWALK_KV_SPLIT, header, encode_values([name]))
                outcome = yield from self._at_leader(routes, route.id, route.epoch, command, trial)
                if outcome.status is Status.OK:
                    self._routes = None
                    return result_untrusted(Count, outcome.results).number
                self._refuse(outcome.status)
            yield from trial.pause()
