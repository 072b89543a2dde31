"""Read messages of a queue without stopping the loop: warm runs, cold reads by a thread, bulk reads, their budget."""
