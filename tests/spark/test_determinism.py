"""Plans whose rows are other ones each time are named before an exactly-once query starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ropewalk.spark import require_deterministic
from ropewalk.spark.determinism import NotDeterministic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_plan_with_other_rows_each_time_is_refused_by_name(spark: SparkSession) -> None:
    rows = spark.range(10)
    same = rows.selectExpr("cast(id as string) as body", "hash(id) as keys").repartition(3, "keys")
    assert require_deterministic(same) is same
    for expression in ("rand()", "uuid()", "monotonically_increasing_id()"):
        changing = rows.selectExpr(f"concat(id, {expression}) as body").where("body <> 'x'")
        with pytest.raises(NotDeterministic, match=expression.partition("(")[0]):
            require_deterministic(changing)


def test_the_time_of_a_query_is_fixed_for_a_micro_batch_and_not_for_a_batch_write(
    spark: SparkSession,
) -> None:
    times = ("current_timestamp()", "now()", "current_date()", "localtimestamp()", "unix_timestamp()")
    for time in times:
        frame = spark.range(10).selectExpr(f"concat(id, ' ', {time}) as body").where("body <> 'x'")
        with pytest.raises(NotDeterministic, match="not deterministic"):
            require_deterministic(frame)
    stream = spark.readStream.format("rate").load().selectExpr(f"concat(value, {', '.join(times)}) as body")
    assert require_deterministic(stream) is stream
