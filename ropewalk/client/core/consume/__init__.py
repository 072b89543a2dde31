"""Decide as a consumer: membership, rebalance, pulling, progress, retries."""
