"""`RouteStatus`: whether name servers send clients to this broker, or to another one in its place.

Anybody who reaches a name server may register there, under any name: clients then follow whoever came last. No broker
can prevent that without users at the name server, so each compares the routes with itself, and says what it finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["RouteStatus"]


@dataclass(slots=True)
class RouteStatus:
    """The places that others have. The registrar writes them; metrics and `/readyz` read them."""

    rivals: dict[str, str] = field(default_factory=dict)
    """Name server -> in words, the living broker that has this one's place, so that this one does not register."""
    displaced_by: dict[str, str] = field(default_factory=dict)
    """Name server -> the address that it gives clients for this broker's name and id, although this one registered."""

    @property
    def count(self) -> int:
        """Return the number of name servers that give this broker's place to another."""
        return len(self.rivals.keys() | self.displaced_by.keys())

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the places that others have, a sentence each."""
        taken = (
            f"{namesrv} sends this broker's clients to {address}: find out who registers that "
            "(docs/operate/hardening.md)"
            for namesrv, address in sorted(self.displaced_by.items())
        )
        return (*sorted(self.rivals.values()), *taken)
