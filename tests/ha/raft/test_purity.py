"""The core of Raft reads no clock, socket, file or random number, and knows no room but `ropewalk` beside its own."""

from __future__ import annotations

import ast

from tests.support.imports import WORLD, Ban, broken_bans, imports, sources

CORE = {path: source for path, source in sources().items() if path.startswith("ha/raft/")}


def test_the_core_is_told_what_it_knows_of_the_world() -> None:
    ban = Ban("a core is told", where=("ha/raft/*",), names=(*WORLD, "open"))
    assert CORE
    assert not [line for path, source in CORE.items() for line in broken_bans(path, source, (ban,))]


def test_the_core_needs_no_store() -> None:
    named = {name.split(".")[0] for source in CORE.values() for name in imports(ast.parse(source))}
    assert named & {"store", "broker", "tools", "trio"} == set()
    assert not any(name.startswith("ha.") and not name.startswith("ha.raft") for name in named)
