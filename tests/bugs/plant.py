"""Start `ropewalk` with a bug in it: `python -m tests.bugs.plant NAME broker ...`.

A planted bug is a unified diff, `tests/bugs/NAME.patch`, against modules of this checkout. It is applied to their
source while they are imported; no file changes. Checkers are proven with it: one that stays silent
about a bug it is there for is no checker.

Hunks are found by their text and not by their line numbers, which drift. A hunk must match exactly once, else
the patch is stale and nothing is started: a bug that was not planted would prove whatever one likes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

BUGS = Path(__file__).resolve().parent
ROOT = BUGS.parent.parent

_FILE = re.compile(r"^\+\+\+ (?:b/)?(\S+)$", re.MULTILINE)


class StalePatch(Exception):
    """The patch does not fit the source any more: write it anew."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Text to find, and what to put in its place."""

    path: str
    """Of the file, from the root of the checkout."""
    old: str
    new: str


def names() -> list[str]:
    """Every bug that can be planted."""
    return sorted(path.stem for path in BUGS.glob("*.patch"))


def read_patch(name: str) -> list[Hunk]:
    """The hunks of a patch. Raises `StalePatch` if the file is no unified diff."""
    hunks: list[Hunk] = []
    path = ""
    old: list[str] = []
    new: list[str] = []

    def finish() -> None:
        if path and old != new:
            hunks.append(Hunk(path, "".join(old), "".join(new)))
        old.clear()
        new.clear()

    for line in (BUGS / f"{name}.patch").read_text().splitlines(keepends=True):
        if line.startswith(("--- ", "diff ", "index ")):
            finish()
            path = ""
        elif (match := _FILE.match(line)) is not None:
            path = match.group(1)
        elif line.startswith("@@"):
            finish()
        elif not path:
            continue  # the words before the diff say what the bug is
        elif line.startswith("-"):
            old.append(line[1:])
        elif line.startswith("+"):
            new.append(line[1:])
        elif line.startswith(" ") or line == "\n":
            old.append(line[1:] or "\n")
            new.append(line[1:] or "\n")
        else:
            raise StalePatch(f"{name}: this is no line of a unified diff: {line!r}")
    finish()
    if not hunks:
        raise StalePatch(f"{name}: the patch changes nothing")
    return hunks


def patched_sources(name: str) -> dict[str, str]:
    """Path -> source with the bug in it. Raises `StalePatch`."""
    sources: dict[str, str] = {}
    for hunk in read_patch(name):
        source = sources.get(hunk.path)
        if source is None:
            source = (ROOT / hunk.path).read_text()
        count = source.count(hunk.old)
        if count != 1:
            raise StalePatch(f"{name}: {hunk.path} holds this {count} times, not once:\n{hunk.old}")
        sources[hunk.path] = source.replace(hunk.old, hunk.new)
    return sources


class _PlantedLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        """The code with the bug; no cached bytecode is read or written."""
        code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._sources.get(fullname)
        if source is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None, fullname
        spec.loader = _PlantedLoader(fullname, spec.origin, source)
        return spec


def install(name: str) -> None:
    """Have the bug's modules be imported with the bug. Raises `StalePatch`, also when one was imported already."""
    sources = {}
    for path, source in patched_sources(name).items():
        module = path.removesuffix(".py").replace("/", ".")
        if module in sys.modules:
            raise StalePatch(f"{name}: {module} was imported before the bug could be planted")
        compile(source, path, "exec")
        sources[module] = source
    sys.meta_path.insert(0, _Finder(sources))


def main() -> None:
    """Plant the bug that the first argument names, and run `ropewalk` with the others."""
    name = sys.argv.pop(1)
    install(name)
    print(f"planted bug: {name}", file=sys.stderr, flush=True)

    from ropewalk.__main__ import main as ropewalk

    ropewalk()


if __name__ == "__main__":
    main()
