"""Carry RocketMQ's remoting protocol: one session for each connection, and the shell that owns the sockets.

`session` is sans-IO: bytes in, effects out. Sockets are known to `shell` (the turn over all connections) and to its
three parts alone: `event_loop` (when turns come), `connection` (reading and writing one socket), `sockets` (accepting
and connecting). `rpc_times` counts how long requests took.
"""
