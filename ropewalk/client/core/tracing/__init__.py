"""Message traces: the records of what clients did with a message, and the buffer in which they wait to be sent."""
