"""The client of the key-value store: its conversations, carried by `Kv` and `AsyncKv`."""
