"""The imports and calls of a source text, read without importing it, and bans on them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


ROOMS = ("ropewalk", "store", "ha", "broker", "tools")  # each may import itself and those before it


WORLD = (
    "asyncio", "anyio", "trio", "socket", "select", "selectors", "ssl", "threading", "multiprocessing",
    "concurrent", "subprocess", "signal", "os", "io", "mmap", "fcntl", "pathlib", "shutil", "tempfile",
    "time", "random", "secrets", "uuid",
)  # fmt: skip


@dataclass(frozen=True)
class Ban:
    """Files that match `where` must not name any of `names`, unless they match `except_in`.

    A name is a module, a dotted call such as `os.open`, or a method such as `.read_bytes`.
    """

    why: str
    where: tuple[str, ...]
    names: tuple[str, ...]
    except_in: tuple[str, ...] = ()


def sources() -> dict[str, str]:
    """Return the text of every module of the five rooms, by its path from the root."""
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def dotted(node: ast.expr) -> str:
    """Return `os.path.join` for the expression of that shape; ".name" at the end of any other one."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every module that is imported anywhere in the tree, and every name taken out of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "relative imports are banned by the linter"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def broken_bans(path: str, source: str, bans: tuple[Ban, ...]) -> list[str]:
    """Return the bans that this file breaks, as sentences."""
    found = []
    used: set[str] | None = None
    for ban in bans:
        applies = any(fnmatch(path, pattern) for pattern in ban.where)
        if not applies or any(fnmatch(path, pattern) for pattern in ban.except_in):
            continue
        if used is None:
            used = names_used(_WithoutTypeImports().visit(ast.parse(source)))
        found += [
            f"{path} uses {name}: {ban.why}"
            for name in ban.names
            if any(item == name or item.startswith(f"{name}.") for item in used)
        ]
    return found


class _WithoutTypeImports(ast.NodeTransformer):
    """Drops what only the type checker sees: an annotation does not touch the world."""

    def visit_If(self, node: ast.If) -> ast.AST:
        return ast.Pass() if is_for_types_only(node) else self.generic_visit(node)


def names_used(tree: ast.AST) -> set[str]:
    """Return imports, called expressions and dotted names, with `import x as y` told by its real name."""
    aliases = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname
    }
    used = set(imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = dotted(node).partition(".")
            used.add(f"{aliases.get(head, head)}.{rest}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            used.add(node.func.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            used.add(f".{node.func.attr}")
    if {name for name in used if name.startswith("random.")} == {"random.Random"} and ".Random" not in used:
        used -= {"random", "random.Random"}  # the type of a source of chance that is handed in
    return used


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and dotted(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
