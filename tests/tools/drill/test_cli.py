from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools.conftest import RunCommand
from tools.drill.drills import ALL_DRILLS, Drill


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-drill"], "there is no drill 'no-such-drill'; there are: kill-restart, kill-master"),
        (["kill-restart", "--report", "/no/such/folder/x.html"], "cannot write /no/such/folder/x.html"),
        (["kill-restart", "--set", "flushDiskType"], "is not name=value"),
        (
            ["switch", "--ropewalk", "/no/such/ropewalk"],
            "no verdict: cannot run /no/such/ropewalk: No such file",
        ),
        (["switch", "--ropewalk", "ropewalk 'x"], "is no command: No closing quotation"),
        (["switch", "--broker", "a"], "give its name server with --name-server"),
        (["kill-master", "-n", "127.0.0.1:1", "--yes"], "there are only switch, failover; not kill-master"),
        (["all", "-n", "127.0.0.1:1", "--yes"], "on a live group there are only"),
        (["switch", "-n", "127.0.0.1:1", "--set", "a=b", "--yes"], "a live group is taken as it is"),
        (["switch", "-n", "127.0.0.1", "--yes"], "is not an address"),
        (["switch", "-n", "127.0.0.1:1"], "there is no terminal to answer on; add --yes"),
        (["switch", "-n", "127.0.0.1:1", "--yes"], "no verdict: cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_started(
    words: Sequence[str], said: str, ropewalk: RunCommand
) -> None:
    done = ropewalk("drill", "run", *words)
    assert done.status == 2
    assert said in done.errors
    assert not done.out


@pytest.mark.parametrize(
    "drill", [drill for drill in ALL_DRILLS if drill.small_disk], ids=lambda drill: drill.name
)
def test_a_drill_that_cannot_mount_its_small_disk_says_so_and_gives_no_verdict(
    drill: Drill, ropewalk: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = ropewalk("drill", "run", drill.name, "--mode", drill.mode)
    assert done.status == 2 and not done.out
    assert f"{drill.name}: no verdict: a small disk cannot be mounted" in done.errors


def test_every_drill_is_listed_with_what_it_does(ropewalk: RunCommand) -> None:
    done = ropewalk("drill", "list")
    assert done.status == 0
    assert [line.split()[0] for line in done.lines[1:]] == [drill.name for drill in ALL_DRILLS]
    listed = ropewalk("drill", "list", "--json").document
    assert [row["name"] for row in listed["drills"]] == [drill.name for drill in ALL_DRILLS]
    assert all(row["title"] and row["expects"] for row in listed["drills"])
