"""Carry RocketMQ's remoting protocol: one session for each connection, and the shell that owns the sockets.

`session` is sans-IO: bytes in, effects out. `shell` is the only module of the broker that knows sockets. `rpc_times`
counts how long requests took.
"""
