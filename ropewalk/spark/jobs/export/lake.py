"""A lake: Parquet files under names that follow from their rows, and a manifest that says which of them count.

    <lake>/topic=T/dt=2026-01-31/b=<broker>/q=<queue>-<low>-<high>.zstd.parquet     rows; one file for a range and a day
    <lake>/_ropewalk/lake.json                                                      what this lake is a copy of
    <lake>/_ropewalk/plans/<batch>.json                                             what a batch is to hold, before it
    <lake>/_ropewalk/commits/<batch>.json                                           what it holds, after it
    <lake>/_staging/<batch>/...                                                     files that do not count yet
    <lake>/topic=T/dt=2026-01-31/b=<broker>/c=<batch>-<number>.zstd.parquet         small files made one, see `compact`

Exactly once comes from the order. A batch is planned: which ranges of which queues. The plan gets its name by a link,
which only one can make; whoever comes later, after a crash, carries out that plan and no other. Tasks write below
`_staging`, under names of their own. When all are done the files are renamed to what their rows are called, and then
the commit gets its name. Everything before the commit can be repeated: the same rows get the same names.

A batch may also *replace*: its files hold the rows of others, which count no longer and are removed when it counts.

Who reads the lake by its manifest sees whole batches only. Who reads the directories sees whole files only, and between
the renames and the commit a part of a batch, which the next run completes.

All of this happens in tasks, as the lake may be where the driver is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.files import sync_directory, temporary_name

VERSION: Final = 1
REPLACING: Final = 2
"""The version of what is said of a batch that replaces: who does not know of such must not read on."""
_META: Final = "_ropewalk"
_STAGING: Final = "_staging"


class LakeMismatch(RopewalkError):
    """The lake does not fit the job: another export's files, a batch that is not complete, or none at all."""


class LakeUnusable(RopewalkError):
    """There is no place for a lake where it is to be."""


class LakeDamaged(RopewalkError):
    """The lake's own files contradict each other."""


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a lake: its final place, its contents, and its staging place."""

    path: str
    """From the lake's directory on."""
    rows: int
    bytes: int
    topic: str
    min_time_ms: int
    max_time_ms: int
    staged: str = ""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of one batch. Positions and ranges are JSON of whoever made them."""

    batch: int
    start: Any
    end: Any
    ranges: Sequence[Any]
    previous: str
    """Checksum of the commit before."""
    lost: int = 0
    """Messages that could not be read any more, and were passed over as the options allow."""
    replaces: Sequence[str] = ()
    """Files whose rows this batch holds anew; its ranges are then groups of them."""

    def encode(self) -> bytes:
        document = {"v": REPLACING if self.replaces else VERSION, **asdict(self)}
        if not self.replaces:
            del document["replaces"]
        return _encode(document)

    @classmethod
    def decode(cls, data: bytes) -> BatchPlan:
        found = _decode(data)
        return cls(
            found["batch"], found["start"], found["end"], found["ranges"], found["previous"], found["lost"],
            found.get("replaces", ()),
        )  # fmt: skip


@dataclass(slots=True)
class LakeState:
    """The position of a lake."""

    batches: int = 0
    """Committed; the next batch has this number."""
    position: Any = None
    """The end of the last, None in a new lake."""
    last: str = ""
    """Its checksum."""
    pending: BatchPlan | None = None
    """A plan without its commit: what a crash left."""
    rows: int = 0
    files: list[LakeFile] = field(default_factory=list)
    compactions: int = 0
    """Batches that replaced others."""
    replaced: Sequence[str] = ()
    """Files that the last of them replaced."""


def is_begun(lake: str) -> bool:
    """Return whether a lake has a recorded identity. Blocks."""
    return any(Path(lake, name).exists() for name in (f"{_META}/lake.json", "_spark_metadata"))


def open_lake(work: tuple[str, Mapping[str, Any]]) -> LakeState:
    """Read the state of a lake, or begin one. Raises `LakeMismatch` for a lake of something else. Blocks."""
    directory, identity = Path(work[0]), dict(work[1])
    if (directory / "_spark_metadata").exists():
        raise LakeMismatch(
            f"{directory} is written by Spark's file sink, whose readers would not see these files: give this export "
            f"a directory of its own, or go on with --engine spark"
        )
    meta = directory / _META
    try:
        for name in ("plans", "commits"):
            (meta / name).mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LakeUnusable(
            f"the lake {directory} cannot be made ({exc.strerror or exc}): give a directory that every worker can write"
        ) from exc
    wanted = _encode({"v": VERSION, **identity})
    if not _publish(meta / "lake.json", wanted):
        found = _decode((meta / "lake.json").read_bytes())
        for key in sorted({*identity, *found} - {"v"}):
            if found.get(key) != json.loads(wanted).get(key):
                raise LakeMismatch(
                    f"{directory} is a lake with {key} {found.get(key)!r}, and this export has {identity.get(key)!r}: "
                    f"give this export a directory of its own"
                )
    state = read_lake(str(directory), with_files=False)
    _sweep(directory, state.batches, state.replaced)
    return state


def read_lake(lake: str, *, with_files: bool = True) -> LakeState:
    """Read the manifest of a lake, checked from commit to commit. Raises `LakeDamaged`. Blocks."""
    meta = Path(lake, _META)
    state = LakeState()
    while (path := meta / "commits" / _name(state.batches)).exists():
        data = path.read_bytes()
        try:
            commit = _decode(data)
            if commit["previous"] != state.last or commit["batch"] != state.batches:
                raise LakeDamaged(
                    f"{path} does not follow the commit before it: somebody changed the manifest"
                )
            if replaced := commit.get("replaces"):
                state.compactions += 1
                state.replaced = replaced
                gone = set(replaced)
                state.files = [each for each in state.files if each.path not in gone]
            if with_files:
                state.files += [LakeFile(**each) for each in commit["files"]]
        except (ValueError, KeyError, TypeError) as exc:
            raise LakeDamaged(f"{path} cannot be read: {exc}") from exc
        state.rows += commit["rows"]
        state.position, state.last = commit["end"], checksum(data)
        state.batches += 1
    plan = meta / "plans" / _name(state.batches)
    if plan.exists():
        state.pending = BatchPlan.decode(plan.read_bytes())
    return state


def record_plan(work: tuple[str, BatchPlan]) -> BatchPlan:
    """Record a plan as the plan of its batch, or return the one that is recorded already. Blocks."""
    lake, plan = work
    path = Path(lake, _META, "plans", _name(plan.batch))
    if _publish(path, plan.encode()):
        return plan
    return BatchPlan.decode(path.read_bytes())


def staging(lake: str, batch: int) -> Path:
    """Return the directory of a batch's files until they are committed."""
    return Path(lake, _STAGING, f"{batch:08d}")


