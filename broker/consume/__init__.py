"""Serve consumers: pulls, bulk pulls, queries, heartbeats, offsets, retries and dead letters.

`pull` first: a request is judged, read and answered, or held in `waiting`. `retry` decides when a message comes
again. `requests` has the other codes of consumers, `query` looks messages up by key, `bulk_pull` is for pipelines,
`member_notifier` tells members of groups that have changed.

Left to others: reading the log (`store.read`), the tables of groups and offsets (`broker.state`).
"""
