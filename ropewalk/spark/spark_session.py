"""Start a Spark session that works where Ropewalk was installed by pip: Java found, workers on this interpreter.

    from ropewalk.spark import session

    with session("local[2]") as spark:
        spark.read.format("ropewalk")...

Spark starts its Python workers with `python3` from the PATH unless told otherwise, which is another interpreter in
every virtual environment. `prepare` tells it; what the caller's environment or configuration says goes before.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ropewalk.errors import RopewalkError
from ropewalk.spark.jvm import ensure_java
from ropewalk.spark.quiet import has_own_log
from ropewalk.spark.registration import register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["SparkMissing", "builder", "local_session", "prepare", "session", "start_all"]

PYSPARK_MIN: Final = (4, 2)

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    # Batches in front of our writers: bytes bound them before rows do.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_SOCKET_DIRECTORY_MAX: Final = 50
"""A socket's path has room for about a hundred bytes, and its name takes 42."""


class SparkMissing(RopewalkError):
    """An environment without PySpark, or with one that is too old."""


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment variables that a session needs. Raises SparkMissing and JavaMissing.

    A PYSPARK_PYTHON that is set stays, because on a cluster it names the interpreter of other machines.
    """
    try:
        import pyspark
    except ImportError as exc:
        raise SparkMissing(
            f"Spark is not installed ({exc}): pip install -e '.[spark]' in a checkout"
        ) from exc
    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < PYSPARK_MIN:
        raise SparkMissing(
            f"PySpark {pyspark.__version__} is too old: Ropewalk's source needs {'.'.join(map(str, PYSPARK_MIN))}"
        )
    ensure_java(environment)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def builder(master: str | None = None, **conf: str) -> SparkSession.Builder:
    """Return a session builder with the defaults set; `conf` and later `.config` calls go before them.

    Keyword names take `__` for each dot (`spark__ui__enabled="true"`); a mapping goes in as `**{...}` with dots.
    Without a master, Spark's own configuration decides, and `local[*]` if it says nothing.
    """
    prepare()
    from pyspark.sql import SparkSession

    given = {name.replace("__", "."): value for name, value in conf.items()}
    chosen = master or given.get("spark.master")
    # Under spark-submit the running JVM knows its master, and it is not ours to say.
    if chosen is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        chosen = "local[*]"
    made = SparkSession.builder.appName(given.get("spark.app.name", "ropewalk"))
    settings = dict(_DEFAULTS)
    if chosen is not None and chosen.startswith("local"):
        settings |= _LOCAL_DEFAULTS
        if _SOCKETS not in given:
            settings |= _local_sockets()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings |= given
    # A log with a configuration of its own knows its levels; and Spark says aloud that it sets one.
    if has_own_log(given) and "spark.log.level" not in given:
        del settings["spark.log.level"]
    for name, value in settings.items():
        made = made.config(name, value)
    return made if chosen is None else made.master(chosen)


@lru_cache(maxsize=1)
def _local_sockets() -> Mapping[str, str]:
    """Have the JVM and its Python workers talk over Unix sockets: a quarter more rows a second than over TCP.

    In a directory of this process's own, because Spark leaves the sockets of workers behind that did not end well.
    """
    if os.name != "posix":
        return {}
    directory = tempfile.mkdtemp(prefix="ropewalk-")
    if len(directory) > _SOCKET_DIRECTORY_MAX:
        os.rmdir(directory)
        return {}
    atexit.register(_remove, directory, os.getpid())
    return {_SOCKETS: "true", "spark.python.unix.domain.socket.dir": directory}


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:  # and not a child that was forked later
        shutil.rmtree(directory, ignore_errors=True)


def session(master: str | None = None, **conf: str) -> SparkSession:
    """Start, or get, a session that knows `format("ropewalk")`."""
    spark = builder(master, **conf).getOrCreate()
    register_source(spark)
    return spark


def local_session(cores: int = 2, *, heap: str = "1g", **conf: str) -> SparkSession:
    """Start a session on this machine alone. Failed tasks are tried again, as on a cluster."""
    return session(f"local[{cores},4]", **{"spark.driver.memory": heap, **conf})


def start_all(writers: Iterable[DataStreamWriter], *, patience_s: float = 60.0) -> list[StreamingQuery]:
    """Start several streaming queries, each when the one before has made its first progress.

    Queries over Python sources that start in the same moment can fail each other: Spark changes an environment that
    they share while another of them is being serialised. If one of them fails to start, the others are stopped.
    """
    started: list[StreamingQuery] = []
    try:
        for writer in writers:
            query = writer.start()
            started.append(query)
            deadline = time.monotonic() + patience_s
            while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
                time.sleep(0.05)
            failure = query.exception()
            if failure is not None:
                raise failure
    except BaseException:
        for query in started:
            query.stop()
        raise
    return started
