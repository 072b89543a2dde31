"""What other programs import of Ropewalk: every byte layout, the client, the codes and the errors."""

__version__ = "0.1.0"
