"""Scan a log in pieces: records, derived columns, checks of queues and index, comparison of copies."""
