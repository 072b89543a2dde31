"""`RoleFiles`: the role of a broker and the epochs of its log, on disk in the order in which they were decided.

    role.json     role, brokerId and epochs, promises and to which operator, the group's quorum policy
    epochs.json   the epochs of the log's parts

A helper thread writes them, one after the other. A disk without room is waited for: whoever asked is not answered
meanwhile. A broker that never had a role but the one of its configuration has neither file.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from broker.state.json_file import StoreConfigDamaged
from ha.group.epochs import Epochs
from ha.group.roles import RoleRecord
from store.io.disk import Disk
from store.io.workers import Completions, Worker

__all__ = ["RoleFiles", "read_roles", "write_roles"]

log = structlog.get_logger("broker.ha")

_NO_ROOM = errno.ENOSPC, errno.EDQUOT
_ROOM_AGAIN_S = 0.5
"""When it is looked again whether a full disk has room."""


class RoleFiles:
    """Both files, and the helper thread that writes them."""

    def __init__(self, directory: Path, configured: RoleRecord, disk: Disk) -> None:
        """`configured` is the role that the configuration alone gives, which needs no file."""
        self.role_path = directory / "role.json"
        self.has_role = False
        """Whether there is a file of the role, or will be soon."""
        self.on_disk = configured
        """The record that the file holds, or would hold."""
        self._configured = configured
        self._handed_over: RoleRecord | None = None
        """The record that the file will hold when the helper thread has done all that it was asked to."""
        self._directory = directory
        self._disk = disk
        self._worker: Worker | None = None
        self._stopping = threading.Event()

    def load(self) -> Epochs:
        """Read both files: the record is `on_disk`, the epochs are returned. Blocks. Raises `StoreConfigDamaged`."""
        found, epochs = read_roles(self._directory, self._disk)
        self.has_role = found is not None
        if found is not None:
            self.on_disk = self._handed_over = found
        return epochs

    def open(self, completions: Completions) -> None:
        """Start the helper thread."""
        self._worker = Worker("ropewalk-role", completions)

    def stop(self) -> None:
        """End the helper thread. Blocks until what it writes is written."""
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()

    def save(self, record: RoleRecord | None, epochs: Epochs | None, done: Callable[[], None]) -> None:
        """Save record and epochs after everything that was handed over before; then call `done`.

        No answer tells of a promise before that. A disk without room is waited for, and this broker stays as careful as
        it would be if the promise were on disk: the request is not answered.
        """
        assert self._worker is not None
        disk, directory = self._disk, self._directory
        if record == self._handed_over or (not self.has_role and record == self._configured):
            record = None  # it is there, or nothing but what the configuration says
        if record is not None:
            self.has_role, self._handed_over = True, record

        def write() -> bool:
            if epochs is not None and not self._written(lambda: write_roles(directory, disk, None, epochs)):
                return False
            return record is None or self._written(lambda: write_roles(directory, disk, record, None))

        def saved(is_there: bool) -> None:
            if is_there:
                self.on_disk = record or self.on_disk
                done()

        self._worker.submit(write, saved)

    def _written(self, write: Callable[[], None]) -> bool:
        """Write a file as soon as there is room for it; False if the broker ends before that. On the helper thread."""
        told = False
        while True:
            try:
                write()
            except OSError as exc:
                if exc.errno not in _NO_ROOM:
                    raise
                if not told:
                    log.error(
                        "no room for this broker's role", directory=str(self._directory), reason=str(exc)
                    )
                told = True
                if self._stopping.wait(_ROOM_AGAIN_S):
                    return False
            else:
                if told:
                    log.info("there is room for this broker's role again", directory=str(self._directory))
                return True


class _EpochFile(msgspec.Struct, frozen=True):
    epochs: list[tuple[int, int]] = []


def read_roles(directory: Path, disk: Disk) -> tuple[RoleRecord | None, Epochs]:
    """Return the role, None where there is no file of one, and the epochs. Blocks. Raises `StoreConfigDamaged`."""
    found = _read(directory / "role.json", RoleRecord, disk)
    pairs = _read(directory / "epochs.json", _EpochFile, disk)
    try:
        return found, Epochs.of(pairs.epochs) if pairs is not None else Epochs()
    except ValueError as exc:
        raise StoreConfigDamaged(f"{directory / 'epochs.json'} makes no sense: {exc}") from exc


def write_roles(directory: Path, disk: Disk, record: RoleRecord | None, epochs: Epochs | None) -> None:
    """Write epochs and role, each that is given, in the order in which a crash between them does no harm. Blocks."""
    if epochs is not None:
        disk.replace_file(directory / "epochs.json", msgspec.json.encode(_EpochFile(epochs.pairs())))
    if record is not None:
        disk.replace_file(directory / "role.json", msgspec.json.encode(record))


_S = TypeVar("_S", bound=msgspec.Struct)


def _read(path: Path, kind: type[_S], disk: Disk) -> _S | None:
    data = disk.read_file(path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise StoreConfigDamaged(
            f"{path} cannot be read ({exc}). It holds this broker's promises to its group: put back a copy, or, if the "
            "rest of the group agrees on a master, remove it together with epochs.json and start as a slave"
        ) from exc
