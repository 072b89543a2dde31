"""The data source that Spark registers as format "ropewalk": it parses the options and delegates to a reader or writer.

`mode=store` is `store.source`; `mode=broker` is the live half. Spark makes objects of this class in several processes
and for every micro-batch, so nothing is kept here, and nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from ropewalk.spark.options import BadOption, Options, Use, fits, parse_options
from ropewalk.spark.rows.schema import Selection, selection_of
from ropewalk.spark.tables import is_table, options_of, table_options, with_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RopewalkSource"]


_READS: Final[tuple[Use, ...]] = ("read", "stream")
_CHECKPOINT: Final = "checkpointlocation"
_WRONG_USE: Final = "has no meaning in"


class RopewalkSource(DataSource):
    """The data source of `spark.read.format("ropewalk")`, and its three siblings."""

    @classmethod
    def name(cls) -> str:
        return "ropewalk"

    def _options(self, use: Use, schema: StructType) -> Options:
        return parse_options(options_of(self.options, schema, use), use)

    def schema(self) -> str | StructType:
        if is_table(self.options):
            options = table_options(self.options)
            reads = {name: value for name, value in options.items() if fits(name, "read")}
            return with_options(_struct(parse_options(reads, "read").selection()), options)
        # Asked for by batch and streaming reads alike, and there is no telling which: options that only one of them
        # knows are judged when its reader is made. What neither accepts is told in the words of the one that was
        # meant, which is the one that does not complain about the other's options.
        refused: list[BadOption] = []
        for use in _READS:
            try:
                return parse_options(dict(self.options), use).selection().ddl()
            except BadOption as exc:
                refused.append(exc)
        raise min(refused, key=lambda exc: _WRONG_USE in str(exc))

    def _selection(self, options: Options, schema: StructType) -> Selection:
        return selection_of(schema, raw_properties=options.properties_format == "raw")

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options("read", schema)
        selection = self._selection(options, schema)
        if options.mode == "store":
            from ropewalk.spark.store.source import StoreReader

            return StoreReader(options, selection)
        from ropewalk.spark.live.source import LiveReader

        return LiveReader(options, selection)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options("stream", schema)
        selection = self._selection(options, schema)
        if options.mode == "store":
            from ropewalk.spark.store.source import StoreStreamReader

            return StoreStreamReader(options, selection)
        from ropewalk.spark.live.source import LiveStreamReader

        return LiveStreamReader(options, selection)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ropewalk.spark.sink.writer import LiveWriter

        return LiveWriter(self._options("write", schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ropewalk.spark.sink.writer import LiveStreamWriter

        checkpoint = next((text for name, text in self.options.items() if name.lower() == _CHECKPOINT), None)
        return LiveStreamWriter(self._options("write", schema), schema, overwrite, checkpoint)


def _struct(selection: Selection) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(selection.arrow_schema())
