"""Whole drills: real processes, a verdict, and nothing left behind. A verdict that cannot be bad is none."""

import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conftest import command_environment, command_line
from tests.tools.drill.planted import DRILL_BUGS
from tools.drill.drills import ALL_DRILLS, SECONDS_A_KILL

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 400


def drill(*words: str, home: Path, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run `ropewalk drill run` with its temporary files under `home`."""
    return subprocess.run(
        command_line("drill", "run", *words),
        env=command_environment() | {"TMPDIR": str(home)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def skip_without_small_disks(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode == 2 and "mount a tmpfs" in done.stderr:
        pytest.skip("a small disk can be mounted by root only")


def with_bug(name: str) -> str:
    return f"{sys.executable} -m tests.bugs.plant {name}"


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


class _Page(HTMLParser):
    """Checks that tags are closed in order, and that nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.fetched += [
            f"{tag} {name}={value}" for name, value in attrs if name in ("src", "srcset", "data")
        ]
        self.fetched += [
            f"{tag} {value}" for name, value in attrs if name == "href" and not (value or "").startswith("#")
        ]
        if tag not in ("meta", "br", "img", "link", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_page(path: Path, *words: str) -> None:
    """A page that is whole, fetches nothing, draws something, and says these words."""
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert not page.open
    assert not page.fetched
    assert {"svg", "rect", "line", "table", "style"} <= page.seen
    assert "script" not in page.seen and "link" not in page.seen
    text = " ".join(page.text)
    assert all(word in text for word in words), words


def assert_nothing_left(home: Path) -> None:
    assert not list(home.glob("ropewalk-drill-*"))
    running = [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if str(home).encode() in _read_quietly(path)
    ]
    assert not running


def _read_quietly(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_broker_that_keeps_its_promises_gets_a_clean_verdict_and_a_page(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = drill("kill-restart", "--seconds", "3", "--json", "--report", str(page), home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = document(done)
    assert (result["verdict"], result["reasons"]) == ("clean", [])
    audit = result["audit"]
    assert audit["acknowledged"] > 100
    assert (audit["lost"], audit["order_violations"], audit["findings"]) == (0, 0, [])
    assert len(result["faults_hit"]) == 2
    gap = result["write_gap"]
    assert gap["end"] - gap["begin"] > 0.1
    assert sum(result["series"]["acknowledged"]) == audit["acknowledged"]
    check_page(page, "kill-restart", "clean", "kill -9 node-1", "nothing could be stored")
    assert_nothing_left(tmp_path)


def test_a_broker_that_forgets_what_it_acknowledged_gets_a_bad_verdict(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = drill(
        *("kill-restart", "--seconds", "2", "--set", "checkAtStartBytes=0", "--report", str(page)),
        *("--ropewalk", with_bug("dispatch-forgotten-after-restart")),
        home=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "verdict: broken" in done.stdout
    assert "acknowledged but lost" in done.stdout
    check_page(page, "broken", "acknowledged but lost")
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("after_s", [0.3, 2.5])
def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path, after_s: float) -> None:
    process = subprocess.Popen(
        command_line("drill", "run", "kill-restart", "--seconds", "60"),
        env=command_environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 30
        while not list(tmp_path.glob("ropewalk-drill-*/node-1.conf")) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _out, errors = process.communicate(timeout=90)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert_nothing_left(tmp_path)


def test_a_drill_that_dies_without_a_word_takes_its_brokers_with_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command_line("drill", "run", "kill-restart", "--seconds", "60"),
        env=command_environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 30
    while not list(tmp_path.glob("ropewalk-drill-*/node-1-1.out")) and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    until = time.monotonic() + 30
    wanted = str(tmp_path).encode()
    while time.monotonic() < until:
        if not any(wanted in _read_quietly(path) for path in Path("/proc").glob("[0-9]*/cmdline")):
            return
        time.sleep(0.05)
    raise AssertionError("a broker goes on without its drill")


def test_a_cluster_that_does_not_start_gives_no_verdict_and_says_why(tmp_path: Path) -> None:
    done = drill("kill-restart", "--seconds", "2", "--set", "flushDiskTyp=x", home=tmp_path)
    assert done.returncode == 2
    assert "there is no key" in done.stderr
    assert "verdict:" not in done.stdout
    assert_nothing_left(tmp_path)


def test_a_master_and_its_slave_change_places_and_nothing_is_lost(tmp_path: Path) -> None:
    done = drill("switch", "--seconds", "4", "--json", "--keep", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = document(done)
    assert result["audit"]["acknowledged"] > 0
    assert result["replicas"]["equal"] is True
    assert result["faults_hit"] == ["node-2 took over from node-1", "node-1 took over from node-2"]
    assert set(result["series"]["lag"]) == {"node-1", "node-2"}
    links = {(link["source"], link["target"]) for link in result["links"]}
    wanted = {"node-1", "node-2", "clients", "namesrv"}
    # Everything that anybody said to anybody went through the proxy, and was told apart.
    assert {("clients", "node-1"), ("node-1", "node-2"), ("node-2", "namesrv")} <= links
    assert {end for link in links for end in link} <= wanted
    (folder,) = tmp_path.glob("ropewalk-drill-*")
    assert result["folder"] == str(folder)
    assert all(os.listdir(folder / name / "commitlog") for name in ("node-1", "node-2"))


def test_a_master_that_is_lost_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = drill("kill-master", "--seconds", "4", "--report", str(page), home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: clean" in done.stdout
    check_page(page, "node-1 is lost", "bytes behind the furthest log", "replicas byte-equal")
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("bug", DRILL_BUGS)
def test_a_planted_bug_ends_with_a_bad_verdict(bug: str, tmp_path: Path) -> None:
    """Chance has a part in what a lost master takes with it: a bug may hide from a drill or two."""
    name, said = DRILL_BUGS[bug]
    for _ in range(3):
        done = drill(name, "--seconds", "4", "--ropewalk", with_bug(bug), home=tmp_path)
        assert_nothing_left(tmp_path)
        if done.returncode != 0:
            break
    skip_without_small_disks(done)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"broken: {said}" in done.stdout


@pytest.mark.parametrize(("mode", "name"), [(drill.mode, drill.name) for drill in ALL_DRILLS])
def test_every_drill_ends_with_a_clean_verdict(mode: str, name: str, tmp_path: Path, long_run: bool) -> None:
    if not long_run:
        pytest.skip("all drills take minutes: `make test-long`")
    done = drill(name, "--mode", mode, "--json", home=tmp_path)
    skip_without_small_disks(done)
    assert done.returncode == 0, done.stdout + done.stderr
    result = document(done)
    assert (result["verdict"], result["audit"]["lost"], result["overlapping"]) == ("clean", 0, 0)
    assert result["faults_hit"]
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("mode", "name"), [("master-slave", "full-disk-master"), ("dledger", "full-disk-leader")]
)
def test_a_disk_that_traffic_fills_costs_the_oldest_segments_and_nothing_else(
    mode: str, name: str, tmp_path: Path, long_run: bool
) -> None:
    if not long_run:
        pytest.skip(
            "a disk that is filled takes minutes, and `tests/crash/test_full_disk.py` fills one: `make test-long`"
        )
    done = drill(name, "--mode", mode, "--seconds", "4", "--json", home=tmp_path)
    skip_without_small_disks(done)
    assert done.returncode == 0, done.stdout + done.stderr
    audit = document(done)["audit"]
    assert 0 < audit["removed"] < audit["acknowledged"] and audit["lost"] == 0
    assert_nothing_left(tmp_path)


def test_a_group_that_elects_its_leader_outlives_it_and_loses_nothing(tmp_path: Path) -> None:
    done = drill("kill-leader", "--mode", "dledger", "--seconds", "4", "--json", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = document(done)
    assert result["audit"]["acknowledged"] > 0
    assert (result["audit"]["lost"], result["overlapping"], result["replicas"]["equal"]) == (0, 0, True)
    assert len(result["faults_hit"]) == 2
    assert_nothing_left(tmp_path)


def test_a_hundred_kills_of_either_side_lose_nothing(tmp_path: Path, long_run: bool) -> None:
    if not long_run:
        pytest.skip("a hundred kills take minutes: `make test-long`")
    kills = 100
    done = drill(
        "kill-any", "--seconds", str(kills * SECONDS_A_KILL), "--json", home=tmp_path, timeout_s=3600
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    result = document(done)
    assert len(result["faults_hit"]) == kills
    assert (result["audit"]["lost"], result["replicas"]["equal"]) == (0, True)
    assert_nothing_left(tmp_path)
