"""Run `ropewalk store …`: commands over the files of a store that no broker serves."""
