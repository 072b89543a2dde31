"""A JVM that logs errors only: for commands, whose own words would drown in Spark's.

Spark greets with half a dozen lines on standard error before it has done anything: which profile its log has, how to
change its level, that a library of Hadoop's is missing, that a module incubates. Errors are told there too, so the
stream is not closed; each greeting is turned off where it comes from.

    the log                 a configuration of its own, errors only, on standard error
    "incubator modules"     the JVM's own warning about a module that Spark asks for and these jobs do not use; the
                            shim of `jvm` leaves the request out

What a user has configured goes before: a log4j2 configuration in SPARK_CONF_DIR or among the driver's options, or a
level by `spark.log.level`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ropewalk.spark.jvm import ensure_java, write_shim

__all__ = ["has_own_log", "quiet_jvm"]

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_OPTIONS: Final = "spark.driver.defaultJavaOptions"
"""Set in front of `spark.driver.extraJavaOptions`, which is the user's."""
_CONFIGURED: Final = ("-Dlog4j2.configurationFile", "-Dlog4j.configurationFile")


@contextmanager
def quiet_jvm(
    settings: Mapping[str, str], environment: MutableMapping[str, str] = os.environ
) -> Iterator[dict[str, str]]:
    """Yield settings of a session whose JVM, started within the block, is silent. Raises JavaMissing."""
    java = ensure_java(environment)
    home = environment.get("JAVA_HOME")
    with tempfile.TemporaryDirectory(prefix="ropewalk-jvm-") as directory:
        quiet = dict(settings)
        if not has_own_log(settings, environment):
            path = Path(directory, "log4j2.properties")
            path.write_text(_LOG4J)
            ours = f"-Dlog4j2.configurationFile={path.as_uri()}"
            quiet[_OPTIONS] = " ".join(filter(None, (ours, settings.get(_OPTIONS))))
        shim = write_shim(java.absolute(), Path(directory))
        if os.access(
            shim / "bin" / "java", os.X_OK
        ):  # nothing can be started from some temporary directories
            environment["JAVA_HOME"] = str(shim)
        try:
            yield quiet
        finally:
            if home is None:
                environment.pop("JAVA_HOME", None)
            else:
                environment["JAVA_HOME"] = home


def has_own_log(settings: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user has configured how the driver logs."""
    options = [settings.get(name, "") for name in (_OPTIONS, "spark.driver.extraJavaOptions")]
    options += [environment.get(name, "") for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS")]
    if any(name in text for text in options for name in _CONFIGURED):
        return True
    places = [environment.get("SPARK_CONF_DIR", ""), os.path.join(environment.get("SPARK_HOME", ""), "conf")]
    return any(
        os.path.exists(os.path.join(place, f"log4j2.{kind}"))
        for place in places
        for kind in ("properties", "xml", "yaml", "json")
        if place
    )
