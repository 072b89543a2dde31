"""One Spark session for all tests of this directory, on a small heap; and where to be silent about its noise."""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.jvm import QUICK_START, archive_spark_classes
from tests.support.spark_home import use_unpacked_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For every JVM that Spark starts here, also those of commands: they live for seconds, and would spend much of these on
# compiling code a second time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_START)
use_unpacked_spark()
# Each Python process of Spark's imports numpy, which would start a thread for every core: no test multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Without the `spark` extra not even the modules under test can be imported. Under CI=true that is an error as it is.
if importlib.util.find_spec("pyspark") is None and os.environ.get("CI", "").lower() != "true":
    collect_ignore_glob = ["*.py"]


def unavailable(reason: str) -> None:
    """Skip for want of Spark; where CI=true that is a failure, because there nobody reads skips."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _classes_are_archived() -> None:
    """Have Spark's classes once for all JVMs of these tests, in whatever process."""
    archive_spark_classes()


@pytest.fixture(scope="module")
def far_from_greenwich() -> Iterator[None]:
    """A local time that is nobody's UTC, so that one taken for the other shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that knows format("ropewalk"), with two cores and failed tasks tried once more."""
    from ropewalk.spark.jvm import JavaMissing

    try:
        from ropewalk.spark.spark_session import SparkMissing, session

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = session(
                "local[2,2]",
                **{
                    "spark.app.name": "ropewalk-tests",
                    "spark.driver.memory": "512m",
                    "spark.driver.extraJavaOptions": QUICK_START,
                    "spark.ui.enabled": "false",
                    "spark.log.level": "OFF",
                    "spark.sql.shuffle.partitions": "2",
                    "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
                    "spark.sql.artifact.isolation.enabled": "false",
                    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
                    "spark.sql.pyspark.worker.logging.enabled": "true",
                },
            )
    except (SparkMissing, JavaMissing, ImportError) as exc:
        unavailable(str(exc))
        raise
    yield made
    gateway = made.sparkContext._gateway
    made.stop()
    # The JVM outlives the session, and would outlive the tests; its socket would then be told as a warning.
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(120)
