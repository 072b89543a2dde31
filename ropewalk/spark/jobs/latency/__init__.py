"""Run `ropewalk pipeline latency`: time from producer to store, and from store to consumer group."""
