"""The distribution `ropewalk-client`: clients that need three dependencies, no broker and no Linux."""

import re
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from ropewalk.testing import OUTSIDE, RopewalkBroker
from tests.support.installs import build_wheel, install_alone, lend, plain_environment, run_command
from tests.support.processes import ROOT

DEPENDENCIES_MAX = 3

GUARD = """
import builtins, os, pkgutil, select, signal, socket, sys

LINUX_ONLY = {
    "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline", "curses", "crypt",
    "_posixsubprocess", "multiprocessing.popen_fork",
}
genuine = builtins.__import__


def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if name in LINUX_ONLY and importer.split(".")[0] in ("ropewalk", "__main__"):
        raise ModuleNotFoundError(f"No module named {name!r} (imported by {importer})", name=name)
    return genuine(name, globals, locals, fromlist, level)


builtins.__import__ = guarded
MISSING = {
    os: ("fork", "register_at_fork", "geteuid", "getuid", "getgid", "getppid", "sched_getaffinity", "pidfd_open",
         "pread", "pwrite", "preadv", "pwritev", "fdatasync", "memfd_create", "sendfile", "uname", "fchmod", "killpg"),
    signal: ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "pthread_sigmask",
             "sigwait", "setitimer", "pthread_kill"),
    socket: ("AF_UNIX", "SO_REUSEPORT", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "MSG_NOSIGNAL"),
    select: ("poll", "epoll"),
}
"""
"""The parts of the standard library that Windows does not have, refused to the package; `MISSING` is for programs."""

EVERY_MODULE = """
import ropewalk

for module in pkgutil.walk_packages(ropewalk.__path__, "ropewalk."):
    if module.name != "ropewalk.testing":  # needs pytest, which is the user's
        __import__(module.name)
for name in ropewalk.__all__:
    getattr(ropewalk, name)
print(sorted({name.split(".")[0] for name in sys.modules} & {"structlog", "crc32c", "zlib_ng", "typer", "broker"}))
"""

BLOCKING = """
for module, names in MISSING.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

from ropewalk import Admin, Message, Producer, PullConsumer

with Producer() as producer:
    sent = producer.send(sys.argv[1], Message(b"blocking" * 1000, keys=["k"]))
    gathered = [producer.send_async(sys.argv[1], b"gathered") for _ in range(3)]
    producer.flush()
    print(sent.status.name, {future.result().status.name for future in gathered})
found = []
with PullConsumer(sys.argv[2], {sys.argv[1]: "*"}, consume_from="earliest") as consumer:
    while len(found) < 4:
        found += consumer.poll()
print(len(found), sent.message_id in [message.message_id for message in found])
with Admin() as admin:
    print(len(admin.masters()))
"""

EVENT_LOOPS = """
import queue
import anyio, anyio._backends._asyncio, anyio._backends._trio

for name in set(MISSING[os]) - {"sendfile"}:  # the loops of this Linux have taken what they need
    if hasattr(os, name):
        delattr(os, name)

from ropewalk import AsyncProducer, PushConsumer


async def send():
    async with AsyncProducer() as producer:
        await producer.send(sys.argv[1], b"from a loop")


handled = queue.Queue()
with PushConsumer(sys.argv[2], {sys.argv[1]: "*"}, handled.put, consume_from="earliest"):
    for backend in ("asyncio", "trio"):
        anyio.run(send, backend=backend)
    print(*(handled.get(timeout=60).body.decode() for _ in range(2)), sep=", ")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the clients alone."""
    return build_wheel(ROOT / "distributions" / "client", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel and what it declares to depend on."""
    site_packages = install_alone(wheel, tmp_path_factory.mktemp("client") / "venv")
    lend(site_packages, declared(wheel))
    return site_packages.parents[2] / "bin" / "python"


def declared(wheel: Path) -> list[str]:
    """Return the requirements in a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []


def run(python: Path, program: str, *arguments: str, broker: RopewalkBroker | None = None) -> list[str]:
    """Run a program where the parts of the standard library that only Linux has are missing; return its lines."""
    environment = plain_environment() | ({"NAMESRV_ADDR": broker.namesrv} if broker else {})
    text = run_command(python, "-c", GUARD + program, *arguments, cwd=python.parent, environment=environment)
    return text.splitlines()


def test_a_client_needs_three_dependencies_and_those_of_the_whole_are_no_older(wheel: Path) -> None:
    needed = [each for each in declared(wheel) if "extra ==" not in each]
    assert len(needed) <= DEPENDENCIES_MAX
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(needed) <= set(project["dependencies"]), "`ropewalk` brings all that its clients need"


def test_the_wheel_has_the_clients_of_the_checkout_and_neither_broker_nor_spark(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    clients = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ropewalk" / "client").rglob("*.py")}
    assert clients < carried
    others = {name for name in carried if name.endswith(".py")} - clients
    assert {name.split("/")[1] for name in others} == {
        "__init__.py", "codes.py", "errors.py", "lru.py", "member_proof.py", "printable.py", "testing.py",
        "filter", "format",
    }  # fmt: skip
    assert "ropewalk/py.typed" in carried


def test_every_module_of_the_client_is_imported_without_what_only_linux_has(python: Path) -> None:
    assert run(python, EVERY_MODULE) == ["[]"]


@pytest.mark.slow
def test_an_install_of_the_client_alone_sends_and_consumes(
    python: Path, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic("blocking")
    lines = run(python, BLOCKING, topic, ropewalk_broker.group("pulling"), broker=ropewalk_broker)
    assert lines == ["SEND_OK {'SEND_OK'}", "4 True", "1"]
    topic = ropewalk_broker.topic("loops")
    lines = run(python, EVENT_LOOPS, topic, ropewalk_broker.group("pushing"), broker=ropewalk_broker)
    assert lines == ["from a loop, from a loop"]


@pytest.mark.slow
def test_the_fixture_uses_a_broker_that_runs_already(
    python: Path, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_user.py").write_text(
        "def test_it(ropewalk_broker):\n"
        "    topic = ropewalk_broker.topic('orders')\n"
        "    print('topic', topic)\n"
        "    ropewalk_broker.send(topic, 'order 7')\n"
        "    assert [message.body for message in ropewalk_broker.messages(topic, 1)] == [b'order 7']\n"
        "def test_own(ropewalk_own_broker):\n"
        "    pass\n"
    )
    lend(
        python.parents[1] / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages",
        ["pytest"],
    )
    words = (python, "-m", "pytest", "-q", "-s", "-rs", "-p", "no:cacheprovider", tmp_path)
    environment = plain_environment() | {OUTSIDE: ropewalk_broker.namesrv}
    first, second = (run_command(*words, cwd=tmp_path, environment=environment) for _ in range(2))
    assert "1 passed, 1 skipped" in first and f"{OUTSIDE} is set" in first
    topics = [re.findall("topic (.*)", text) for text in (first, second)]
    assert topics[0] != topics[1], "what an earlier session left is not seen"


def test_a_client_without_a_broker_says_where_one_comes_from(python: Path) -> None:
    program = """
sys.modules["pytest"] = type(sys)("pytest")
sys.modules["pytest"].fixture = lambda *f, **options: f[0] if f else lambda function: function
from ropewalk.testing import BrokerDidNotStart, BrokerProcess
try:
    BrokerProcess()
except BrokerDidNotStart as exc:
    print(exc)
"""
    (line,) = run(python, program)
    assert "on Linux install ropewalk" in line and OUTSIDE in line
