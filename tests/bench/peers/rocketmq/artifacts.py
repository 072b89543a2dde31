"""Java for tests: the programs, the pinned jars of a committed pom, and classes compiled against them.

A pom is resolved once by Maven; the answer is kept under the cache folder in a file named by the pom's
own hash, so that a changed pom is resolved anew and an unchanged one costs no Maven run. The same holds
for compiled sources, named by the hash of sources and class path. Nothing is kept in the checkout.

A classpath here is Java's: absolute paths joined by ':'.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"
RESOLVE_TIMEOUT_S = 900.0
COMPILE_TIMEOUT_S = 300.0


class JavaUnavailable(Exception):
    """There is no Java or no Maven here, or the artifacts could not be had; the text says which."""


def cache_dir() -> Path:
    """Where resolved and compiled things are kept between runs: safe to delete at any time."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "ropewalk" / "java"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def program(name: str) -> str:
    """The path of `java`, `javac` or `mvn`, JAVA_HOME first; JavaUnavailable when there is none."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home and name != "mvn" and (Path(java_home) / "bin" / name).exists():
        return str(Path(java_home) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise JavaUnavailable(f"{name} is not installed (looked in JAVA_HOME and PATH)")
    return found


def classpath(pom: Path) -> str:
    """The jars of `pom` with all they depend on, in Maven's order, downloaded when they are missing."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    cached = cache_dir() / f"classpath-{digest}.txt"
    if cached.exists():
        text = cached.read_text().strip()
        if text and all(Path(jar).exists() for jar in text.split(":")):
            return text
    # Maven writes beside the final name, and a rename publishes it: two test runs may resolve at once.
    partial = cached.with_suffix(f".{os.getpid()}")
    command = [program("mvn"), "-q", "-B", "-f", str(pom), f"{DEPENDENCY_PLUGIN}:build-classpath"]
    _run([*command, f"-Dmdep.outputFile={partial}", "-Dmdep.pathSeparator=:"], RESOLVE_TIMEOUT_S)
    text = partial.read_text().strip()
    partial.replace(cached)
    return text


def compiled(sources: list[Path], jars: str) -> Path:
    """A folder with the classes of `sources`, compiled against the classpath `jars`."""
    hasher = hashlib.sha256(jars.encode())
    for source in sorted(sources):
        hasher.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    target = cache_dir() / f"classes-{hasher.hexdigest()[:16]}"
    if target.exists():
        return target
    partial = target.with_suffix(f".{os.getpid()}")
    partial.mkdir()
    command = [
        program("javac"),
        "-J-Xmx256m",
        "-nowarn",
        "-encoding",
        "UTF-8",
        "-source",
        "8",
        "-target",
        "8",
    ]
    command += ["-proc:none", "-cp", jars, "-d", str(partial), *map(str, sorted(sources))]
    try:
        _run(command, COMPILE_TIMEOUT_S)
        partial.rename(target)
    except OSError:
        # Another run published the same classes first; theirs are as good.
        shutil.rmtree(partial, ignore_errors=True)
    except JavaUnavailable:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def _run(command: list[str], timeout_s: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        tail = (done.stdout + done.stderr)[-4000:]
        raise JavaUnavailable(f"{Path(command[0]).name} answered {done.returncode}:\n{tail}")
