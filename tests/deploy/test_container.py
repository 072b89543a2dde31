"""The image and the compose file: linted as far as no builder is needed, and their entry run by hand."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.settings.keys import KEYS
from tests.support.ports import free_ports
from tests.support.processes import ROOT, checkout_command, checkout_environment, first_line, stop

FOLDER = ROOT / "deploy" / "container"
ENTRY = FOLDER / "entrypoint.sh"
VARIABLES = {variable: key for key in KEYS.values() for variable in key.variables}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile in order, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def arguments(name: str) -> list[str]:
    return [words for instruction, words in instructions() if instruction == name]


def test_the_base_has_a_version_and_no_registry() -> None:
    [default] = arguments("ARG")
    name, _, tag = default.removeprefix("PYTHON=").partition(":")
    assert "/" not in name and "." not in name
    assert re.fullmatch(r"3\.\d+-slim", tag)
    assert {words.split()[0] for words in arguments("FROM")} == {"${PYTHON}"}


def test_nothing_runs_as_root_and_every_process_gets_its_signals() -> None:
    [user] = arguments("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "by number, and not root"
    last = max(index for index, (name, _) in enumerate(instructions()) if name == "FROM")
    after = [name for name, _ in instructions()[last:]]
    assert "USER" in after and "RUN" not in after[after.index("USER") :]
    for name in ("ENTRYPOINT", "CMD"):
        [words] = arguments(name)
        assert json.loads(words), "a list of words: a shell in front would keep the signals to itself"
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_is_small_and_reproducible() -> None:
    assert not arguments("ADD")
    assert sum(name == "FROM" for name, _ in instructions()) == 2, "what builds is left behind"
    for words in arguments("RUN"):
        assert "pip install" not in words or "--no-cache-dir" in words
        assert "apt" not in words and "curl" not in words and "sudo" not in words


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in ignored
    for words in arguments("COPY"):
        if words.startswith("--from"):
            continue
        for source in words.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source
    assert os.access(ENTRY, os.X_OK)


def test_the_ports_are_the_brokers() -> None:
    listen = KEYS["listenPort"].default
    assert isinstance(listen, int)
    [words] = arguments("EXPOSE")
    assert {int(port) for port in words.split()} == {
        listen, listen - 2, listen + 1, KEYS["namesrvPort"].default, 5557,
    }  # fmt: skip


def test_the_health_check_is_the_entrys() -> None:
    [words] = arguments("HEALTHCHECK")
    command = json.loads(words[words.index("[") :])
    assert command == [json.loads(arguments("ENTRYPOINT")[0])[0], "health"]
    assert f"/usr/local/bin/{command[0]}" in " ".join(arguments("COPY"))


# -- the compose file ------------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    """Return the compose file, read by the first Python that knows YAML."""
    for python in (sys.executable, "/usr/bin/python3"):
        if shutil.which(python) is None:
            continue
        program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"
        ended = subprocess.run(
            [python, "-c", program, str(FOLDER / "compose.yaml")],
            capture_output=True, text=True, check=False, env={"PATH": os.defpath},
        )  # fmt: skip
        if ended.returncode == 0:
            found: dict[str, Any] = json.loads(ended.stdout)
            return found
        assert "yaml'" in ended.stderr, ended.stderr
    pytest.skip("no Python here reads YAML (apt install python3-yaml)")


def test_the_three_services_know_each_other() -> None:
    services = compose()["services"]
    assert set(services) == {"namesrv", "master", "slave"}
    master, slave = services["master"]["environment"], services["slave"]["environment"]
    assert master["ROPEWALK_NAMESRV_ADDR"] == slave["ROPEWALK_NAMESRV_ADDR"] == "namesrv:9876"
    assert master["ROPEWALK_BROKER_NAME"] == slave["ROPEWALK_BROKER_NAME"]
    assert (master["ROPEWALK_BROKER_ROLE"], slave["ROPEWALK_BROKER_ROLE"]) == ("SYNC_MASTER", "SLAVE")
    assert slave["ROPEWALK_BROKER_ID"] == "1"
    for name in ("master", "slave"):
        environment = services[name]["environment"]
        assert environment["ROPEWALK_BROKER_IP2"] == name
        assert environment["ROPEWALK_BROKER_IP1"].endswith(f":-{name}}}")
        assert services[name]["depends_on"] == {"namesrv": {"condition": "service_healthy"}}
        listen = int(environment.get("ROPEWALK_LISTEN_PORT", 10911))
        assert {f"{listen}:{listen}", f"{listen - 2}:{listen - 2}"} <= set(services[name]["ports"])
    host_ports = [port.split(":")[0] for service in services.values() for port in service["ports"]]
    assert len(host_ports) == len(set(host_ports))


def test_every_variable_is_a_key_and_every_value_is_allowed() -> None:
    for service in compose()["services"].values():
        for variable, value in service.get("environment", {}).items():
            key = VARIABLES[variable]
            assert not key.choices or value in key.choices, variable
    named = set(re.findall(r"\bROPEWALK_[A-Z]\w+", ENTRY.read_text()))
    assert named <= set(VARIABLES), named - set(VARIABLES)


def test_every_service_is_locked_in() -> None:
    for name, service in compose()["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name


# -- the entry, run by hand ------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose `ropewalk` is the checkout's, and whose store is in a temporary folder."""
    program = tmp_path / "bin" / "ropewalk"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec " + " ".join(checkout_command()) + ' "$@"\n')
    program.chmod(0o755)
    return checkout_environment() | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "ROPEWALK_STORE_PATH_ROOT_DIR": str(tmp_path / "data"),
        "ROPEWALK_MAPPED_FILE_SIZE_COMMIT_LOG": "4194304",
    }


