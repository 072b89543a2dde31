"""Run `ropewalk pipeline stats`: counts, sizes and times of messages."""
