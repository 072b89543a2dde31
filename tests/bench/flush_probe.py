"""How long this disk takes to make 4 KiB durable: the floor under every acknowledgement that waits for it.

Taken before and after a comparison, it tells a slow disk from a slow broker, and a disk that changed its
mind in between from either.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

PAGE = b"r" * 4096
COUNT = 50
FILE_SIZE = 1 << 20


def flush_ms(folder: Path, count: int = COUNT) -> float:
    """The median of `count` fdatasyncs, in milliseconds, each after one page of an allocated file changed."""
    taken = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(FILE_SIZE))
        os.fsync(file.fileno())
        for index in range(count):
            os.pwrite(file.fileno(), PAGE, index * len(PAGE) % FILE_SIZE)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2] * 1000


if __name__ == "__main__":
    print(f"{flush_ms(Path.cwd()):.2f} ms")
