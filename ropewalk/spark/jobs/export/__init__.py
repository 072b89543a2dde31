"""Run `ropewalk pipeline export`: a Parquet lake from stores and live topics, each row exactly once."""