@contextmanager
def entry(
    environment: Mapping[str, str], *words: str
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    process = subprocess.Popen(
        [ENTRY, *words], env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield process, json.loads(first_line(process, 30) or b"{}")
    finally:
        stop(process)


def health(environment: Mapping[str, str], *words: str) -> tuple[int, str]:
    ended = subprocess.run(
        [ENTRY, "health", *words],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return ended.returncode, (ended.stdout + ended.stderr).strip()


def test_a_broker_listens_everywhere_advertises_its_address_and_gets_the_signal(
    environment: dict[str, str], tmp_path: Path
) -> None:
    [metrics] = free_ports(1)
    environment |= {
        "ROPEWALK_BROKER_IP1": "localhost",
        "ROPEWALK_LISTEN_PORT": "0",
        "ROPEWALK_NAMESRV_PORT": "0",
        "ROPEWALK_METRICS_PROM_EXPORTER_PORT": str(metrics),
    }
    with entry(environment, "broker", "--json") as (process, ready):
        assert str(ready["broker"]).startswith("localhost:")
        assert ready["dataDir"] == str(tmp_path / "data")
        port = int(str(ready["broker"]).rpartition(":")[2])
        listening = Path("/proc/net/tcp").read_text()
        assert f" 00000000:{port:04X} 00000000:0000 0A" in listening, "on all addresses"
        status, page = health(environment)
        assert (status, page.split("\n")[0]) == (0, "ready") and "no users and no TLS" in page
        assert stop(process) == 0, "the entry is the broker itself by then, and stops in good order"
    status, text = health(environment)
    assert status == 1 and text.startswith("the broker does not answer")


def test_a_name_server_and_its_health(environment: dict[str, str]) -> None:
    [port] = free_ports(1)
    environment["ROPEWALK_NAMESRV_PORT"] = str(port)
    assert health(environment, "namesrv")[0] == 1
    with entry(environment, "namesrv", "--port", str(port), "--json") as (_process, ready):
        assert ready["namesrv"] == f"0.0.0.0:{port}"
        assert health(environment, "namesrv") == (0, "")


def test_any_other_word_is_a_command(environment: dict[str, str]) -> None:
    ended = subprocess.run(
        [ENTRY, "store", "--help"], env=environment, capture_output=True, text=True, timeout=180, check=True
    )
    assert "verify" in ended.stdout
