"""The house rules that can be read off the source: who imports whom, and who touches the world.

Each rule is a row of a table. The scanner reads source text, never imports it, so a rule holds for code
that no test runs. The last tests feed it broken examples, to show that it would notice.
"""

import ast
from functools import cache

import pytest

from tests.support.imports import ROOMS, ROOT, WORLD, Ban, broken_bans, imports, sources

# The one step against the stream: the command's entrance lives in the package that users install.
EXCEPTIONS = {("ropewalk/__main__.py", "tools.cli")}


# Folders of cores; a new file in one of them is a core by living there.
CORES = (
    "ropewalk/client/core/*",
    "ha/group/*", "ha/stream/*", "ha/raft/*", "ha/kv/*",
    "broker/produce/*", "broker/consume/*", "broker/waiting/*", "broker/timers/*", "broker/transactions/*",
    "broker/state/*", "broker/namesrv/*", "broker/remoting/*", "broker/settings/*",
)  # fmt: skip
NOT_CORES = (
    "ropewalk/client/core/ids.py",  # asks the kernel for this machine's address and its process
    "ropewalk/client/core/admin_requests.py",  # reads the stacks of this process's threads, as a consumer is asked to
    "broker/remoting/shell.py",
    "broker/remoting/event_loop.py",
    "broker/remoting/connection.py",
    "broker/remoting/sockets.py",
    "broker/settings/config.py",  # reads the environment and the configuration file
    "broker/state/json_file.py",  # writes files, on a thread
    "broker/timers/delay_progress.py",  # names the file it keeps progress in
)


BANS = (
    Ban(
        "only the broker's shell, the client's shells and the tools know sockets",
        where=("*",),
        names=(
            "socket", "select", "selectors", "socketserver",
            "trio.socket", "trio.open_tcp_listeners", "trio.serve_tcp", "trio.open_tcp_stream",
            "anyio.connect_tcp", "anyio.create_tcp_listener",
        ),
        except_in=(
            "broker/remoting/shell.py", "broker/remoting/event_loop.py", "broker/remoting/connection.py",
            "broker/remoting/sockets.py",
            "broker/web/*",  # pages for people, from a thread of its own
            "broker/process/service_manager.py",  # tells systemd by its socket that a server serves
            "ropewalk/client/blocking/connection.py",
            "ropewalk/client/aio/connection.py",
            "ropewalk/client/resolver.py",  # looks the names of hosts up
            "ropewalk/client/core/ids.py",  # asks the kernel for this machine's address, sends nothing
            "tools/*",
            "store/io/helper_process.py",  # the pipes between a broker and its helpers
        ),
    ),
    Ban(
        "only store/io/disk.py opens files in the store, so that a test can put a failing disk there",
        where=("store/*",),
        names=(
            "open", "io.open", "os.open", "os.fdopen", "os.pwrite", "os.pwritev", "os.pread", "os.preadv",
            "os.fsync", "os.fdatasync", "os.rename", "os.replace", "os.unlink", "os.remove", "os.truncate",
            "os.ftruncate", "os.listdir", "os.scandir", "os.makedirs", "os.mkdir", "mmap", "fcntl", "shutil",
            "tempfile", ".read_bytes", ".read_text", ".write_bytes", ".write_text", ".unlink", ".iterdir",
        ),
        except_in=(
            "store/io/disk.py",
            "store/offline/reader.py",  # the tools' reader of a directory that nobody serves; it never writes
            "store/io/helper_process.py",  # asks a pipe how full it is
            "store/offline/dry_run_disk.py",  # reads only, and remembers what it would have written
        ),
    ),
    Ban(
        "byte layouts and filters are pure functions",
        where=("ropewalk/format/*", "ropewalk/filter/*", "ropewalk/codes.py", "ropewalk/errors.py"),
        names=(*WORLD, "open"),
    ),
    Ban(
        "a core reads no clock, socket, file or random number: it is told",
        where=CORES,
        except_in=NOT_CORES,
        names=(*WORLD, "open"),
    ),
    Ban(
        "the broker and the store log through structlog",
        where=("*",),
        names=("logging",),
        except_in=("ropewalk/client/log.py",),  # a library's events end where its program's do
    ),
)  # fmt: skip


def against_the_stream(path: str, source: str) -> list[str]:
    """The imports of this file that point from a lower room to a higher one."""
    allowed = ROOMS[: ROOMS.index(path.split("/", 1)[0]) + 1]
    above = [room for room in ROOMS if room not in allowed]
    return [
        f"{path} imports {name}"
        for name in imports_of(source)
        if name.split(".")[0] in above
        and not any(path == file and name.startswith(module) for file, module in EXCEPTIONS)
    ]


Graph = dict[str, set[str]]
_DEEPER = (("ropewalk", "spark", "jobs"), ("ropewalk", "spark"), ("ropewalk", "client"))
"""Rooms within a room: their folders are packages too."""
FACADES = ("ropewalk/__init__.py", "ropewalk/__main__.py", "ropewalk/spark/__init__.py")
"""Modules that only forward names to users: their imports are no arrows."""


@cache
def imports_of(text: str) -> tuple[str, ...]:
    return tuple(imports(ast.parse(text)))


def import_graph(texts: dict[str, str]) -> Graph:
    """Module -> modules that it imports, at its top, in functions and for type checkers alike; packages are folders."""
    modules = {path.removesuffix(".py").replace("/", "."): path for path in texts}
    graph: Graph = {}
    for module, path in modules.items():
        graph[module] = set()
        for name in imports_of(texts[path]):
            while name:
                for target in (name, f"{name}.__init__"):
                    if target in modules and target != module:
                        graph[module].add(target)
                        name = ""
                        break
                name = name.rpartition(".")[0]
    return graph


