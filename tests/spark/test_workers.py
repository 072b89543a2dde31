"""The interpreter of Spark's workers: a wrong one is named before the first job, with the way to set it."""

from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ropewalk.spark
from ropewalk.spark.workers import WorkerMismatch, check_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python of this version that has none of our packages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "bare", symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python")


def answering(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_of_the_driver_is_right() -> None:
    check_interpreter(sys.executable)


def test_one_without_ropewalk_is_named_with_the_remedy(bare_python: str) -> None:
    with pytest.raises(WorkerMismatch) as raised:
        check_interpreter(bare_python)
    said = str(raised.value)
    assert said.startswith(
        f"Spark's workers run {bare_python}, and it cannot import ropewalk, pyarrow, numpy. "
    )
    assert f"Set PYSPARK_PYTHON={sys.executable} before the session is made" in said
    assert "ropewalk.spark.session()" in said
    # Workers find there what was shipped to them.
    check_interpreter(bare_python, ships_files=True)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('{"version": [3, 9], "missing": [], "ropewalk": "0.1"}', r"that is Python 3\.9, where this is Python 3\.1"),
        (f'{{"version": {list(sys.version_info[:2])}, "missing": [], "ropewalk": "0.1"}}', r"it has ropewalk 0\.1,"),
        ("Python 2.7.18", "it does not run Python code"),
    ],
)  # fmt: skip
def test_one_of_another_version_is_too(tmp_path: Path, answer: str, says: str) -> None:
    with pytest.raises(WorkerMismatch, match=says):
        check_interpreter(answering(tmp_path / "python", answer))


def test_one_that_does_not_exist_is_too() -> None:
    with pytest.raises(WorkerMismatch, match="workers run python9, and there is no such program"):
        check_interpreter("python9")


def test_a_session_with_such_workers_is_refused_by_register(
    spark: SparkSession, bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)
    with pytest.raises(WorkerMismatch, match="PYSPARK_PYTHON="):
        ropewalk.spark.register(spark)
    with pytest.raises(WorkerMismatch, match="PYSPARK_PYTHON="):
        ropewalk.spark.read(spark, "T", name_server="localhost:1")
