"""Options of JVMs that live for seconds: they would spend much of these on code that they will not run often."""

from __future__ import annotations

SHORT_LIVED = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Classes of released jars verify. The option is one for diagnosis, and another JVM may not have it.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
QUICK_START = " ".join(SHORT_LIVED)
"""These options as one line, for Spark."""
