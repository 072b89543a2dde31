import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk as package
from broker.process.options import BrokerOptions, NamesrvOptions
from ropewalk.codes import RequestCode
from tests.ropewalk.client.fake_cluster import FakeCluster
from tests.support.ports import free_port
from tests.tools.conftest import ROOT, RunCommand, command_environment, command_line
from tools.common.mqadmin import COUNTERPARTS
from tools.common.output import print_table
from tools.documents.commands import commands


def test_help_names_every_command(ropewalk: RunCommand) -> None:
    ended = ropewalk("--help")
    assert ended.status == 0
    for command in ("broker", "namesrv", "produce", "consume", "pull", "store", "bench"):
        assert f"│ {command} " in ended.out.decode()


def test_the_version_is_the_packages(ropewalk: RunCommand) -> None:
    assert ropewalk("--version").lines == [f"ropewalk {package.__version__}"]


@pytest.mark.parametrize("command", ["--version", "broker --print-config", "namesrv --help"])
def test_a_start_looks_for_no_garbage_among_what_its_modules_make(command: str) -> None:
    program = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(sum(each['collections'] for each in gc.get_stats()) - before))\n"
        f"sys.argv = ['ropewalk', *{command.split()!r}]\n"
        "from ropewalk.__main__ import main\n"
        "before = sum(each['collections'] for each in gc.get_stats())\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=command_environment(), capture_output=True, check=True
    )
    assert int(ended.stdout.split()[-1]) <= 2


def test_help_and_the_clients_import_neither_server_nor_spark() -> None:
    """A command line that takes a second to say `--help` is a command line people avoid."""
    program = (
        "import sys, tools.cli, tools.messages.produce, tools.messages.consume, tools.messages.input\n"
        "heavy = {'trio', 'anyio', 'pyspark', 'store', 'broker', 'structlog', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=command_environment(), capture_output=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_server_starts_without_what_only_a_terminal_needs() -> None:
    program = (
        "import atexit, sys\n"
        "unwanted = {'rich', 'pygments', 'pydantic'}\n"
        "atexit.register(lambda: print(*sorted(unwanted & set(sys.modules)), file=sys.stderr))\n"
        "sys.argv[1:] = ['broker', '--print-config']\n"
        "from ropewalk.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=command_environment(), capture_output=True, check=True
    )
    assert ended.stdout and not ended.stderr.strip()


@pytest.mark.parametrize(
    "words",
    [
        ("broker", "--help"),
        ("namesrv", "--help"),
        ("produce", "--help"),
        ("consume", "-h"),
        ("pull", "-h"),
        ("store", "dump", "--help"),
        ("store", "-h"),
        ("bench", "--help"),
        ("bench", "produce", "-h"),
    ],
)
def test_every_command_explains_itself(ropewalk: RunCommand, words: tuple[str, ...]) -> None:
    ended = ropewalk(*words)
    assert ended.status == 0
    name = " ".join(word for word in words if not word.startswith("-"))
    text = ended.out.decode()
    assert f"Usage: ropewalk {name}" in text
    assert "<bool>" not in text and "...}" not in text, "a flag takes no value, and a list one ellipsis"


@pytest.mark.parametrize("words", [("nonsense",), ("produce",), ("consume", "--from"), ("store", "nonsense")])
def test_wrong_use_exits_with_2(ropewalk: RunCommand, words: tuple[str, ...]) -> None:
    assert ropewalk(*words).status == 2


@pytest.mark.parametrize("words", [("produce", "T", "x"), ("consume", "T"), ("pull", "T")])
def test_without_a_name_server_a_client_says_how_to_start_one(
    ropewalk: RunCommand, words: tuple[str, ...]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = ropewalk(*words, "-n", address)
    assert ended.status == 1
    assert f"error: no name server at {address}" in ended.errors
    assert "ropewalk namesrv" in ended.errors
    as_json = ropewalk(*words, "-n", address, "--json")
    assert as_json.status == 1
    assert as_json.errors.startswith('{"error":"no name server at ')


def test_without_a_name_server_a_load_says_what_every_client_says(ropewalk: RunCommand) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = ropewalk("bench", "produce", "-n", address)
    assert (ended.status, ended.out) == (1, b"")
    assert ended.errors == ropewalk("pull", "T", "-n", address).errors


def test_a_broker_in_the_place_of_a_name_server_is_told_apart(
    ropewalk: RunCommand, cluster: FakeCluster
) -> None:
    cluster.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: request.reply(3, "not supported")
    ended = ropewalk("consume", "T")
    assert ended.status == 1
    assert "-n wants a name server" in ended.errors


def test_a_name_server_that_is_no_address_is_wrong_use(ropewalk: RunCommand) -> None:
    ended = ropewalk("consume", "T", "-n", "nowhere:port")
    assert ended.status == 2
    assert "host:port" in ended.errors


def test_the_flag_wins_over_the_environment(ropewalk: RunCommand) -> None:
    ended = ropewalk("produce", "T", "x", name_server=f"127.0.0.1:{free_port()}")
    assert ended.status == 1


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), BrokerOptions()),
        (
            ("-n", "a:1;b:2", "--set", "x=1", "--set", "y=2", "--namesrv-port", "0", "--ephemeral", "--json"),
            BrokerOptions(None, "a:1;b:2", ("x=1", "y=2"), True, 0, json=True),
        ),
        (("--print-config",), BrokerOptions(print_config=True)),
    ],
)
def test_the_broker_gets_its_options_as_they_were_spelled(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], options: BrokerOptions
) -> None:
    given: list[object] = []
    monkeypatch.setattr("broker.process.main.run_broker", given.append)
    run_in_process("broker", *words)
    assert given == [options]


