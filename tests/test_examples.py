"""Every program under examples/ is run as its reader would run it, against a real broker."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.testing import BrokerProcess
from tests.support.processes import ROOT, checkout_environment

EXAMPLES = ROOT / "examples"
INPUT = {"batch_load.py": "".join(f"{number}\n" for number in range(5000))}
LAST_LINE = {
    "blocking.py": "10 messages read",
    "with_asyncio.py": "20 messages handled",
    "with_trio.py": "20 messages handled",
    "batch_load.py": "5000 of 5000 messages acknowledged",
    "order_processing.py": "order-7 created paid packed shipped",
    "retry.py": "3 messages settled",
    "troubles.py": "still consuming: True, failure: None, skipped: 2",
    "delay.py": "s  in a while",
    "timer.py": "leave the house",
    "transactions.py": "announced: 2 chairs, 1 table",
    "sql_filter.py": "3 of 6 orders reviewed: order-1 order-3 order-5",
    "request_reply.py": "unicorn: nobody answered the request to price-requests within 1 s",
}
ELSEWHERE = {"lock.py", "test_orders.py", "with_fastapi.py"}
"""Run by tests of their own."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """A broker that filters and recalls, and whose delays and checks of transactions are short enough to wait for."""
    settings = {"messageDelayLevel": "1s 2s 1s 1s 1s 1s", "transactionTimeOut": "1000"}
    settings |= {
        "transactionCheckInterval": "500",
        "enablePropertyFilter": "true",
        "recallMessageEnable": "true",
    }
    with BrokerProcess(settings) as process:
        yield process.namesrv


def run(*words: str | Path, stdin: str = "", cwd: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", *map(str, words)],
        cwd=cwd, env=checkout_environment(), input=stdin, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", sorted(LAST_LINE))
def test_the_example_does_what_it_says(name: str, namesrv: str, tmp_path: Path) -> None:
    output = run(EXAMPLES / name, namesrv, stdin=INPUT.get(name, ""), cwd=tmp_path)
    assert LAST_LINE[name] in output.splitlines()[-1], output


def test_the_testing_example_passes(tmp_path: Path) -> None:
    words = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        EXAMPLES / "test_orders.py",
    )
    assert "2 passed" in run(*words, cwd=tmp_path)


def test_the_web_application_sends_and_consumes(namesrv: str, tmp_path: Path) -> None:
    output = run(SERVED, EXAMPLES, namesrv, cwd=tmp_path)
    assert output.splitlines() == ["202 SEND_OK", "chair is on its way"], output


SERVED = Path(__file__).with_name("support") / "serve_example.py"


def test_every_example_is_run_by_a_test() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {*LAST_LINE, *ELSEWHERE}
    assert len(names) == 15
