"""Start the load as a process of its own, and hear its one answer.

In the caller's process the load would share an interpreter lock with whatever the caller does, and its
memory and CPU could not be told from the caller's. The child gets its spec on standard input and answers
on standard output; its standard error is ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tools.bench.link import LoadFailed
from tools.bench.spec import Outcome, Spec

_GRACE_S = 30.0


def run_load(spec: Spec) -> Outcome:
    """Carry out one load. Blocks for warm-up, duration and what it takes to answer the last request.

    Raises `LoadFailed` only when the load process itself died; everything a server does wrong is told by
    the outcome.
    """
    # The rooms may lie in a checkout or inside the installed package; the child finds them where we did.
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    child = subprocess.Popen(
        [sys.executable, "-m", "tools.bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    limit_s = spec.warm_up_s + spec.duration_s + spec.reply_timeout_s + _GRACE_S
    try:
        answer, _ = child.communicate(msgspec.json.encode(spec), limit_s)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"the load process did not end within {limit_s:g} s") from None
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode != 0:
        raise LoadFailed(f"the load process ended with status {child.returncode}")
    return msgspec.json.decode(answer, type=Outcome)