def clear_staging(work: tuple[str, int]) -> None:
    """Remove the staged files of a batch whose disk is full: the next attempt writes all anew. Blocks."""
    shutil.rmtree(staging(*work), ignore_errors=True)


def commit(work: tuple[str, BatchPlan, Sequence[LakeFile]]) -> LakeState:
    """Commit the files of a batch, and return the new state of the lake. Blocks; doing it again is harmless."""
    lake, plan, files = work
    directory = Path(lake)
    path = directory / _META / "commits" / _name(plan.batch)
    rows = sum(each.rows for each in files)
    if not path.exists():
        folders = set()
        for each in files:
            target = directory / each.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(directory / each.staged, target)
            except FileNotFoundError:
                if not target.exists():
                    raise LakeDamaged(f"{directory / each.staged} is gone before it was committed") from None
            folders |= {
                target.parent,
                *(p for p in target.parents if p != directory and directory in p.parents),
            }
        for folder in sorted(folders | {directory}):
            sync_directory(folder)
        document = {
            "v": REPLACING if plan.replaces else VERSION,
            "batch": plan.batch, "start": plan.start, "end": plan.end, "rows": rows, "lost": plan.lost,
            "plan": checksum(plan.encode()), "previous": plan.previous,
            "files": [asdict(each) | {"staged": ""} for each in sorted(files, key=lambda each: each.path)],
        }  # fmt: skip
        if plan.replaces:
            document |= {"replaces": list(plan.replaces), "rows": 0}
        _publish(path, _encode(document))
    _sweep(directory, plan.batch + 1, plan.replaces)
    return read_lake(lake, with_files=False)


def _sweep(directory: Path, committed: int, replaced: Sequence[str]) -> None:
    """Remove what attempts of committed batches left behind, and files that count no longer."""
    for path in replaced:
        (directory / path).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory / _STAGING):
            if name.isdigit() and int(name) < committed:
                shutil.rmtree(directory / _STAGING / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(directory / _STAGING)


def _publish(path: Path, data: bytes) -> bool:
    """Give a file its name, whole and durable; False if somebody was faster."""
    partial = temporary_name(path)
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        sync_directory(path.parent)
        return True
    finally:
        partial.unlink(missing_ok=True)


def checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _name(batch: int) -> str:
    return f"{batch:08d}.json"


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, ensure_ascii=False, indent=1).encode()


def _decode(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    if found.get("v") not in (VERSION, REPLACING):
        raise LakeDamaged(
            f"the lake was written in version {found.get('v')}, and this Ropewalk knows {REPLACING}"
        )
    return found
