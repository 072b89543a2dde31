"""JSON config files that survive a power loss: three generations, a checksum each, and a loud way back.

    <root>/config/<name>                 the newest generation, where RocketMQ keeps it
    <root>/config/<name>.bak             the one before, where RocketMQ keeps it
    <root>/ropewalk/previous/<name>      the one before that
    <root>/ropewalk/damaged/<name>       the last file that could not be read, kept for a person
    <root>/ropewalk/config.crc           {"<name>": CRC32C, "<name>.bak": CRC32C, ...}

`save` never writes into a file that is read: the new text goes to a temporary file, is fsynced, and takes
the name by rename, after which the directory is fsynced. A crash at any instant leaves a complete
generation under one of the first two names.

`load` takes the newest generation that can be read. A file that reads well but has another checksum was
written by someone else, most likely RocketMQ run on the same directory: accepted and reported. One that
cannot be read gives way to the next older one. What was decided comes back as findings, sentences for the
log, because a broker that quietly starts with last week's offsets is worse than one that does not start. If
files exist and none can be read, `StoreConfigDamaged` stops the start.

Everything here blocks and is called off the loop. Saves from several threads take turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import crc32c

from ropewalk.errors import Corrupt, RopewalkError
from ropewalk.format import fastjson

__all__ = ["StoreConfigDamaged", "StoreConfigRefused", "crc_file_of", "load", "save"]

_turn = threading.Lock()  # config.crc is read, changed and written by every save


class StoreConfigDamaged(Corrupt):
    """A config file exists in some generation and none of them can be read: a person decides."""


class StoreConfigRefused(RopewalkError):
    """A config file reads well and asks for something this broker must not misread."""


def crc_file_of(path: Path) -> Path:
    """Return the path of the checksums of `<root>/config/<name>`."""
    return path.parent.parent / "ropewalk" / "config.crc"


def load(path: Path, crc_file: Path | None = None) -> tuple[dict[str, Any] | None, list[str]]:
    """Read the newest readable generation of `path`; return its oddities in sentences.

    None means that no generation exists; whether that is a first start or a loss is for the caller, who
    knows if there is a log. Raises `StoreConfigDamaged` if something exists and nothing can be read, and
    PermissionError as it is: older values are no answer to a file that only has the wrong owner.
    """
    crc_file = crc_file or crc_file_of(path)
    checksums, findings = _load_checksums(crc_file)
    generations = (path, _bak(path), _previous(path, crc_file))
    unreadable: list[str] = []
    for generation in generations:
        raw, problem = _read(generation)
        if raw is None and problem is None:
            if generation == path and any(older.exists() for older in generations[1:]):
                findings.append(f"{path} is missing though older generations exist")
            continue
        value = None
        if raw is not None:
            value, problem = _parse(raw)
        if raw is None or value is None:
            unreadable.append(f"{generation}: {problem}")
            findings.append(f"{generation} cannot be read: {problem}")
            continue
        if generation == path:
            findings += _judge_checksum(path, raw, checksums)
        else:
            findings.append(
                f"{path} was taken from its older generation {generation}; later changes are lost"
            )
        return value, findings
    if unreadable:
        raise StoreConfigDamaged(
            f"no generation of {path} can be read ({'; '.join(unreadable)}). Put back a copy, from a slave "
            f"or a backup, as {path}; or remove these files to start without what they held"
        )
    if path.name in checksums:
        findings.append(
            f"{path} was saved here once and is gone, older generations included; starting without it"
        )
    return None, findings


def save(path: Path, data: bytes, crc_file: Path | None = None) -> None:
    """Make `data` the newest generation of `path`, durably, and move the older ones back by one.

    An OSError (disk full, say) leaves the newest generation as it was. A newest file that cannot be read is
    set aside instead of becoming the `.bak`: it would push out a good one.
    """
    crc_file = crc_file or crc_file_of(path)
    ours = crc_file.parent
    with _turn:
        path.parent.mkdir(parents=True, exist_ok=True)
        ours.mkdir(parents=True, exist_ok=True)
        checksums, _ = _load_checksums(crc_file)
        temporary = _write_temporary(ours / f"{path.name}.tmp", data)

        current, problem = _read(path)
        keep = current is not None and (
            crc32c.crc32c(current) == checksums.get(path.name) or _parse(current)[0] is not None
        )
        # The checksums go first, of the new text and of what becomes the .bak: a crash before the rename then
        # shows a file whose sum is the .bak's, which is an interrupted save and not a foreign writer.
        checksums[path.name] = crc32c.crc32c(data)
        if current is not None and keep:
            checksums[f"{path.name}.bak"] = crc32c.crc32c(current)
        _save_checksums(crc_file, checksums)

        if keep:
            if _bak(path).exists():
                _move(_bak(path), _previous(path, crc_file))
            os.replace(path, _bak(path))
        elif current is not None or problem is not None:
            _move(path, ours / "damaged" / path.name)
        os.replace(temporary, path)
        _sync_directory(path.parent)


def _judge_checksum(path: Path, raw: bytes, checksums: dict[str, int]) -> list[str]:
    found = crc32c.crc32c(raw)
    if not checksums or found == checksums.get(path.name):
        return []
    if found == checksums.get(f"{path.name}.bak"):
        return [f"the last save of {path} was interrupted; this is the generation before it"]
    if path.name not in checksums:
        return [f"{path} was not written by this broker; its values are taken over"]
    return [f"{path} was changed by another program since this broker saved it; its values are taken over"]


def _parse(raw: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """The object, or None and what is wrong with it."""
    if not raw.strip(b"\0 \t\r\n"):
        return None, "it holds nothing but blanks or zeros" if raw else "it is empty"
    try:
        value = fastjson.loads(raw)
    except ValueError as exc:
        return None, f"it is not JSON ({exc})"
    if not isinstance(value, dict):
        return None, "it is not a JSON object"
    return value, None


def _read(path: Path) -> tuple[bytes | None, str | None]:
    """The bytes; or None twice if there is no such file; or None and why a file cannot be read."""
    try:
        return path.read_bytes(), None
    except FileNotFoundError:
        return None, None
    except PermissionError:
        raise
    except OSError as exc:
        return None, exc.strerror or str(exc)


def _bak(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _previous(path: Path, crc_file: Path) -> Path:
    return crc_file.parent / "previous" / path.name


def _load_checksums(crc_file: Path) -> tuple[dict[str, int], list[str]]:
    """Checksums by file name. Losing them loses a check and never a message, so damage is only reported."""
    raw, problem = _read(crc_file)
    if raw is None and problem is None:
        return {}, []
    try:
        value = json.loads(raw or b"")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return {}, [f"{crc_file} cannot be read; config files are taken without their checksums"]
    return {name: crc for name, crc in value.items() if isinstance(crc, int)}, []


def _save_checksums(crc_file: Path, checksums: dict[str, int]) -> None:
    text = json.dumps(checksums, indent=1, sort_keys=True).encode()
    os.replace(_write_temporary(crc_file.with_name("config.crc.tmp"), text), crc_file)
    _sync_directory(crc_file.parent)


def _write_temporary(path: Path, data: bytes) -> Path:
    """Write and fsync a file that nobody reads yet; nothing of it stays behind if that fails."""
    try:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return path


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
