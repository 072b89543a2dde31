"""Run `ropewalk pipeline rebuild`: consume queues and key index anew from the log."""
