"""Helper processes of a broker's store: their start, and the guarantee that none outlives its broker.

The kernel kills such a process when the thread that started it ends, or with the broker as a whole. Each that
writes holds a lock while it lives, so that who comes next can wait for the moment between the death of one and that of
the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import ropewalk
import store
from store.io.disk import Disk, StoreLocked

_PR_SET_PDEATHSIG = 1


def start_helper(module: str, order: str, bufsize: int = 0) -> subprocess.Popen[bytes]:
    """Run a module, its input and output connected, and buffered as `Popen` has it; `helper_order` tells it the order.

    Raises OSError.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, order, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=bufsize,
        process_group=0,  # a Ctrl-C at the terminal is for the broker; why no session: see `set_idle_priority`
        env={**os.environ, "PYTHONPATH": module_path()},
    )


def module_path() -> str:
    """Return the PYTHONPATH by which a child process finds the packages of this one, in a checkout or installed."""
    folders = [str(Path(str(package.__file__)).resolve().parent.parent) for package in (store, ropewalk)]
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys((*folders, *given)))


def helper_order() -> str:
    """Return the order, in the helper process, and bind its life to the broker's: it ends with it, and not before."""
    # The broker alone decides when this ends; a terminal and a service manager signal the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Whoever opens the store next, RocketMQ perhaps, must not meet a writer that outlived its broker.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    order, broker = sys.argv[1:]
    if os.getppid() != int(broker):
        sys.exit(0)  # it died before this could be asked for
    return order


def unread(pipe: int) -> int:
    """Return how many bytes written to a helper are still unread. Raises OSError."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def answers(pipe: int, timeout_s: float) -> bool:
    """Tell whether a helper writes something in time, and does not just end; consumes its first byte."""
    poll = select.poll()  # `select.select` knows no descriptor beyond 1023
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000) and os.read(pipe, 1))


def has_order(or_readable: int, *, wait: bool) -> bool:
    """Tell, in the helper process, whether an order or the end of input can be read; may wait for either descriptor."""
    ready, _, _ = select.select([0, or_readable], [], [], None if wait else 0)
    return 0 in ready


def acquire_helper_lock(disk: Disk, path: Path) -> int:
    """Acquire a helper's lock, waiting for a helper of a dead broker, which ends by itself. Raises `StoreLocked`."""
    until = time.monotonic() + 60
    while True:
        try:
            return disk.lock(path)
        except StoreLocked:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def set_idle_priority() -> None:
    """Put this thread into the idle scheduling class for good: Linux lets only the privileged leave it again.

    Where Linux weighs sessions against each other (autogroup), the policies within count for nothing between them: a
    session of its own would weigh as much as that of broker and clients. And a kernel that preempts lazily lets even
    an idle-class thread run on to its next tick (4 ms at 250 Hz) unless it makes a system call: beside two that made
    none, a lone producer under SYNC_MASTER had a quarter of its rate. So the index builder yields before each record.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
