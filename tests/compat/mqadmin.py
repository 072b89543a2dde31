"""RocketMQ's own mqadmin, many commands in one JVM: what it prints to each."""

from __future__ import annotations

import re
import selectors
import subprocess
from pathlib import Path
from types import TracebackType

from tests.bench.peers.rocketmq.artifacts import compiled, program
from tests.support.jvm import SHORT_LIVED

SOURCES = [Path(__file__).with_name("java") / "tools" / "Mqadmin.java"]
COMMAND_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
END = b"\x04"
_LOGGER = re.compile(r"\d\d:\d\d:\d\d,\d\d\d \|-")


class Mqadmin:
    """One JVM that runs commands against one name server, from entering to leaving the context."""

    def __init__(self, namesrv: str, classpath: str, home: Path) -> None:
        options = ["-Xmx192m", *SHORT_LIVED]
        options += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-Dfile.encoding=UTF-8"]
        options += ["-Drocketmq.client.logLevel=WARN", f"-Drocketmq.client.logRoot={home / 'logs'}"]
        options += ["-Dio.netty.eventLoopThreads=2"]
        classes = compiled(SOURCES, classpath)
        self._command = [program("java"), *options, "-cp", f"{classes}:{classpath}", "Mqadmin", namesrv]
        self._home = home
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Mqadmin:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._home,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def run(self, *words: str) -> str:
        """Run one command, and return everything it printed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write("\t".join(words).encode() + b"\n")
        stdin.flush()
        printed = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not printed.endswith(END + b"\n"):
                assert selector.select(COMMAND_TIMEOUT_S), f"{words} did not end; so far: {printed!r}"
                data = stdout.read1(65_536)  # type: ignore[attr-defined]
                assert data, f"the JVM ended in {words}: {printed!r}"
                printed += data
        text = printed.removesuffix(END + b"\n").decode()
        # The server's jars, which share the class path, bring a logger that tells of itself as it starts.
        return "\n".join(line for line in text.splitlines() if not _LOGGER.match(line))

    def table(self, *words: str) -> list[list[str]]:
        """The rows that a command printed under its `#` heading, as words; the heading is the first row."""
        rows = [line.split() for line in self.run(*words).splitlines()]
        start = next((n for n, row in enumerate(rows) if row and row[0].startswith("#")), len(rows))
        return [row for row in rows[start:] if row]