def package_of(module: str) -> str:
    """The unit that a reader learns at once: a folder within a room, or a module that lies in the room itself."""
    parts = module.removesuffix(".__init__").split(".")
    depth = next((len(room) for room in _DEEPER if tuple(parts[: len(room)]) == room), 1) + 1
    return ".".join(parts[:depth])


def circles(graph: Graph) -> list[list[str]]:
    """Each set of nodes that reach one another, sorted."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for target in graph.get(left.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    left.append(target)
        return seen

    reach = {node: reached(node) for node in graph}
    found = {
        tuple(sorted(other for other in reach[node] if node in reach.get(other, ())))
        for node in graph
        if node in reach[node]
    }
    return sorted(map(list, found))


def by_package(graph: Graph) -> Graph:
    """The same arrows between packages; those within one package are left out."""
    packages: Graph = {package_of(module): set() for module in graph}
    for module, targets in graph.items():
        packages[package_of(module)] |= {package_of(target) for target in targets} - {package_of(module)}
    return packages


def without_facades(texts: dict[str, str]) -> dict[str, str]:
    """The sources less what only forwards names, in `__init__` files: their imports are for users."""
    return {path: "" if path in FACADES else text for path, text in texts.items()}


def test_no_modules_and_no_packages_import_each_other_in_a_circle() -> None:
    graph = import_graph(without_facades(sources()))
    assert circles(by_package(graph)) == []
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("store/io/disk.py", "from store.log.segment import Segment"),
        (
            "broker/state/topics.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from broker.broker import Broker",
        ),
        ("broker/remoting/session.py", "def f():\n    from broker.produce import send"),
    ],
)
def test_a_circle_of_imports_is_noticed(path: str, line: str) -> None:
    texts = without_facades(sources())
    assert circles(by_package(import_graph({**texts, path: f"{texts[path]}\n{line}\n"})))


def test_imports_point_one_way() -> None:
    found = [line for path, source in sources().items() for line in against_the_stream(path, source)]
    assert not found, "\n".join(found)


def test_cores_and_rooms_leave_the_world_to_its_owners() -> None:
    found = [line for path, source in sources().items() for line in broken_bans(path, source, BANS)]
    assert not found, "\n".join(found)


def imported_test_modules(source: str) -> list[str]:
    """Return the test modules that a source imports: what two of them need lies in a plain module."""
    names = (name.split(".") for name in imports_of(source))
    return [
        ".".join(name)
        for name in names
        if name[0] == "tests" and any(part.startswith("test_") for part in name[1:])
    ]


def test_no_module_imports_a_test_module() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for folder in ("tests", "tools", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imported_test_modules(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from tests.store.test_follow import bytes_of", ["tests.store.test_follow.bytes_of"]),
        ("def f():\n    import tests.store.test_follow as other", ["tests.store.test_follow"]),
        ("from tests.store import test_follow", ["tests.store.test_follow"]),
        ("from tests.support.stores import fill\nimport ropewalk.testing", []),
    ],
)
def test_an_import_of_a_test_module_is_noticed(source: str, found: list[str]) -> None:
    assert imported_test_modules(source) == found


def test_the_scanner_reads_all_five_rooms() -> None:
    assert {path.split("/")[0] for path in sources()} == set(ROOMS)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ropewalk/client/blocking/simple.py", "import store"),
        ("ropewalk/format/record.py", "def f():\n    from broker.settings.config import Config"),
        ("store/log/segment.py", "from ha.stream.client import Slave"),
        ("ha/stream/service.py", "import broker.state.topics as topics"),
        ("broker/remoting/shell.py", "from tools import cli"),
        ("ropewalk/__main__.py", "import broker"),
    ],
)
def test_an_import_against_the_stream_is_noticed(path: str, source: str) -> None:
    assert against_the_stream(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("broker/produce/send.py", "import socket"),
        ("broker/roles.py", "from select import epoll"),
        ("ha/stream/service.py", "import trio\nasync def f(): await trio.open_tcp_stream('h', 1)"),
        ("ha/stream/service.py", "import trio as t\ndef f(): t.socket.socket()"),
        ("store/log/segment.py", "f = open('x')"),
        ("store/log/segment.py", "import os\nos.fsync(3)"),
        ("store/log/segment.py", "def f(path): return path.read_bytes()"),
        ("store/log/segment.py", "import mmap"),
        ("ropewalk/format/record.py", "from time import time"),
        ("broker/remoting/session.py", "import random"),
        ("broker/remoting/session.py", "import random\ndef f(): return random.Random()"),
        ("broker/remoting/session.py", "import random\ndef f(r: random.Random): return random.random()"),
        ("broker/state/offsets.py", "import trio"),
    ],
)
def test_a_core_that_reaches_for_the_world_is_noticed(path: str, source: str) -> None:
    assert broken_bans(path, source, BANS)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("broker/remoting/shell.py", "import socket"),
        ("tools/bench.py", "import select, socket"),
        ("store/io/disk.py", "import os, mmap\nos.fsync(3)"),
        ("store/log/segment.py", "def f(disk): return disk.open('x')"),
        ("broker/produce/send.py", "import random\ndef f(chance: random.Random): return chance.random()"),
        (
            "broker/remoting/session.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random",
        ),
    ],
)
def test_what_the_table_allows_is_left_alone(path: str, source: str) -> None:
    assert not broken_bans(path, source, BANS)
