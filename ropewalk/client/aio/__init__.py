"""Offer the client to programs on trio or asyncio: producer, consumers and admin over anyio."""
