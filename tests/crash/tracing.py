"""A broker under strace and concurrent load with SYNC_FLUSH, and the verdict on its trace."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.campaign import MIB
from tests.crash.load import Ledger, Producer
from tests.crash.server import Place, Server
from tests.crash.trace import STRACE_OPTIONS, Verdict, judge_file

SEGMENT_SIZE = MIB
_TRACER_TIMEOUT_S = 30.0
_LAST_LINE = re.compile(rb"\+\+\+ (exited|killed)")


def traced_load(
    strace: str, root: Path, seed: int, command: Sequence[str], *, requests: int
) -> tuple[Verdict, Ledger]:
    """Produce on one connection with one request in flight, and on three with many, then judge every reply."""
    trace = root / "trace.txt"
    place = Place(
        root,
        [strace, *STRACE_OPTIONS, "-o", str(trace), *command],
        {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": SEGMENT_SIZE},
    )
    ledger = Ledger()
    with Server(place) as server:
        producers = [
            Producer(
                server.address,
                ledger,
                f"T{number}",
                ["traced-0", "traced-1"],
                seed + number,
                window=window,
                limit=requests,
                no_wait_every=7,
            )
            for number, window in enumerate((1, 4, 16, 16))
        ]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join(60)
            assert not producer.is_alive(), f"{producer.name} hangs"
        assert server.terminate() == 0, place.errors()
    wait_for_tracer(trace, server.process.pid)
    assert not ledger.troubles, ledger.troubles
    return judge_file(trace, SEGMENT_SIZE), ledger


def wait_for_tracer(trace: Path, pid: int) -> None:
    """strace is nobody's child now; the last line of its file says that it has seen everything."""
    until = time.monotonic() + _TRACER_TIMEOUT_S
    while time.monotonic() < until:
        with trace.open("rb") as file:
            file.seek(max(0, trace.stat().st_size - 400))
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        if last.startswith(str(pid).encode()) and _LAST_LINE.search(last):
            return
        time.sleep(0.05)
    raise AssertionError(f"strace has not finished {trace}")
