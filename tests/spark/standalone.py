"""A standalone cluster of Spark: a master and two workers, started from the scripts that pip installed with PySpark."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.jvm import QUICK_START


class Daemon:
    """One JVM of the cluster, in a session of its own."""

    def __init__(self, folder: Path, name: str, *words: str) -> None:
        import pyspark

        from ropewalk.spark.jvm import ensure_java

        self.log = folder / f"{name}.log"
        environment = {**os.environ, "SPARK_DAEMON_MEMORY": "128m", "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"SPARK_NO_DAEMONIZE": "1", "SPARK_WORKER_DIR": str(folder / name)}
        environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK_START
        ensure_java(environment)
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(script), *words],
                stdout=out,
                stderr=out,
                cwd="/",
                env=environment,
                start_new_session=True,
            )

    def said(self, pattern: str) -> str:
        """What the log says, when it does."""
        deadline = time.monotonic() + 90
        while True:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found:
                return found.group(1)
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """The address of a master with two workers, of one core each."""
    daemons: list[Daemon] = []
    deploy = "org.apache.spark.deploy"
    try:
        words = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        daemons.append(Daemon(folder, "master", f"{deploy}.master.Master", *words))
        port = daemons[0].said(r"Starting Spark master at spark://127.0.0.1:(\d+)")
        address = f"spark://127.0.0.1:{port}"
        for number in range(2):
            name = f"worker-{number}"
            some = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m")
            daemons.append(Daemon(folder, name, f"{deploy}.worker.Worker", *some, address))
        for worker in daemons[1:]:
            worker.said(r"(Successfully registered with master)")
        yield address
    finally:
        for daemon in reversed(daemons):
            daemon.end()


def executors(folder: Path) -> set[str]:
    """The workers that ran an executor of some application."""
    return {path.parts[-3] for path in folder.glob("worker-*/app-*/*")}


def executor_processes(folder: Path) -> list[int]:
    """The process ids of the executors that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(entry.name)
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_executor = any(word.endswith(b".CoarseGrainedExecutorBackend") for word in words)
            if is_executor and (entry / "cwd").resolve().is_relative_to(folder.resolve()):
                found.append(number)
    return sorted(found)
