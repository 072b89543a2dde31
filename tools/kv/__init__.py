"""Run `ropewalk kv …`."""
