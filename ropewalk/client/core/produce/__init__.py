"""Decide as a producer: which queue, which batch, whether to try again."""
