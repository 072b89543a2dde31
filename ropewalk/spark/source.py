"""The class that Spark registers as format "ropewalk": it reads the options and hands over to the half they name.

`mode=store` is `store_source`; `mode=broker` is the live half. Spark makes objects of this class in several processes
and for every micro-batch, so nothing is kept here, and nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from ropewalk.errors import RopewalkError
from ropewalk.spark.options import Options, Use, parse_options
from ropewalk.spark.schema import Selection, selection_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RopewalkSource"]


class RopewalkSource(DataSource):
    """`spark.read.format("ropewalk")`, and its three siblings."""

    @classmethod
    def name(cls) -> str:
        return "ropewalk"

    def _options(self, use: Use) -> Options:
        return parse_options(dict(self.options), use)

    def schema(self) -> str:
        # Asked for by batch and streaming reads alike, and there is no telling which: an option that only one of them
        # knows is judged when its reader is made.
        return self._options("stream" if self._is_stream_only() else "read").selection().ddl()

    def _is_stream_only(self) -> bool:
        try:
            self._options("read")
        except RopewalkError:
            try:
                self._options("stream")
            except RopewalkError:
                return False
            return True
        return False

    def _selection(self, options: Options, schema: StructType) -> Selection:
        return selection_of(schema, raw_properties=options.properties_format == "raw")

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options("read")
        selection = self._selection(options, schema)
        if options.mode == "store":
            from ropewalk.spark.store_source import StoreReader

            return StoreReader(options, selection)
        from ropewalk.spark.live_source import LiveReader

        return LiveReader(options, selection)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options("stream")
        selection = self._selection(options, schema)
        if options.mode == "store":
            from ropewalk.spark.store_source import StoreStreamReader

            return StoreStreamReader(options, selection)
        from ropewalk.spark.live_source import LiveStreamReader

        return LiveStreamReader(options, selection)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ropewalk.spark.sink_writer import LiveWriter

        return LiveWriter(self._options("write"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ropewalk.spark.sink_writer import LiveStreamWriter

        return LiveStreamWriter(self._options("write"), schema, overwrite)
