"""Real processes: switches under load, a master that is killed, and what becomes of it when it returns."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from broker.replication.slave.hello import COMPARE_S
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message, SendStatus, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode
from store.log.durable_bound import decode_bound
from tests.ha.process_group import BROKER, SEGMENT_SIZE, Group, Load, Replica, group_of
from tests.support.long_run import ROOM_S
from tests.support.metadata import GROUP, TOPIC, call, has_plan, plan
from tests.support.processes import checkout_command, checkout_environment


def equal_logs(group: Group, *names: str) -> bool:
    try:
        first, *others = (group.replicas[name].log() for name in names)
    except FileNotFoundError:  # a file gets its name, or goes, while it is looked for
        return False
    return all(other == first for other in others)


@pytest.mark.slow
def test_switches_under_load_lose_nothing_and_leave_equal_logs(tmp_path: Path) -> None:
    with group_of(tmp_path, "b") as group:
        gaps = []
        with Load(group, "demo") as load:
            load.until(20)
            for master in ("b", "a"):
                report = group.admin("switch", BROKER)
                assert report["newMaster"] == group.replicas[master].address
                gaps.append(report["gapMs"])
                load.until(20)
                group.until_followed(master)
        found = group.consume("demo")
        assert set(load.acknowledged) <= set(found)
        assert len(found) == len(set(found)), "nothing was stored twice by the group"
        group.until(lambda: group.row_of("a")["epoch"] == 2, "the second epoch")
        group.until(lambda: group.row_of("b")["role"] == "SLAVE", "b is a slave again")
        group.until(lambda: equal_logs(group, "a", "b"), "the logs are the same")
        assert max(gaps) < 5_000 + ROOM_S * 1000


@pytest.mark.slow
def test_after_a_kill_and_a_failover_everything_acknowledged_is_there_and_the_old_master_follows_and_says_so(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "b") as group:
        with Load(group, "demo") as load:
            load.until(50)
            group.kill("a")
        before = list(load.acknowledged)
        refused = group.admin("switch", BROKER, status=1)
        assert "failover" in refused["error"]
        report = group.admin("failover", BROKER)
        assert report["newMaster"] == group.replicas["b"].address and report["atRisk"] is None
        assert set(before) <= set(group.consume("demo"))
        ready = group.start("a").ready
        told = ready["mode"].split(" ")[0], ready["brokerId"], ready["epoch"]
        assert told == ("SLAVE", 1, 1), "the ready line tells the role that it has, not the one that it had"
        group.until_followed("b")
        group.until(lambda: group.row_of("a")["brokerId"] == 1, "a is a slave")
        with Load(group, "demo") as load:
            load.until(10)
        group.until(lambda: equal_logs(group, "a", "b"), "the logs are the same")
        assert {*before, *load.acknowledged} <= set(group.consume("demo"))
        role = json.loads((group.replicas["a"].root / "ropewalk" / "role.json").read_text())
        assert (role["role"], role["brokerId"], role["epoch"]) == ("SLAVE", 1, 1)


@pytest.mark.slow
def test_a_returning_master_keeps_aside_what_only_it_had(tmp_path: Path) -> None:
    with group_of(tmp_path, "b") as group:
        with Load(group, "demo") as load:
            load.until(20)
        group.kill("b")
        done = subprocess.run(
            [*checkout_command(), "produce", "demo", "only here", "nobody else", "-n", group.namesrv],
            cwd=tmp_path, env=checkout_environment(), capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert "SEND_OK" not in done.stdout, "no slave had it"
        group.kill("a")
        group.start("b")
        report = group.admin("failover", BROKER)
        assert report["newMaster"] == group.replicas["b"].address
        group.start("a")
        group.until_followed("b")
        with Load(group, "demo") as more:
            more.until(10)
        group.until(lambda: equal_logs(group, "a", "b"), "the logs are the same")
        found = group.consume("demo")
        assert {*load.acknowledged, *more.acknowledged} <= set(found) and b"only here" not in found
        listed = subprocess.run(
            [*checkout_command(), "store", "diverged", str(group.replicas["a"].root), "-m", "all"],
            cwd=tmp_path, env=checkout_environment(), capture_output=True, text=True, timeout=180, check=True,
        )  # fmt: skip
        bodies = [json.loads(line)["body"] for line in listed.stdout.splitlines()]
        assert bodies == ["only here", "nobody else"]


def lose_power(replica: Replica) -> None:
    """Leave of a dead broker's log what a loss of power leaves that was not flushed: nothing, here of its second half.

    The kernel still has it, so zeros are written where the disk would have none of it. What a flush has reached on a
    slow day stays, further than the half.
    """
    path = next(each for each in sorted((replica.root / "commitlog").iterdir()) if each.name.isdigit())
    data, starts = path.read_bytes(), [0]
    while size := int.from_bytes(data[starts[-1] : starts[-1] + 4], "big"):
        starts.append(starts[-1] + size)
    bound = decode_bound((replica.root / "ropewalk" / "bound").read_bytes())
    flushed = bound.flushed if bound is not None else 0
    cut = next(start for start in starts[len(starts) // 2 :] if start >= flushed)
    assert cut < starts[-1], "all of it was flushed"
    path.write_bytes(data[:cut] + bytes(len(data) - cut))


@pytest.mark.slow
def test_a_sync_master_that_comes_back_shorter_waits_with_its_slave_for_an_operator_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "b") as group:
        with Load(group, "demo") as load:
            load.until(50)
        group.kill("a")
        lose_power(group.replicas["a"])
        ready = group.start("a").ready
        assert "acknowledged messages may be on the slave alone" in ready["sendOk"], ready
        group.until(lambda: "nothing is cut" in group.row_of("b")["link"], "the slave keeps what it has")
        assert "it takes no messages" in group.row_of("a")["link"]
        for name in "a", "b":
            assert f"`ropewalk admin ha switch {BROKER}`" in group.row_of(name)["link"]
        assert not (group.replicas["b"].root / "ropewalk" / "diverged").exists()
        refused = group.admin("failover", BROKER, status=1)
        assert "ropewalk admin ha switch" in refused["error"]
        assert group.admin("switch", BROKER)["newMaster"] == group.replicas["b"].address
        group.until_followed("b")
        assert set(load.acknowledged) <= set(group.consume("demo"))
        group.until(lambda: equal_logs(group, "a", "b"), "the logs are the same")


@pytest.mark.slow
def test_where_a_shorter_master_went_on_alone_its_slave_keeps_what_was_acknowledged_until_it_is_promoted(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "b") as group:
        with Load(group, "demo") as load:
            load.until(30)
        group.kill("b")
        group.kill("a")
        lose_power(group.replicas["a"])
        group.start("a")
        client = Client(group.namesrv, timeout=5.0)
        for number in range(60):
            sent = client.send("demo", Message(b"alone %d" % number + bytes(400)))
            assert sent.status is not SendStatus.SEND_OK, "no slave had it"
        client.close()
        slave = group.start("b")
        command = f"ropewalk admin ha failover {BROKER} --to {slave.address} --force"
        group.until(lambda: f"`{command}`" in group.row_of("b")["link"], "the slave keeps what it has")
        report = group.admin(*command.split()[3:], "--yes")
        assert report["newMaster"] == slave.address
        group.until_followed("b")
        assert set(load.acknowledged) <= set(group.consume("demo"))
        assert list((group.replicas["a"].root / "ropewalk" / "diverged").iterdir()), "kept aside"


@pytest.mark.slow
def test_a_failover_with_too_few_answers_is_refused_and_force_says_what_it_may_cost(tmp_path: Path) -> None:
    with group_of(tmp_path, "b", "c") as group:
        with Load(group, "demo") as load:
            load.until(10)
        group.kill("a")
        group.kill("c")
        refused = group.admin("failover", BROKER, status=1)
        assert "1 of 2 slaves accepted, 2 have to" in refused["error"]
        assert "at least 0 bytes are at risk as of" in refused["error"]
        group.until(
            lambda: (group.row_of("b")["role"], group.row_of("b")["epoch"]) == ("SLAVE", 0), "released"
        )
        unsaid = group.admin("failover", BROKER, "--force", status=2)
        assert "at least 0 bytes are at risk" in unsaid["error"] and "Nothing was done" in unsaid["error"]
        forced = group.admin("failover", BROKER, "--force", "--yes")
        assert forced["newMaster"] == group.replicas["b"].address and "at risk" in forced["atRisk"]
        group.start("a")
        group.start("c")
        group.until_followed("b", 2)
        group.until(lambda: equal_logs(group, "a", "b", "c"), "the logs are the same")


@pytest.mark.slow
def test_metadata_follows_at_once_and_offsets_never_go_back(tmp_path: Path) -> None:
    with group_of(tmp_path, "b") as group:
        a, b = group.replicas["a"], group.replicas["b"]
        plan(a.address, 41)
        began = time.monotonic()
        group.until(lambda: has_plan(b.address, 41), "the slave has it")
        assert time.monotonic() - began < COMPARE_S / 3 + ROOM_S, (
            "it was told, and not found by the next comparison"
        )
        group.kill("a")
        commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "commitOffset": "90"}
        assert call(b.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
        group.start("a")
        group.until(lambda: has_plan(a.address, 90), "the master has what was committed while it was away")
        group.until_followed("a")
        assert has_plan(b.address, 90)
        call(a.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"commitOffset": "20"})
        group.until(lambda: has_plan(b.address, 20), "a consumer that goes back itself is followed")
        refused = group.admin("demote", b.address, status=2)
        assert "is not the master" in refused["error"]
        report = group.admin("promote", b.address)
        assert report["newMaster"] == b.address and report["kind"] == "switch"
        assert has_plan(b.address, 20)


@pytest.mark.slow
def test_a_watcher_fails_over_by_itself_and_says_so(tmp_path: Path) -> None:
    with group_of(tmp_path, "b") as group:
        assert group.admin("status", BROKER)[0]["link"] == "1 slave, 1 counted"
        with Load(group, "demo") as load:
            load.until(20)
        watching = subprocess.Popen(
            [*checkout_command(), "admin", "ha", "watch", "--after", "0.5", "-n", group.namesrv, "--json"],
            cwd=tmp_path, env=checkout_environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert watching.stdout is not None
            assert "the master is" in json.loads(watching.stdout.readline())["event"]
            group.kill("a")
            address = group.replicas["b"].address
            group.until(lambda: group.row_of("b")["role"] == "SYNC_MASTER", "b is the master")
            events = [json.loads(watching.stdout.readline())["event"] for _ in range(2)]
            assert events[0] == "the master is gone: failing over" and events[1].startswith(
                f"{address} is the master"
            )
        finally:
            watching.terminate()
            watching.wait(60)
            if watching.stdout is not None:
                watching.stdout.close()
        assert set(load.acknowledged) <= set(group.consume("demo"))


@pytest.mark.slow
def test_a_slave_behind_retention_starts_anew_and_keeps_its_old_log_aside(tmp_path: Path) -> None:
    with group_of(tmp_path, "b", fileReservedTime=0) as group:
        a, b = group.replicas["a"], group.replicas["b"]
        with Load(group, "demo") as load:
            load.until(5)
        group.kill("b")
        with Connection(a.address, 30.0) as connection:
            for number in range(40):
                body = Message(b"%06d" % number * 15_000)
                connection.call(send_request("demo", Queue(BROKER, 0), body, f"{number:032X}", 0))
        group.until(
            lambda: call(a.address, RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0, "it may be asked"
        )
        group.until(lambda: group.row_of("a")["maxOffset"] > 3 * SEGMENT_SIZE, "the log has rolled")
        group.until(lambda: not (a.root / "commitlog" / f"{0:020d}").exists(), "its oldest file is gone")
        group.start("b")
        group.until_followed("a")
        group.until(lambda: equal_logs(group, "a", "b"), "the logs are the same")
        (kept,) = (b.root / "ropewalk" / "diverged").iterdir()
        assert "begins at" in json.loads((kept / "about.json").read_text())["why"]
        report = group.admin("demote", a.address)
        assert report["newMaster"] == b.address and report["gapMs"] is not None
