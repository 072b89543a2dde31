"""Ropewalk: a commitlog message broker that speaks RocketMQ's protocol, and what programs import to use one.

`format` holds every byte layout as pure functions, `client` the sans-IO client core and its shells, `codes` the
numbers both ends agree on, `errors` what callers can catch. Nothing here imports the broker's own rooms (`broker`,
`ha`, `store`, `tools`); only `python -m ropewalk` starts them.
"""

__version__ = "0.1.0"
