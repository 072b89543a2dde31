"""Run `ropewalk produce | consume | pull`."""
