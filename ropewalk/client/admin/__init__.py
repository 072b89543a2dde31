"""Hold administrators' conversations with brokers: sans-IO, carried by `aio.admin` and `blocking.admin`."""
