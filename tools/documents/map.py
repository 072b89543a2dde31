"""The map: every file of the five rooms with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tools.documents.markdown import cell, head, table

__all__ = ["ROOMS", "first_sentence", "page"]

ROOMS: Final = ("ropewalk", "store", "ha", "broker", "tools")
_SENTENCE: Final = re.compile(r"(?<!e\.g)(?<!i\.e)\.(?=\s)")


def page(root: Path) -> str:
    """Return the map of the checkout at `root`: a part for each room, a table for each of its folders."""
    parts = [
        head(
            "The map",
            "the docstrings of modules",
            "Five rooms. Imports point one way, `tools → broker → ha → store → ropewalk`, and `tests/test_layers.py` "
            "keeps it so. [architecture.md](design/architecture.md) tells how the rooms work together, and names "
            "the files to read first. A folder's docstring, in its `__init__.py`, holds its theory.",
        )
    ]
    for room in ROOMS:
        for folder in sorted({path.parent for path in (root / room).rglob("*.py")}):
            parts.append(_folder(root, folder))
    return "\n".join(parts)


def _folder(root: Path, folder: Path) -> str:
    name = folder.relative_to(root).as_posix()
    level = "##" if "/" not in name else "###"
    package = folder / "__init__.py"
    theory = first_sentence(package) if package.exists() else ""
    rows = [
        (f"[{path.name}](../{path.relative_to(root).as_posix()})", cell(first_sentence(path)))
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py"
    ]
    lines = [
        f"{level} {name}/",
        f"{theory}." if theory else "",
        table(("file", "what it is"), rows) if rows else "",
    ]
    return "\n\n".join(line for line in lines if line).rstrip("\n") + "\n"


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring on one line, without its full stop; "" for no docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    return _SENTENCE.split(paragraph, maxsplit=1)[0].rstrip(".:")
