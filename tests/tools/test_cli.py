import subprocess
import sys

import pytest

import ropewalk as package
from broker.options import BrokerOptions, NamesrvOptions
from ropewalk.codes import RequestCode
from tests.ropewalk.client.fake_cluster import FakeCluster
from tests.ropewalk.client.test_blocking import free_port
from tests.tools.conftest import ROOT, RunCommand, command_environment


def test_help_names_every_command(ropewalk: RunCommand) -> None:
    ended = ropewalk("--help")
    assert ended.status == 0
    for command in ("broker", "namesrv", "produce", "consume", "pull", "store", "bench"):
        assert f"│ {command} " in ended.out.decode()


def test_the_version_is_the_packages(ropewalk: RunCommand) -> None:
    assert ropewalk("--version").lines == [f"ropewalk {package.__version__}"]


def test_help_and_the_clients_import_neither_server_nor_spark() -> None:
    """A command line that takes a second to say `--help` is a command line people avoid."""
    program = (
        "import sys, tools.cli, tools.produce, tools.consume, tools.message_input\n"
        "heavy = {'trio', 'anyio', 'pyspark', 'store', 'broker', 'structlog', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=command_environment(), capture_output=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


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
    assert f"Usage: ropewalk {name}" in ended.out.decode()


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
            BrokerOptions(None, "a:1;b:2", ("x=1", "y=2"), True, 0, False, True),
        ),
        (("--print-config",), BrokerOptions(print_config=True)),
    ],
)
def test_the_broker_gets_its_options_as_they_were_spelled(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], options: BrokerOptions
) -> None:
    given: list[object] = []
    monkeypatch.setattr("broker.process.run_broker", given.append)
    run_in_process("broker", *words)
    assert given == [options]


def test_the_name_server_gets_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr("broker.process.run_namesrv", given.append)
    run_in_process("namesrv", "-p", "0")
    assert given == [NamesrvOptions(0, "127.0.0.1", False)]


def test_a_setting_without_a_value_is_wrong_use(ropewalk: RunCommand) -> None:
    ended = ropewalk("broker", "--set", "flushDiskType")
    assert ended.status == 2
    assert "flushDiskType" in ended.errors


def test_an_unknown_key_is_wrong_use_and_names_the_nearest(ropewalk: RunCommand) -> None:
    ended = ropewalk("broker", "--set", "flushDiskTyp=SYNC_FLUSH")
    assert ended.status == 2
    assert "flushDiskType" in ended.errors


def run_in_process(*words: str) -> None:
    from typer.testing import CliRunner

    from tools.cli import app

    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
