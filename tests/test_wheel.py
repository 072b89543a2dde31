"""What `pip install` puts into a user's environment, seen from an environment that has nothing else.

The wheel and the source archive are built without a network, and installed without their dependencies:
those are lent by the environment of the tests through a path file, which does not lend the checkout.
"""

import json
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.installs import build_wheel, install_alone, plain_environment
from tests.support.installs import run_command as run
from tests.support.processes import READY_KEYS, ROOT, running_broker

ROOMS = ("store", "ha", "broker", "tools")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site_packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of an environment in which the wheel is the only thing installed."""
    return install_alone(wheel, tmp_path_factory.mktemp("empty") / "venv")


@pytest.fixture(scope="module")
def installed(site_packages: Path) -> list[str]:
    """The words that start the installed command, with the dependencies lent to it."""
    lent = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (site_packages / "lent_dependencies.pth").write_text("\n".join(lent) + "\n")
    return [str(site_packages.parents[2] / "bin" / "ropewalk")]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of the tests without what could lead Python to the checkout."""
    return plain_environment()


def test_ropewalk_is_the_only_name_that_reaches_site_packages(wheel: Path, site_packages: Path) -> None:
    names = {path.name for path in site_packages.iterdir() if path.suffix not in (".dist-info", ".pth")}
    assert names == {"ropewalk"}
    scripts = {path.name for path in (site_packages.parents[2] / "bin").iterdir()}
    assert {name for name in scripts if not name.lower().startswith(("activate", "python"))} == {"ropewalk"}
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/", 1)[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ropewalk"}


def test_the_wheel_carries_every_module_of_every_room_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        assert "License-Expression: Apache-2.0" in archive.read(metadata).decode()
    for room in ROOMS:
        expected = {
            f"ropewalk/_rooms/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / room).rglob("*.py")
        }
        assert expected and expected <= carried
    assert not [name for name in carried if "__pycache__" in name or name.startswith("ropewalk/tests")]
    assert "ropewalk/py.typed" in carried


def test_the_source_archive_can_build_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "tests/test_wheel.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "ropewalk-data"))]
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    run("tar", "-xzf", archive, "-C", unpacked, cwd=tmp_path)
    (source,) = unpacked.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as rebuilt, zipfile.ZipFile(wheel) as original:
        assert sorted(rebuilt.namelist()) == sorted(original.namelist())


def test_an_editable_install_is_a_path_and_no_copy(tmp_path: Path) -> None:
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert len(names) == 1 and names[0].endswith(".pth"), "copies would grow stale beside the checkout"
        assert archive.read(names[0]).decode().strip() == str(ROOT)


def test_the_installed_package_is_imported_and_not_the_checkout(
    installed: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    python = Path(installed[0]).with_name("python")
    code = "import ropewalk.__main__ as entrance; print(entrance.__file__)"
    found = Path(run(python, "-c", code, cwd=tmp_path, environment=environment).strip())
    assert found.is_relative_to(python.parents[1])
    code = f"import importlib.util as u; print([name for name in {ROOMS} if u.find_spec(name)])"
    assert run(python, "-c", code, cwd=tmp_path, environment=environment).strip() == "[]"


def test_the_installed_command_explains_itself(
    installed: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    text = run(*installed, "--help", cwd=tmp_path, environment=environment)
    for command in ("produce", "consume", "pull"):
        assert command in text


@pytest.mark.slow
def test_the_installed_package_brings_its_pytest_fixtures(
    installed: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_user.py").write_text(
        "def test_it(ropewalk_broker):\n"
        "    topic = ropewalk_broker.topic('orders')\n"
        "    ropewalk_broker.send(topic, 'order 7')\n"
        "    assert [record.body for record in ropewalk_broker.messages(topic, 1)] == [b'order 7']\n"
    )
    python = Path(installed[0]).with_name("python")
    words = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path)
    assert "1 passed" in run(*words, cwd=tmp_path, environment=environment)


@pytest.mark.slow
def test_the_installed_command_serves_produces_and_consumes(
    installed: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    with running_broker(installed, "--ephemeral", cwd=tmp_path, environment=environment) as broker:
        assert set(broker.ready) >= READY_KEYS
        assert not Path(broker.ready["dataDir"]).is_relative_to(ROOT)

        def ropewalk(command: str, *arguments: str) -> str:
            words = (*installed, command, "-n", broker.namesrv, *arguments)
            return run(*words, cwd=tmp_path, environment=environment)

        ropewalk("produce", "demo", "hello")
        assert "hello" in ropewalk("consume", "demo", "--from", "earliest", "--count", "1")
        told = json.loads(
            ropewalk("consume", "demo", "--from", "earliest", "--count", "1", "--json").splitlines()[0]
        )
        assert told["topic"] == "demo"
    assert broker.process.returncode == 0, "a stop that was asked for is not a failure"
    assert not Path(broker.ready["dataDir"]).exists(), "--ephemeral leaves nothing behind"


@pytest.mark.slow
def test_the_index_builder_of_an_installed_broker_is_found(
    installed: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    with running_broker(installed, "--ephemeral", cwd=tmp_path, environment=environment) as broker:

        def ropewalk(*words: str) -> str:
            server = ("--name-server", broker.namesrv)
            return run(*installed, *words, *server, cwd=tmp_path, environment=environment)

        ropewalk("produce", "demo", "hello", "--keys", "k1")
        assert "hello" in ropewalk("admin", "message", "by-key", "demo", "k1")
    assert "helper ended" not in (tmp_path / "broker-stderr.txt").read_text()


@pytest.mark.slow
def test_the_installed_command_carries_out_a_drill(
    installed: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    words = ("drill", "run", "kill-restart", "--seconds", "1")
    told = run(*installed, *words, cwd=tmp_path, environment=environment)
    assert "verdict: clean" in told, "its brokers and its load are processes of their own"
