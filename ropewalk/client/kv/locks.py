"""`KvLocks`: locks with leases and fencing tokens, as writes of a key-value client."""

from __future__ import annotations

from ropewalk.client.core.steps import Pause, Steps
from ropewalk.client.kv.operations import Text, checked_key, milliseconds, result_untrusted
from ropewalk.client.kv.results import KvLock
from ropewalk.client.kv.trial import Trial, kv_backoff
from ropewalk.client.kv.writes import SessionWrites
from ropewalk.format.kv.items import AcquireLock, Lease, Operation, ReleaseLock, RenewLock

__all__ = ["KvLocks"]


class KvLocks(SessionWrites):
    """Locks that are taken, renewed and given back."""

    _locks = 0
    """How many locks this client has asked for: each is asked for under an owner of its own."""

    def acquire(self, name: Text, *, lease: float = 10.0, wait: float = 0.0) -> Steps[KvLock | None]:
        """Take a lock for `lease` seconds; None if another owner has it for the next `wait` seconds.

        The lease ends by the store's clock, whether its holder knows or sleeps: only the token, compared by what the
        lock protects, keeps a late one out. Nothing renews it by itself.
        """
        lock_name, until = checked_key(name), self._clock() + wait
        session = yield from self._open_session(lock_name, Trial(self._clock, self._whole_s))
        self._locks += 1
        owner = b"%d:%d" % (session.id, self._locks)
        backoff = kv_backoff()
        while True:
            found = yield from self._lease(AcquireLock(lock_name, owner, milliseconds(lease)))
            if found.granted:
                return KvLock(lock_name, owner, found.token, lease)
            left = until - self._clock()
            if left <= 0:
                return None
            yield Pause(min(left, backoff.next_s(), max(found.left_ms / 1000, 0.001)))

    def renew_lock(self, lock: KvLock) -> Steps[bool]:
        """Have a lock's lease begin anew; False if it was over: the lock is lost, whoever has it now."""
        found = yield from self._lease(RenewLock(lock.name, lock.owner, lock.token, milliseconds(lock.lease)))
        return bool(found.granted)

    def release(self, lock: KvLock) -> Steps[bool]:
        """Give a lock back; False if another owner was granted it meanwhile."""
        found = yield from self._lease(ReleaseLock(lock.name, lock.owner, lock.token))
        return bool(found.granted)

    def _lease(self, operation: Operation) -> Steps[Lease]:
        return result_untrusted(Lease, (yield from self._write(operation)))
