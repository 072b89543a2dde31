"""Start the load as a process of its own, and hear its one answer.

In the caller's process the load would share an interpreter lock with whatever the caller does, and its
memory and CPU could not be told from the caller's. The child gets its spec on standard input and answers
on standard output; its standard error is ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

import msgspec

from store.io.helper_process import module_path
from tools.bench.link import LoadFailed
from tools.bench.spec import Outcome, Spec
from tools.common.interrupts import Interrupts

_GRACE_S = 30.0


def run_load(spec: Spec, interrupts: Interrupts | None = None) -> Outcome:
    """Carry out one load. Blocks for warm-up, duration and what it takes to answer the last request.

    Raises `LoadFailed` only when the load process itself died; everything a server does wrong is told by
    the outcome. With `interrupts` a Ctrl-C ends the load early, and the outcome tells what had been counted.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "tools.bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": module_path()},
        process_group=0,  # a Ctrl-C of the terminal is ours alone; the load hears of it from us
    )
    limit_s = spec.warm_up_s + spec.duration_s + spec.reply_timeout_s + _GRACE_S
    stopped = False
    try:
        try:
            with interrupts.while_waiting() if interrupts else nullcontext():
                answer, _ = child.communicate(msgspec.json.encode(spec), limit_s)
        except KeyboardInterrupt:
            if interrupts is None:
                raise
            stopped = True
            child.terminate()
            answer, _ = child.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"the load process did not end within {limit_s:g} s") from None
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if stopped and not answer:
        return Outcome(error="stopped by Ctrl-C before the load began")
    if child.returncode != 0:
        raise LoadFailed(f"the load process ended with status {child.returncode}")
    return msgspec.json.decode(answer, type=Outcome)
