"""The commands: what docs/tour/spark.md shows, one of each job on Spark, exit codes, and what is said of wrong use."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import ropewalk.spark
from ropewalk.spark.jobs.export.job import BadExport
from ropewalk.spark.jobs.export.lake_writer import escaped
from ropewalk.testing import RopewalkBroker
from tests.spark.jobs.faults import Pair, in_body, in_field
from tests.spark.jobs.stores import fill, replica_of
from tests.support.processes import ROOT
from tools.pipeline.cli import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TO = ("--to-topic", "t", "--to-name-server", "localhost:1")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("commands") / "store"
    fill(root, 400)
    return root


def run(*words: object, code: int = 0) -> str:
    """The standard output of a command, in this process and so in the session that is there."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result.stdout


def run_json(*words: object, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(*words, "--json", code=code))
    assert document["exit_code"] == code
    return document


def shown_in_tour(job: str) -> list[str]:
    """The words of the command that docs/tour/spark.md shows for a job."""
    text = (ROOT / "docs" / "tour" / "spark.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\$ ropewalk pipeline ({job} .*)$", text, re.MULTILINE)
    return shlex.split(line)


def test_the_tours_audit_finds_the_fault_and_draws_it(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = replica_of(store, tmp_path / "a"), replica_of(store, tmp_path / "b")
    paths = {"/mnt/a/store": str(a), "/mnt/b/store": str(b)}
    words = [paths.get(word, word) for word in shown_in_tour("audit")]
    assert set(paths.values()) < set(words)
    assert "no findings" in run(*words)
    pair = Pair.of(a, b)
    in_body(0.5, 1)(pair, 100)
    in_field(45)(pair, 200)
    found = run_json(*words, "--repair", tmp_path / "mended", code=1)
    assert [(f["kind"], f["damaged"], f["repair from"]) for f in found["findings"]] == [
        ("bit-rot", str(b), str(a))
    ] * 2
    assert [f["log offset"] for f in found["findings"]] == [
        pair.records[100].offset,
        pair.records[200].offset,
    ]
    assert "<svg" in (tmp_path / "audit.html").read_text()
    (mended,) = found["repaired copies"]
    assert "no findings" in run("audit", "--store", a, "--replica", mended["copy"])
    # The same by digests, as on two machines.
    assert run_json("audit", "--store", a, "--digest", tmp_path / "a.json")["blocks"] > 0
    found = run_json("audit", "--store", b, "--against", tmp_path / "a.json", code=1)
    assert {f["kind"] for f in found["findings"]} == {"differs"}
    assert "no findings" in run("audit", "--store", mended["copy"], "--against", tmp_path / "a.json")


def test_the_tours_export_makes_parquet_of_a_store_and_goes_on(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy, lake = replica_of(store, tmp_path / "store"), tmp_path / "lake"
    paths = {"/mnt/a/store": str(copy), "/mnt/lake": str(lake)}
    words = [paths.get(word, word) for word in shown_in_tour("export")]
    assert set(paths.values()) < set(words)
    assert run_json(*words)["rows"] == 400
    assert run_json(*words)["rows"] == 0
    fill(copy, 30, first=400)
    assert run_json(*words)["rows_in_lake"] == 430
    rows = sum(pq.ParquetFile(path).metadata.num_rows for path in lake.glob("topic=*/**/*.parquet"))
    assert rows == 430
    # As Spark reads it, with the directories as columns.
    frame = spark.read.parquet(str(lake))
    assert frame.count() == 430
    # Names of retry topics have characters that paths escape.
    path = tmp_path / "odd" / f"topic={escaped('%RETRY%g')}" / "x.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(next(lake.glob("topic=orders/**/*.parquet")).read_bytes())
    odd = spark.read.option("basePath", str(tmp_path / "odd")).parquet(str(path))
    assert {row[0] for row in odd.select("topic").distinct().collect()} == {"%RETRY%g"}
    # A file that the manifest does not name is not of the lake, whoever put it there.
    stray = next(lake.glob("topic=orders/**/*.parquet"))
    stray.with_name("stray.parquet").write_bytes(stray.read_bytes())
    assert ropewalk.spark.lake(spark, str(lake)).count() == 430
    stray.with_name("stray.parquet").unlink()
    with pytest.raises(BadExport, match="is no lake"):
        ropewalk.spark.lake(spark, str(tmp_path / "nothing"))
    assert {row[0] for row in frame.select("topic").distinct().collect()} == {"orders", "payments", "trüb"}


def test_stats_latency_rebuild_and_replay_run_on_spark(
    spark: SparkSession, store: Path, tmp_path: Path, ropewalk_broker: RopewalkBroker
) -> None:
    stats = run_json(
        "stats", "--store", store, "--by", "topic,minute", "--top-keys", 2, "--html", tmp_path / "s.html"
    )
    assert (stats["messages"], stats["missing"], stats["doubles"]) == (400, 0, 0)
    assert len(stats["top keys"]) == 2 and "<svg" in (tmp_path / "s.html").read_text()
    latency = run_json("latency", "--store", store, "--limit-ms", 10_000)
    assert latency["messages"] == 400
    nobody = (
        "latency",
        "-n",
        ropewalk_broker.namesrv,
        "-t",
        ropewalk_broker.topic("t"),
        "-g",
        "g",
        "--watch",
        "1s",
    )
    run(*nobody, code=2)
    rebuilt = run_json("rebuild", "--store", store, "--out", tmp_path / "out", "--verify")
    assert (rebuilt["entries"], rebuilt["different"]) == (400, [])
    to = ("--to-topic", ropewalk_broker.topic("again"), "--to-name-server", ropewalk_broker.namesrv)
    sent = run_json(
        "replay", "--from", "store", "--store", store, *to, "--journal", tmp_path / "journal", "--rate", 5000
    )
    assert (sent["messages"], sum(q["last"] - q["first"] + 1 for q in sent["queues"])) == (400, 400)
    assert run_json("replay", "--store", store, *to, "--journal", tmp_path / "journal")["messages"] == 0
    # Some of them, by a condition that Spark reads; the same journal is another replay's.
    chosen = ("--key-filter", "topic = 'orders' AND queueOffset % 2 = 0 AND properties IS NOT NULL")
    some = [r for r in Pair.of(store, store).records if r.topic == "orders" and r.queue_offset % 2 == 0]
    halves = ("--to-topic", ropewalk_broker.topic("halves"), "--to-name-server", ropewalk_broker.namesrv)
    sent = run_json("replay", "--store", store, *halves, *chosen, "--preserve-time", "--max-per-batch", 150)
    assert (sent["messages"], sent["batches"] > 1) == (len(some), True)
    copies = ropewalk_broker.messages(halves[1], len(some))
    assert {(copy.body, copy.born_timestamp_ms) for copy in copies} == {
        (r.body, r.born_timestamp) for r in some
    }
    # A group that traced when it began on each copy: 40 ms after it was stored.
    traces = ropewalk_broker.topic("traces")
    for copy in copies:
        at, name = copy.store_timestamp_ms + 40, copy.properties["UNIQ_KEY"]
        ropewalk_broker.send(traces, f"SubBefore\1{at}\1r\1readers\1q\1{name}\0010\1k\2")
    live = ("-n", ropewalk_broker.namesrv, "-t", halves[1], "--group", "readers", "--trace-topic", traces)
    traced = run_json("latency", *live)
    assert [t["longest ms"] for t in traced["topics"]] == [40] and traced["messages"] == len(some)
    run("replay", "--store", store, *to, *chosen, "--journal", tmp_path / "journal", code=2)
    failed = CliRunner().invoke(app, ["replay", "--store", str(store), *halves, "--key-filter", "key = 'a'"])
    assert failed.exit_code == 2 and "is no condition over topic, brokerName" in failed.stderr


def test_sparks_own_sink_writes_the_rows_once_and_goes_on(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy, lake = replica_of(store, tmp_path / "store"), tmp_path / "lake"
    words = ("export", "--store", copy, "--lake", lake, "--engine", "spark", "--topic", "orders")
    orders = sum(record.topic == "orders" for record in Pair.of(copy, copy).records)
    assert run_json(*words)["rows"] == orders
    fill(copy, 50, first=400, seed=1)
    more = sum(record.topic == "orders" for record in Pair.of(copy, copy).records) - orders
    assert run_json(*words)["rows"] == more > 0
    frame = spark.read.parquet(str(lake))
    assert frame.count() == orders + more == frame.select("queueId", "queueOffset").distinct().count()
    assert [str(row[0]) for row in frame.select("dt").distinct().collect()] == ["2023-11-14"]
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "lake", Path("/proc/lake")):
        failed = CliRunner().invoke(app, ["export", "--store", str(copy), "--lake", str(place)])
        assert failed.exit_code == 3 and str(place) in failed.stderr and "Traceback" not in failed.stderr
    direct = CliRunner().invoke(app, ["export", "--store", str(copy), "--lake", str(lake)])
    assert direct.exit_code == 2 and "written by Spark's file sink" in direct.stderr


def test_looking_needs_no_spark(store: Path, tmp_path: Path) -> None:
    assert len(run_json("tail", "--store", store, "-c", 3)["messages"]) == 3
    queues = run_json("offsets", "--store", store, "--at", "2023-11-14T22:13:25Z")["queues"]
    assert len(queues) == 6 and all(0 < q["at 2023-11-14T22:13:25Z"] < q["next"] for q in queues)
    assert run_json("schema")["columns"][0]["column"] == "topic"
    assert "no lake" in CliRunner().invoke(app, ["offsets", "--lake", str(tmp_path / "none")]).stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["stats"], 2, "--store DIR or --name-server"),
        (["stats", "--store", "x", "-n", "localhost:1"], 2, "and not both"),
        (["stats", "-n", "localhost:1"], 2, "--topic TOPIC"),
        (["stats", "--store", "x", "--by", "week", "--master", "local[1]"], 2, "--by week"),
        (["export", "--store", "x", "--lake", "y", "--mode", "sometimes"], 2, "catchup, stream or range"),
        (["export", "--store", "x", "--lake", "y", "--mode", "range"], 2, "--since"),
        (["export", "--store", "x", "--lake", "y", "--until", "2026-01-01"], 2, "--mode range"),
        (["export", "--store", "x", "--lake", "y", "--columns", "bodi"], 2, "did you mean body"),
        (
            ["export", "--store", "x", "--lake", "y", "--target-file-bytes", "much"],
            2,
            "--target-file-bytes is",
        ),
        (["stats", "--store", "x", "--since", "yesterday"], 2, "--since is 'yesterday'"),
        (["offsets", "--store", "x", "--at", "soon"], 2, "--at is 'soon'"),
        (["export", "--store", "x", "--lake", "y", "--engine", "fast"], 2, "direct or spark"),
        (["export", "--store", "x", "--lake", "y", "--checkpoint", "z"], 2, "keeps its place in the lake"),
        (["export", "--store", "x", "--lake", "y", "--compact"], 2, "reads no source"),
        (["latency", "--store", "x", "--quantiles", "1.5"], 2, "between 0 and 1"),
        (["latency", "--store", "x", "--group", "g"], 2, "watches live topics"),
        (["latency", "--store", "x", "--window", "soon"], 2, "as in 1m"),
        (["latency", "--store", "x", "--trace-topic", "t"], 2, "goes with --group"),
        (["audit", "--store", "x", "--crc", "all"], 2, "body or none"),
        (["audit", "--store", "x", "--digest", "y", "--replica", "z"], 2, "go alone"),
        (["audit", "--store", "x", "--against", "/nowhere"], 2, "cannot read /nowhere"),
        (["audit", "--store", "x", "--from", "100", "--to", "50"], 2, "nothing lies between"),
        (["audit", "--store", "x", "--replica", "./x"], 2, "was named before"),
        (["rebuild", "--store", "x", "--out", "y", "--index-slots", "5"], 2, "go together"),
        (["replay", "--from", "disk", "--store", "x", *_TO], 2, "topic, lake or store"),
        (["replay", "--from", "lake", "--store", "x", *_TO], 2, "reads --lake DIR, and not --store"),
        (["replay", "--from", "topic", *_TO], 2, "reads --name-server HOST:PORT"),
        (["replay", "--lake", "x", "--store", "y", *_TO], 2, "one of --name-server"),
        (["replay", *_TO], 2, "one of --name-server"),
        (["tail", "--store", "x", "--on-corrupt", "maybe"], 2, "it is fail or skip"),
        (["tail", "--store", "/nowhere"], 3, "/nowhere"),
        (["offsets"], 2, "one of --store"),
        (["stats", "--store", "x", "--conf", "novalue"], 2, "name=value"),
    ],
)
def test_wrong_use_is_named(words: list[str], code: int, text: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, text in result.stderr) == (code, True), (result.exit_code, result.stderr)


def test_without_the_spark_extra_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['numpy'] = None; from tools.pipeline.cli import app; "
        "app(['stats', '--store', 'x'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 3
    assert "needs numpy" in done.stderr and "pip install -e '.[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
