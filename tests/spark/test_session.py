from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_counts_with_the_interpreter_of_its_script(spark: SparkSession) -> None:
    def executable(_: object) -> str:
        return sys.executable

    assert spark.sparkContext.parallelize([1], 1).map(executable).collect() == [sys.executable]


def test_an_unknown_option_is_refused_with_the_nearest_one(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"there is no option 'splitbyte'; did you mean splitBytes\?"):
        spark.read.format("ropewalk").option("mode", "store").option("splitByte", "1m").load("/nowhere")
