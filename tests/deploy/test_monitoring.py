"""Dashboard and alert rules against what brokers serve: every name and label exists, and Prometheus answers them.

The last test scrapes a master, its slave and their traffic with a real Prometheus and asks it each query.
"""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.metrics.snapshot import COUNTER, Family
from tests.ha.process_group import Group, Load
from tests.support.ports import free_ports
from tests.support.processes import ROOT, checkout_command, checkout_environment
from tools.documents import dashboard
from tools.documents.metrics import families
from tools.documents.sample import sample_broker

FOLDER = ROOT / "deploy" / "prometheus"
ALERTS = FOLDER / "alerts.yml"
BASE = {"cluster", "node_type", "node_id", "job", "instance"}
PROCESS = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
}
NAME = re.compile(r"\b(?:rocketmq|ropewalk|process)_\w+\b(?!\")")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")


def alert_rules() -> dict[str, str]:
    """Return the expression of each rule by its alert."""
    found = {}
    for part in ALERTS.read_text().split("- alert: ")[1:]:
        expression = re.search(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", part, re.DOTALL)
        assert expression, part
        found[part.split()[0]] = " ".join(expression[1].split())
    return found


def every_query() -> list[tuple[str, str]]:
    return [*dashboard.queries(), *alert_rules().items()]


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """The labels of each series that a broker serves, by its name."""
    found = {name: {"job", "instance"} for name in PROCESS}
    found["ropewalk_metrics_left_out"] = BASE | {"family"}
    with sample_broker() as broker:
        for family in families(broker):
            labels = BASE | set(family.labels)
            if not isinstance(family, Family):
                found |= {f"{family.name}_bucket": labels | {"le"}, f"{family.name}_count": labels}
            else:
                found[f"{family.name}_total" if family.kind == COUNTER else family.name] = labels
    return found


def unknown(query: str, served: dict[str, set[str]]) -> set[str]:
    """Return names and labels of a query that no broker serves."""
    names = {name for name in NAME.findall(query) if name not in {"node_id"}}
    labels = {
        label
        for selector in re.findall(r"\{(.*?)\}", query)
        for label in re.findall(r"(\w+)[=!]~?", selector)
    }
    for grouping in re.findall(r"\b(?:by|on) \((.*?)\)", query):
        labels |= {label.strip() for label in grouping.split(",")}
    known = set().union(*(served.get(name, set()) for name in names)) | (BASE if "up{" in query else set())
    return (names - served.keys()) | (labels - known)


@pytest.mark.parametrize(("title", "query"), every_query())
def test_a_query_asks_for_names_and_labels_that_exist(
    title: str, query: str, served: dict[str, set[str]]
) -> None:
    assert not unknown(query, served)


@pytest.mark.parametrize(
    "query",
    [
        "ropewalk_redy == 0",
        'sum by (topics) (rate(rocketmq_messages_in_total{cluster="c"}[5m]))',
        'rocketmq_messages_in_total{toppic="x"}',
        "rate(rocketmq_messages_in[5m])",
    ],
)
def test_a_misspelt_query_is_noticed(query: str, served: dict[str, set[str]]) -> None:
    assert unknown(query, served)


def test_the_dashboard_is_one_that_grafana_can_lay_out() -> None:
    board = json.loads((ROOT / dashboard.PATH).read_text())
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or (panel["targets"] and panel["description"])
    assert {one["name"] for one in board["templating"]["list"]} == {"datasource", "cluster", "node"}


def test_every_alert_is_played_through_and_has_its_paragraph() -> None:
    played = set(re.findall(r'alertname="(\w+)"', (FOLDER / "alerts_test.yml").read_text()))
    assert played == set(alert_rules())
    page = (ROOT / "docs" / "operate" / "alerts.md").read_text()
    assert set(re.findall(r"^\| `(Ropewalk\w+)`", page, re.MULTILINE)) == set(alert_rules())


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
)
def test_prometheus_accepts_its_files(words: tuple[str, ...]) -> None:
    ended = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


# -- a real Prometheus -----------------------------------------------------------------------------------


SILENT = {
    # Nothing of this happens to a healthy pair.
    "Requests by answer", "Dead letters in an hour", "Dead letters", "Delayed messages", "Consumers",
    # It is no DLedger group.
    "Term", "Not committed", "Entries that members lack",
}  # fmt: skip


class Prometheus:
    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10
        ) as page:
            answer = json.load(page)
        assert answer["status"] == "success", answer
        return answer["data"]

    def rows(self, query: str) -> list[Any]:
        for name, text in (("$cluster", ".*"), ("$node", ".*"), ("$__rate_interval", "20s")):
            query = query.replace(name, text)
        rows: list[Any] = self.ask("query", query=query)["result"]
        return rows


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    """Run a Prometheus with our rules over these brokers, scraping every second."""
    text = (FOLDER / "prometheus.yml").read_text().replace("15s", "1s")
    text = re.sub(r"targets: .*", f"targets: {json.dumps(targets)}", text)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(ALERTS, folder)
    [port] = free_ports(1)
    with (folder / "prometheus.txt").open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def consume(group: Group, name: str, count: int) -> None:
    """Consume messages as a member of a consumer group."""
    words = [
        "consume",
        "orders",
        "-g",
        name,
        "-n",
        group.namesrv,
        "--from",
        "earliest",
        "--count",
        str(count),
    ]
    ended = subprocess.run(
        [*checkout_command(), *words],
        env=checkout_environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr + group.told()


def until(
    what: str, condition: Callable[[], object], seconds: float = 60, show: Callable[[], object] = lambda: ""
) -> None:
    give_up = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < give_up, f"{what} {show()}"
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is missing (apt install prometheus)"
)
def test_a_real_prometheus_answers_every_query_and_sees_no_alarm_in_a_healthy_pair(tmp_path: Path) -> None:
    served_here = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    group = Group(tmp_path)
    try:
        group.start("a", brokerRole="SYNC_MASTER", **served_here)
        group.start("b", brokerRole="SLAVE", brokerId=1, **served_here)
        group.until_followed("a")
        targets = [str(replica.ready["metrics"]) for replica in group.replicas.values()]
        with prometheus(tmp_path, targets) as prom, Load(group, "orders") as load:
            load.until(50)
            consume(group, "readers", 20)
            until("both members are scraped", lambda: len(prom.rows("ropewalk_ready")) == 2)
            consume(group, "readers", 20)

            def silent() -> set[str]:
                return {title for title, query in dashboard.queries() if not prom.rows(query)}

            until("every panel has a line", lambda: silent() <= SILENT, show=silent)
            [stored] = prom.rows('sum(rate(rocketmq_messages_in_total{topic="orders"}[20s]))')
            assert float(stored["value"][1]) > 0
            rules = [rule for one in prom.ask("rules")["groups"] for rule in one["rules"]]
            assert {rule["name"] for rule in rules} == set(alert_rules())
            assert {rule["health"] for rule in rules} == {"ok"}
            assert not [rule["name"] for rule in rules if rule["state"] == "firing"]
            group.kill("a")
            until(
                "the dead master is noticed",
                lambda: (
                    {"RopewalkDown", "RopewalkNoMaster"}
                    <= {alert["labels"]["alertname"] for alert in prom.ask("alerts")["alerts"]}
                ),
            )
    finally:
        group.close()
