"""Pending timers on disk: the wheel of slots and the log of units that RocketMQ 5.5.0 can go on with, and their
checkpoint.

Read in this order: `layout`, `timer_log`, `wheel`, `timer_store`, `progress`.
"""
