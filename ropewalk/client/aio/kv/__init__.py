"""The key-value client inside an event loop, and its batches."""
