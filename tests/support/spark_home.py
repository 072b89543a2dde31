"""A home of Spark's in which PySpark lies unpacked: its Python processes start with half of the processor's time.

Spark puts `python/lib/pyspark.zip` in front of the path of each of its Python processes. A zip file has no bytecode:
each process compiled what it imported, and read the whole directory of the zip file eighteen times for its first task.
Here directories of these names link to the packages as they were installed, and all else to the home that came with
PySpark.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
from functools import lru_cache
from pathlib import Path

from tests.bench.peers.rocketmq.artifacts import cache_dir

__all__ = ["unpacked_spark", "use_unpacked_spark"]


def use_unpacked_spark() -> None:
    """Have Spark started from such a home, in this process and those that it starts, unless another one is given."""
    home = unpacked_spark()
    if home is not None:
        os.environ.setdefault("SPARK_HOME", str(home))


@lru_cache(maxsize=1)
def unpacked_spark() -> Path | None:
    """Return such a home, which is made if it is not there; None without PySpark."""
    spark, py4j = _folder_of("pyspark"), _folder_of("py4j")
    return None if spark is None or py4j is None else _made(spark, py4j)


def _folder_of(package: str) -> Path | None:
    """Return where a package is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _made(spark: Path, py4j: Path) -> Path:
    """Return the home of these packages. A rename publishes it, since other processes may make it meanwhile."""
    zips = sorted(path.name for path in (spark / "python" / "lib").glob("*.zip"))
    version = (spark / "version.py").read_text(encoding="utf-8")
    digest = hashlib.sha256("\n".join([str(spark), str(py4j), *zips, version]).encode()).hexdigest()[:16]
    home = cache_dir() / f"spark-home-{digest}"
    if not home.exists():
        partial = home.with_suffix(f".{os.getpid()}")
        partial.mkdir()
        for entry in spark.iterdir():
            if entry.name != "python":
                (partial / entry.name).symlink_to(entry)
        for name in zips:
            package = spark if name.startswith("pyspark") else py4j
            folder = partial / "python" / "lib" / name
            folder.mkdir(parents=True)
            (folder / package.name).symlink_to(package)
        with contextlib.suppress(OSError):  # another process was first
            partial.rename(home)
        shutil.rmtree(partial, ignore_errors=True)
    return home
