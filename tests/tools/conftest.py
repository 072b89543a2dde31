import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ropewalk.client.fake_cluster import FakeCluster
from tools.cli import app

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    status: int
    out: bytes
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def document(self) -> dict[str, Any]:
        (document,) = self.documents
        return document


RunCommand = Callable[..., Ended]


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "ropewalk", *words]


def command_environment(name_server: str = "127.0.0.1:1") -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "NAMESRV_ADDR": name_server,
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        yield fake


@pytest.fixture
def ropewalk(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Run `ropewalk` in this process, with the fake cluster as its default name server.

    A process of its own costs a third of a second; the stories about signals and pipes pay for that,
    the others do not have to.
    """
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path, stdin: bytes = b"", name_server: str | None = None) -> Ended:
        for name, value in command_environment(name_server or cluster.address).items():
            monkeypatch.setenv(name, value)
        given = tmp_path / "standard-input"
        given.write_bytes(stdin)
        out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with given.open(encoding="utf-8") as input_stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", input_stream)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", errors)
            with pytest.raises(SystemExit) as ended:
                app([str(word) for word in words], prog_name="ropewalk")
        status = ended.value.code
        assert isinstance(status, int)
        return Ended(status, written(out), written(errors).decode())

    return run


def written(stream: io.TextIOWrapper) -> bytes:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()