def test_the_name_server_gets_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr("broker.process.namesrv.run_namesrv", given.append)
    run_in_process("namesrv", "-p", "0")
    assert given == [NamesrvOptions(0, "127.0.0.1", False)]


def test_a_setting_without_a_value_is_wrong_use(ropewalk: RunCommand) -> None:
    ended = ropewalk("broker", "--set", "flushDiskType")
    assert ended.status == 2
    assert "flushDiskType" in ended.errors


@pytest.mark.parametrize("given", ["foo", "foo:x", "http://foo:9876"])
def test_a_bad_name_server_of_a_broker_is_told_by_its_option(ropewalk: RunCommand, given: str) -> None:
    ended = ropewalk("broker", "-n", given)
    assert ended.status == 2
    assert f"error: -n {given}: " in ended.errors and "host:port" in ended.errors


def test_an_unknown_key_is_wrong_use_and_names_the_nearest(ropewalk: RunCommand) -> None:
    ended = ropewalk("broker", "--set", "flushDiskTyp=SYNC_FLUSH")
    assert ended.status == 2
    assert "flushDiskType" in ended.errors


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_a_narrow_terminal_breaks_sentences_and_neither_numbers_nor_addresses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    whole = ("broker-a", 722301938, "127.0.0.1:10911", "2026-11-22 08:47:00.790+00:00")
    sentence = "its checksum is not that of its bytes, and it is served to nobody"
    print_table(("broker", "log end", "address", "stored", "what"), [(*whole, sentence)])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    if width < 100:
        values = dict(line.split(maxsplit=1) for line in out.replace("log end", "log-end").splitlines())
        assert list(values.values()) == [*map(str, whole), sentence], "a line for each, whole"
        return
    head, first, *rest = out.splitlines()
    assert head.split() == ["broker", "log", "end", "address", "stored", "what"]
    assert first.startswith("  ".join(map(str, whole)) + "  its checksum is")
    assert " ".join([first, *rest]).split()[5:] == sentence.split()
    assert bool(rest) == (width == 100), "folded where that helps, and nowhere else"


