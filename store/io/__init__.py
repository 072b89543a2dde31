"""Reach the disk: the only module that opens files (`disk`), worker threads, helper processes, durations.

Nothing here knows what the bytes mean. A test hands another disk to everything above.
"""
