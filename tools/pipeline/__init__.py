"""Run `ropewalk pipeline …`: jobs on Spark over stores and topics."""
