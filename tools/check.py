"""The check that `make test` runs: format, lint, strict types, then the tests.

The cheap steps come first and the first failing one ends the run, so that a misplaced comma is told in
a second and not after the crash tests. pytest comes last and nothing is printed after it: the last line
on the terminal is its own summary, and its exit status is this program's.

All the tests are shared out among two processes and four that use what these leave (tests/parallel.py says how). The
types are checked beside them, because at first the tests use one processor; wrong types stop the tests, and are told
after these. With arguments for pytest, which ask for some of the tests or for a debugger, there is one process as in a
plain `pytest`, when the types have been found right.

`--long` runs the same suites at the counts that an issue asks to see proven. It is carried to the
tests by the environment variable `ROPEWALK_LONG=1`. Under `CI=true` the tests of `tests/compat` fail,
rather than skip, when java or mvn is missing; they read that variable themselves.

The steps keep the bytecode that they compile, whatever the caller's environment says: hundreds of tests start a
process of this checkout, and one that has to compile it first takes three times the processor's time.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
SHARED_OUT = ("-n", "6")
"""Two also where there are more cores: many tests start processes of their own. Of the other four, one only computes,
with the least priority, and three mostly wait (tests/parallel.py)."""

_STOP_S = 10.0
"""How long a step may take to end when it is interrupted."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the check, run by this interpreter from the root of the checkout."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    beside: bool = False
    """Whether the last step goes on meanwhile, to which this one gives way."""

    def start(self, environment: Mapping[str, str], out: int | None = None) -> subprocess.Popen[bytes]:
        """Start it."""
        give_way = ("nice", "-n", "10") if self.beside else ()
        command = [*give_way, sys.executable, "-m", self.module, *self.arguments]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)


def plan(*, fix: bool = False, pytest_arguments: Sequence[str] = ()) -> tuple[Step, ...]:
    """Return the steps in order; with `fix`, only the rewriting ones."""
    if fix:
        return (
            Step("fix", "ruff", ("check", "--fix", "--quiet")),
            Step("format", "ruff", ("format",)),
            Step("pages", "tools.documents"),
        )
    return (
        Step("format", "ruff", ("format", "--check", "--quiet")),
        Step("lint", "ruff", ("check", "--quiet")),
        Step("types", "mypy", ("--no-error-summary",), beside=not pytest_arguments),
        Step("tests", "pytest", tuple(pytest_arguments) or SHARED_OUT),
    )


def run(steps: Sequence[Step], environment: Mapping[str, str]) -> int:
    """Run the steps until one fails; return its exit status, or 0.

    The time of each step but the last is printed: the last one's output ends with its own summary, and
    that line must stay the last.
    """
    *before, last = steps
    beside = None
    for step in before:
        if step.beside:
            assert beside is None, "one step goes on beside the last"
            beside = step
            continue
        started = time.monotonic()
        with step.start(environment) as process:
            status = process.wait()
        _tell(step, started, status)
        if status != 0:
            if step.name == "format" and "--check" in step.arguments:
                print("`make format` rewrites the files that ruff would write differently", flush=True)
            return status
    if beside is not None:
        return _run_both(beside, last, environment)
    with last.start(environment) as process:
        return process.wait()


def _run_both(beside: Step, last: Step, environment: Mapping[str, str]) -> int:
    """Run a step beside the last one, which is stopped if that one fails; return the status of what failed, or 0."""
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as out,
        beside.start(environment, out.fileno()) as first,
        last.start(environment) as second,
    ):
        while first.poll() is None and second.poll() is None:
            time.sleep(0.1)
        is_first = second.poll() is None
        status = first.wait()
        if status == 0:
            if is_first:
                print()  # the last step is in the middle of a line
                _tell(beside, started, status)
            return second.wait()
        if is_first:
            _stop(second)
        out.seek(0)
        print(out.read().decode(errors="replace"), end="")
        _tell(beside, started, status)
        return status


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a step, and end it if it does not listen: what a shell starts in the background ignores SIGINT."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def _tell(step: Step, started: float, status: int) -> None:
    seconds = time.monotonic() - started
    print(f"{step.name:7} {seconds:6.1f} s  {'ok' if status == 0 else 'FAILED'}", flush=True)


def environment_of_steps(
    environment: Mapping[str, str], *, long: bool = False, root: Path = ROOT
) -> dict[str, str]:
    """Return the caller's environment with bytecode kept, in a cache folder if the checkout is read-only."""
    of_steps = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if not os.access(root, os.W_OK):
        base = environment.get("XDG_CACHE_HOME")
        cache = (Path(base) if base else Path.home() / ".cache") / "ropewalk" / "bytecode"
        of_steps.setdefault("PYTHONPYCACHEPREFIX", str(cache))
    if long:
        of_steps["ROPEWALK_LONG"] = "1"
    return of_steps


def check(
    pytest_arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to pytest, after a `--`: paths, -k, -x ...")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Rewrite what ruff can and the generated pages; no tests.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", help="The long counts: an hour rather than minutes.")
    ] = False,
) -> None:
    """Check format, lint and types, then run the tests; stop at the first step that fails."""
    environment = environment_of_steps(os.environ, long=long)
    try:
        status = run(plan(fix=fix, pytest_arguments=pytest_arguments or ()), environment)
    except KeyboardInterrupt:
        status = 130
    raise typer.Exit(status)


if __name__ == "__main__":
    typer.run(check)
