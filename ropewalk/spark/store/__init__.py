"""Read store directories into Spark: which files, how far they are safe, splits, batch and streaming readers."""