# Output that cannot be written, and Ctrl-C at any time


def shell(
    cluster: FakeCluster, tmp_path: Path, script: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    program = shlex.join(command_line())
    return subprocess.run(
        ["bash", "-c", script.replace("ropewalk", program)],
        capture_output=True,
        env=command_environment(cluster.address) | environment,
        cwd=tmp_path,
        timeout=60,
        check=False,
        text=True,
    )


@pytest.mark.parametrize("words", ["--help", "store --help", "produce T a b", "produce T a --json", "pull T"])
def test_a_reader_that_is_gone_is_no_failure(cluster: FakeCluster, tmp_path: Path, words: str) -> None:
    cluster.create_topic("T")
    ended = shell(cluster, tmp_path, f"(sleep 1; ropewalk {words}; echo $? >status) | true")
    assert ((tmp_path / "status").read_text(), ended.stderr) == ("141\n", "")


@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    ("words", "done"),
    [
        ("produce T a", "1 message acknowledged"),
        ("produce T a --json", "1 message acknowledged"),
        ("consume T", "1 message from T handled"),
        ("pull T", ""),
        ("--version", ""),
    ],
)
def test_output_that_cannot_be_written_is_told_with_what_was_done(
    cluster: FakeCluster, tmp_path: Path, words: str, done: str, where: str
) -> None:
    cluster.create_topic("T", 1)
    cluster.put("T", 0, b"stored before")
    ended = shell(cluster, tmp_path, f"ropewalk {words} {where}")
    assert ended.returncode == 1
    assert "cannot write to standard output: " in ended.stderr and "Traceback" not in ended.stderr
    assert done in ended.stderr


def test_what_the_locale_cannot_print_is_printed_as_escapes(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.create_topic("T", 1)
    cluster.put("T", 0, "wörld 世".encode())
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    ended = shell(cluster, tmp_path, "ropewalk pull T", **ascii_only)
    assert ended.returncode == 0, ended.stderr
    assert r"w\xf6rld \u4e16" in ended.stdout
    ended = shell(cluster, tmp_path, "ropewalk pull T --json", **ascii_only)
    assert json.loads(ended.stdout)["messages"][0]["body"] == "wörld 世"


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (("consume", "T"), "tools.cli"),
        (("consume", "T"), "tools.messages.consume"),
        (("bench", "produce"), "tools.bench.cli"),
        (("store", "dump", "."), "store.offline.reader"),
        (("broker",), "broker.process.main"),
        (("namesrv",), "broker.process.namesrv"),
    ],
)
def test_ctrl_c_during_imports_is_silent(words: tuple[str, ...], module: str, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"sys.argv[1:] = {list(words)!r}\n"
        "from ropewalk.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env=command_environment(),
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def run_in_process(*words: str) -> None:
    from typer.testing import CliRunner

    from tools.cli import app

    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output


def test_a_mistyped_command_is_answered_with_the_nearest_one(ropewalk: RunCommand) -> None:
    for words, nearest in (
        (("prduce",), "produce"),
        (("admin", "topc"), "topic"),
        (("admin", "topic", "creat"), "create"),
        (("admin", "ha", "failovr"), "failover"),
        (("store", "verfy"), "verify"),
    ):
        ended = ropewalk(*words)
        assert ended.status == 2 and f"'{nearest}'" in ended.errors, ended


def test_a_command_of_mqadmin_is_answered_with_its_counterpart(ropewalk: RunCommand) -> None:
    known = {name.removeprefix("admin ") for name, _ in commands() if name.startswith("admin ")}
    assert {words for each in COUNTERPARTS.values() for words in each} <= known
    for name, counterpart in (("updateTopic", "topic create"), ("clusterlist", "broker list")):
        ended = ropewalk("admin", name, "-n", "127.0.0.1:1")
        assert ended.status == 2 and f"`ropewalk admin {counterpart}`" in " ".join(ended.errors.split()), (
            ended
        )
