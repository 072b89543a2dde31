"""Deliver messages later: the delay service over RocketMQ's delay levels, and its progress."""
