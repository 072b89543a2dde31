"""`Draft`: the effects of the step that is under way, filled in by the parts of a node."""

from __future__ import annotations

from ha.raft.types import (
    NO_EFFECTS,
    Ballot,
    ChangeResult,
    Config,
    Effects,
    MemberId,
    Message,
    Point,
    Run,
    SnapshotMessage,
    Standing,
    TransferResult,
)


class Draft:
    """`Effects` that are not frozen yet. The fields are those of `Effects`."""

    __slots__ = (
        "append_config",
        "changed",
        "commit",
        "config",
        "cut",
        "done",
        "doubt_over",
        "fetches",
        "install",
        "open_term",
        "place",
        "readmitted",
        "reads",
        "role",
        "save",
        "sends",
        "snapshot",
        "snapshot_to",
    )

    def __init__(self) -> None:
        self.save: Ballot | None = None
        self.cut: Point | None = None
        self.place: tuple[tuple[Run, int], ...] = ()
        self.role: Standing | None = None
        self.open_term: Config | None = None
        self.sends: list[tuple[MemberId, Message]] = []
        self.fetches: list[tuple[MemberId, int, int]] = []
        self.snapshot_to: list[MemberId] = []
        self.commit: Point | None = None
        self.doubt_over = False
        self.readmitted = False
        self.done: list[tuple[int, TransferResult]] = []
        self.reads: list[tuple[int, bool]] = []
        self.snapshot: tuple[MemberId, SnapshotMessage] | None = None
        self.install: Point | None = None
        self.append_config: Config | None = None
        self.config: Config | None = None
        self.changed: list[tuple[int, ChangeResult]] = []

    def send(self, peer: MemberId, message: Message) -> None:
        """Send a message in this step."""
        self.sends.append((peer, message))

    def effects(self) -> Effects:
        """Return the effects that were filled in during this step."""
        if not (
            self.sends or self.save or self.cut or self.place or self.role or self.commit or self.fetches
        ):
            if not (
                self.open_term
                or self.snapshot_to
                or self.doubt_over
                or self.readmitted
                or self.done
                or self.reads
                or self.snapshot
                or self.install
                or self.append_config
                or self.config
                or self.changed
            ):
                return NO_EFFECTS
        return Effects(
            self.save,
            self.cut,
            self.place,
            self.role,
            self.open_term,
            tuple(self.sends),
            tuple(self.fetches),
            tuple(self.snapshot_to),
            self.commit,
            self.doubt_over,
            self.readmitted,
            tuple(self.done),
            tuple(self.reads),
            self.snapshot,
            self.install,
            self.append_config,
            self.config,
            tuple(self.changed),
        )
