"""Offer the client to programs without an event loop: producer, consumers and admin over plain sockets."""
