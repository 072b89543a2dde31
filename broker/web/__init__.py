"""Serve pages and metrics over HTTP, from a thread with a loop of its own over published snapshots."""
