"""Options of JVMs that live for seconds: they would spend much of these on code that they will not run often.

Two fifths of what such a JVM of Spark's costs is reading and linking classes. So one of them, which is started for this
alone, writes what it has loaded into an archive under the cache folder, and the others map that (class-data sharing).
A JVM goes without an archive that is not there, or was made by another Java or from other jars.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tests.bench.peers.rocketmq.artifacts import JavaUnavailable, cache_dir, program
from tests.support.spark_home import unpacked_spark

SHORT_LIVED = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Classes of released jars verify. The option is one for diagnosis, and another JVM may not have it.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    # Mapped where it was dumped, an archive of classes needs no pointer changed.
    "-XX:ArchiveRelocationMode=0",
)

_TRAINING_TIMEOUT_S = 600.0
_TRAINING = """
import warnings
from ropewalk.spark.spark_session import session

warnings.simplefilter("ignore")
settings = {"spark.driver.memory": "512m", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
spark = session("local[2]", **settings)
spark.createDataFrame([(each, b"body") for each in range(9)], ["key", "body"]).createOrReplaceTempView("rows")
spark.sql("select key % 3 as part, count(*) as c, max(body) as b from rows group by 1 order by part").collect()
stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
writer = stream.writeStream.format("noop").option("checkpointLocation", CHECKPOINT)
query = writer.trigger(availableNow=True).start()
query.awaitTermination(60)
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait(120)
"""


@lru_cache(maxsize=1)
def spark_archive() -> Path | None:
    """Return where the classes of Spark are archived, or to be archived; None without Spark or a Java of its own."""
    home = unpacked_spark()
    if home is None:
        return None
    try:
        java = Path(program("java")).resolve()
    except JavaUnavailable:
        return None
    jars = home / "jars"
    known = [f"{path} {path.stat().st_mtime_ns}" for path in (java, jars)]
    digest = hashlib.sha256("\n".join([*known, _TRAINING]).encode()).hexdigest()[:16]
    archive = cache_dir() / f"spark-{digest}.jsa"
    return None if " " in str(archive) else archive


def archive_options(archive: Path | None) -> tuple[str, ...]:
    """Return the options of a JVM that maps this archive, if it can be used."""
    # The log would say on standard output that an archive cannot be used.
    return () if archive is None else ("-Xshare:auto", f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")


QUICK_START = " ".join((*SHORT_LIVED, *archive_options(spark_archive())))
"""These options as one line, for Spark; with its archive, for which `archive_spark_classes` is to be called."""


def archive_spark_classes() -> None:
    """Make the archive of Spark's classes, unless it is there; an empty one says that this Java makes none."""
    archive = spark_archive()
    if archive is None or archive.exists():
        return
    with _locked(archive.with_suffix(".lock")):
        if archive.exists():
            return
        partial = archive.with_suffix(f".{os.getpid()}")
        options = [*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={partial}", "-Xlog:disable"]
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": " ".join(options), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["SPARK_HOME"] = str(unpacked_spark())
        status = None
        with tempfile.TemporaryDirectory() as checkpoint, contextlib.suppress(subprocess.TimeoutExpired):
            status = subprocess.run(
                [sys.executable, "-c", f"CHECKPOINT = {checkpoint!r}\n{_TRAINING}"],
                capture_output=True,
                env=environment,
                timeout=_TRAINING_TIMEOUT_S,
                check=False,
            ).returncode
        if status == 0 and partial.exists():
            partial.replace(archive)
        else:
            partial.unlink(missing_ok=True)
            archive.touch()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
