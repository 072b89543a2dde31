"""Run a command while a lock is held: renew the lease in time, and end the command when the lock is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Final

from ropewalk.client.blocking.kv import Kv
from ropewalk.client.kv.results import KvLock
from ropewalk.errors import RopewalkError
from tools.common.output import UsageError, note

TOKEN_VARIABLE: Final = "ROPEWALK_LOCK_TOKEN"
LOST: Final = 75  # EX_TEMPFAIL
_GRACE_S: Final = 5.0


def run_held(kv: Kv, lock: KvLock, words: Sequence[str]) -> int:
    """Run a command, with the fencing token in its environment; return its exit code, or `LOST`."""
    environment = os.environ | {TOKEN_VARIABLE: str(lock.token)}
    try:
        child = subprocess.Popen(words, env=environment)
    except OSError as exc:
        raise UsageError(f"cannot run {words[0]}: {exc.strerror}") from exc
    while True:
        try:
            return _exit_code(child.wait(lock.lease / 3))
        except subprocess.TimeoutExpired:
            if not _is_held(kv, lock):
                break
        except KeyboardInterrupt:  # the child got it from the terminal, too
            return _exit_code(child.wait())
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    note(f"the lock was lost, and {words[0]} was ended")
    return LOST


def _is_held(kv: Kv, lock: KvLock) -> bool:
    try:
        return kv.renew_lock(lock)
    except RopewalkError as exc:
        note(f"the lock could not be renewed: {exc}")
        return False


def _exit_code(status: int) -> int:
    return status if status >= 0 else 128 - status
