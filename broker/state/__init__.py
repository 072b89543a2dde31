"""Keep the tables of a broker: topics, groups, offsets, clients, subscriptions, locks, statistics.

Every table is plain data with its own rules, knows no session and no handler, and is saved by `json_file` in
RocketMQ's shape. `data_version` tells peers whether a table moved.
"""
