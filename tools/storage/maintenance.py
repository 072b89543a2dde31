"""Carry out `ropewalk store verify | recover | repair | info`: plain functions that return documents.

The judgement is the store's (`store.offline.verify`, `store.offline.start_preview`, `store.offline.repair`). Added
here is what a tool has around it: the directory to work on and a copy of it, the JSON files of the broker, and the
form in which people read all that.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import crc32c

from broker.replication.dledger.peer_notes import PeerNotes
from broker.settings.config import ConfigError, load_config
from broker.state.json_file import StoreConfigDamaged
from ropewalk.format import fastjson
from ropewalk.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from ropewalk.format.index import Geometry
from store.log.commitlog import CommitLog
from store.log.durable_bound import boot_id, decode_bound
from store.log.placing import ENTRY
from store.log.remedy import MEND
from store.log.segment import Segment
from store.offline.diverged import about_of
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Finding, Findings
from store.offline.layout import Layout, guess_layout, log_names
from store.offline.reader import UnreadableStore, is_entry_log, log_folder
from store.offline.repair import Repaired, repair
from store.offline.start_preview import Outcome, recover_store, try_start
from store.offline.verify import Verification
from store.offline.verify_entries import EntryCheck
from store.offline.verify_regions import RegionFacts, region_facts, regions_of
from store.queues.consume_queue import ConsumeQueue
from store.recovery.delay_levels import DelayLevels
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record
from store.recovery.scan import last_store_time
from tools.common.output import UsageError, counted
from tools.messages.consume import time_text

Progress = Callable[[int, int], None]
_COPY_STEP = 8 << 20
_EXITS = {"clean": "left in order", "abnormal": "left without a farewell: the next start reads its end again"}


def find_store(
    directory: Path,
    config_file: Path | None = None,
    others: Sequence[Path] = (),
    *,
    takes_entries: bool = False,
) -> Layout:
    """Find the store, and in which shape it is: as a configuration says, or as its files and other copies tell.

    The store of a DLedger member is refused unless `takes_entries`.
    """
    if not directory.is_dir():
        raise UnreadableStore(f"cannot read {directory}: no such directory")
    folder = log_folder(directory)
    given = Layout(directory, directory / "commitlog")
    if is_entry_log(folder):
        if not takes_entries:
            raise _refuse_entry_log(directory, folder)
        root = directory.parent if folder.parent == directory else directory
        given = Layout(root, folder)
    if config_file is not None:
        try:
            config = load_config(config_file=config_file)
        except (ConfigError, OSError) as exc:
            raise UsageError(f"cannot use {config_file}: {exc}") from exc
        log_directory = given.log_directory
        if not is_entry_log(folder) and not log_directory.is_dir():
            log_directory = config.store_path_commit_log
        given = Layout(
            given.root,
            log_directory,
            config.mapped_file_size_commit_log,
            config.mapped_file_size_consume_queue,
            Geometry(config.max_hash_slot_num, config.max_index_num) if config.message_index_enable else None,
            DelayLevels(config.message_delay_level),
        )
    disk = DryRunDisk()
    try:
        return guess_layout(disk, given, others)
    finally:
        disk.close()


def _refuse_entry_log(directory: Path, folder: Path) -> UnreadableStore:
    """Return the error of a command that changes a plain store, for the store of a DLedger member."""
    return UnreadableStore(
        f"{directory} is the store of a DLedger member: its log in {folder} has entries, which a start brings in order "
        f"by itself, and which no command changes. `ropewalk store verify {directory}` tells damage, `ropewalk store "
        f"dump {folder.parent}` reads what is there; for a member whose log is damaged, {MEND}"
    )


# -- verify ------------------------------------------------------------------------------------------


def verify_store(layout: Layout, progress: Progress) -> tuple[Verification, list[Finding]]:
    """Look at everything. Raises `StoreLocked` while a broker has the store."""
    verification = Verification(layout, DryRunDisk(), progress)
    try:
        verification.run()
    except OSError as exc:
        raise UnreadableStore(f"cannot read {exc.filename or layout.root}: {exc.strerror or exc}") from exc
    findings = verification.findings + verify_configs(layout.root) + _verify_peers(layout.root)
    return verification, sorted(findings, key=lambda finding: not finding.damage)


def verify_configs(root: Path) -> list[Finding]:
    """The broker's JSON files: whether each can be read, and who wrote it."""
    findings: list[Finding] = []
    sums = _checksums_of_configs(root, findings)
    for path in sorted((root / "config").glob("*.json")) if (root / "config").is_dir() else ():
        for generation in (path, path.with_name(path.name + ".bak")):
            try:
                raw = generation.read_bytes()
            except FileNotFoundError:
                continue
            try:
                readable = isinstance(fastjson.loads(raw), dict)
            except ValueError as exc:
                findings.append(_torn(generation, str(exc)))
                continue
            if not readable:
                findings.append(_torn(generation, "not a JSON object"))
            elif generation.name in sums and crc32c.crc32c(raw) != sums[generation.name]:
                findings.append(
                    Finding(
                        False,
                        str(generation),
                        "",
                        "was changed by another program since this broker saved it",
                    )
                )
    return findings


def _verify_peers(root: Path) -> list[Finding]:
    """Return the damage of the incarnations that a DLedger member noted."""
    folder = root / "ropewalk" / "dledger"
    try:
        PeerNotes(folder, DryRunDisk()).load()
    except StoreConfigDamaged as exc:
        return [Finding(True, str(folder / "peers.json"), "", str(exc))]
    return []


def _torn(path: Path, why: str) -> Finding:
    older = "put an older generation in its place, or remove it"
    advice = older if path.suffix == ".bak" else "the next start takes the .bak, or the generation before it"
    return Finding(True, str(path), "byte 0", f"cannot be read as JSON: {why}", advice)


def _checksums_of_configs(root: Path, findings: list[Finding]) -> dict[str, int]:
    path = root / "ropewalk" / "config.crc"
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        findings.append(
            Finding(
                True, str(path), "byte 0", "cannot be read as JSON", "remove it: the next save writes it anew"
            )
        )
        return {}
    return {name: number for name, number in value.items() if isinstance(number, int)}


def verify_json(layout: Layout, verification: Verification, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "directory": str(layout.root),
        "clean": not any(finding.damage for finding in findings),
        "logStart": verification.log.min_offset if verification.log.segments else _first_offset(layout),
        "logEnd": verification.end,
        "looked": asdict(verification.counts),
        "findings": [asdict(finding) for finding in findings],
    }


def _first_offset(layout: Layout) -> int:
    names = log_names(DryRunDisk(), layout.log_directory)
    return int(names[0]) if names else 0


# -- recover -----------------------------------------------------------------------------------------


def recover(layout: Layout, *, apply: bool, cut: bool) -> tuple[Outcome, Outcome | None]:
    """Return the changes that a start makes or would make; and, where it is refused, the loss of a cut."""
    outcome = try_start(layout, sync_flush=not cut)
    other = None
    if outcome.refusal is not None and not cut:
        other = try_start(layout, sync_flush=False)
    if apply and outcome.refusal is None:
        done = recover_store(layout, cut=cut)
        outcome = Outcome(
            done.refusal, done.end, done.scanned_from, done.durable, done.records, done.findings,
            outcome.changes, outcome.records_cut,
        )  # fmt: skip
    return outcome, other


def outcome_lines(layout: Layout, outcome: Outcome, other: Outcome | None, *, applied: bool) -> list[str]:
    """Return the outcome as lines for people."""
    root = layout.root
    if outcome.refusal is not None:
        lines = [f"A start is refused: {outcome.refusal}"]
        if other is not None and other.refusal is None:
            lines.append(
                f"Under SYNC_FLUSH only a person can decide here. `ropewalk store recover {root} --cut --apply` ends "
                f"the log at offset {other.end}; {other.records_cut} whole records behind it are copied to "
                f"{root / 'ropewalk' / 'tails'} and leave the log. If they were acknowledged, they are lost then: "
                f"compare with a replica or a backup first (`ropewalk store repair {root} --to COPY --from OTHER`). "
                f"Under ASYNC_FLUSH a start cuts here by itself"
            )
        elif other is not None and "--from OTHER" in outcome.refusal:  # else the log itself is whole
            lines.append(
                "Bytes that were promised to be durable are concerned, so cutting is no choice here: "
                f"`ropewalk store repair {root} --to COPY --from OTHER` replaces them, and without another copy "
                "`--accept-loss` gives them up"
            )
        return lines
    verb = "The log was" if applied else "A start would read the log"
    lines = [
        f"{verb} {'read ' if applied else ''}from offset {outcome.scanned_from} on: "
        f"{outcome.records} records, and the log ends at offset {outcome.end}"
    ]
    if outcome.records_cut:
        lines.append(f"{outcome.records_cut} whole records behind that end leave the log")
    lines += outcome.findings
    if not applied:
        queue_files = str(root / "consumequeue") + os.sep
        rebuilt = sum(change.startswith(queue_files) for change in outcome.changes)
        lines += [f"would change {c}" for c in outcome.changes if not c.startswith(queue_files)]
        if rebuilt:
            lines.append(f"would write {rebuilt} queue files anew, from the records")
        if not outcome.changes:
            lines.append("It would change nothing")
    return lines


# -- repair ------------------------------------------------------------------------------------------


def repair_store(
    layout: Layout,
    copy: Path | None,
    others: Sequence[Path],
    *,
    accept_loss: bool,
    copied: Progress,
    looked: Progress,
) -> tuple[Layout, Repaired]:
    """Repair a copy, or with no `copy` the store itself."""
    from dataclasses import replace

    target = layout
    if copy is not None:
        if copy.exists() and any(copy.iterdir()):
            raise UsageError(f"{copy} exists and is not empty")
        disk = DryRunDisk()
        disk.unlock(disk.lock(layout.root / "lock"))
        copy_store(layout, copy, copied)
        target = replace(layout, root=copy, log_directory=copy / "commitlog")
    for other in others:
        if not other.is_dir():
            raise UsageError(f"--from {other} is no directory")
    return target, repair(target, others, accept_loss=accept_loss, progress=looked)


def copy_store(layout: Layout, copy: Path, progress: Progress) -> None:
    """Copy a store with holes and times as they are; the log goes where a store keeps it by default."""
    files = [(path, copy / path.relative_to(layout.root)) for path in _files(layout.root)]
    if layout.root not in layout.log_directory.parents:
        files += [
            (path, copy / "commitlog" / path.relative_to(layout.log_directory))
            for path in _files(layout.log_directory)
        ]
    total = sum(path.stat().st_size for path, _target in files)
    done = 0
    for path, target in files:
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(path, target)
        done += path.stat().st_size
        progress(done, total)


def _files(directory: Path) -> list[Path]:
    """Every file below, also where a folder is a link to another disk; but the lock."""
    found: list[Path] = []
    seen: set[Path] = set()
    for folder, folders, names in os.walk(directory, followlinks=True):
        real = Path(folder).resolve()
        if real in seen:  # a link to what contains it
            folders.clear()
            continue
        seen.add(real)
        found += [path for name in names if name != "lock" and (path := Path(folder, name)).is_file()]
    return sorted(found)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        at = 0
        while at < size:
            try:
                start = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError as exc:
                if exc.errno == errno.ENXIO:
                    break
                raise
            at = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            for position in range(start, at, _COPY_STEP):
                data = os.pread(old.fileno(), min(_COPY_STEP, at - position), position)
                os.pwrite(new.fileno(), data, position)
        os.fsync(new.fileno())
    shutil.copystat(source, target)  # retention counts from these times


# -- info --------------------------------------------------------------------------------------------


def store_info(layout: Layout) -> dict[str, Any]:
    """Return the content of a store as a document; also of a store in use, whose end moves meanwhile."""
    disk = DryRunDisk()
    root = layout.root
    log = CommitLog(layout.log_directory, layout.segment_size, disk, layout.placing)
    try:
        for name in log_names(disk, layout.log_directory):
            if disk.size_of(layout.log_directory / name) == layout.segment_size and layout.segment_size:
                file = disk.open_mapped(layout.log_directory / name)
                log._add(Segment(int(name), file, placing=layout.placing))
        data = disk.read_file(root / "checkpoint")
        point = Checkpoint.decode(data) if data is not None and len(data) >= CHECKPOINT_SIZE else None
        bound = decode_bound(disk.read_file(root / "ropewalk" / "bound"))
        topics, newest, end = _topics(layout, disk, log)
        end, newest = _end_of(log, end, newest)
        first = scan_record(log.segments[0], 0) if log.segments else None
        abort = disk.exists(root / "abort")
        kept = about_of(root, disk)  # a diverged tail: a log without queues that would tell its end
        ends = end, bound.end if bound is not None and bound.clean else 0, kept.end if kept is not None else 0
        return {
            "directory": str(root),
            "inUse": disk.is_locked(root / "lock"),
            "lastExit": "abnormal" if abort else "clean",
            "segmentSize": layout.segment_size,
            "segments": len(log.segments),
            "logStart": log.min_offset,
            "logEnd": max(ends),
            "firstStored": first.store_timestamp if isinstance(first, ScannedRecord) else None,
            "lastStored": newest or None,
            "queueFileSize": layout.queue_file_size or None,
            "index": {"slots": layout.index.slots, "items": layout.index.items} if layout.index else None,
            "checkpoint": asdict(point) if point is not None else None,
            "bound": {
                "flushed": bound.flushed,
                "queues": bound.queues,
                "entries": bound.entries,
                "clean": bound.clean,
                "thisBoot": bound.boot == boot_id(disk),
            }
            if bound is not None
            else None,
            "checksums": len(disk.names(root / "ropewalk" / "checksums")),
            "dledger": _ledger_facts(layout, disk),
            "regions": [_region_document(region_facts(root, id, disk)) for id in regions_of(root, disk)],
            "topics": topics,
        }
    except OSError as exc:
        raise UnreadableStore(f"cannot read {exc.filename or root}: {exc.strerror or exc}") from exc
    finally:
        log.close(keep_spare=True)
        disk.close()


def _ledger_facts(layout: Layout, disk: DryRunDisk) -> dict[str, Any] | None:
    """Return what the small files of a DLedger member say; None for a plain store."""
    if layout.placing is not ENTRY:
        return None
    check = EntryCheck(layout.log_directory.parent, layout.root / "ropewalk" / "dledger")
    check.read_small_files(Findings(layout.root), disk)
    term, vote = check.ballot or (0, "")
    return {
        "member": check.directory.name.removeprefix("dledger-"),
        "term": term,
        "vote": vote,
        "committedIndex": check.committed_index,
        "doubtIndex": check.doubt[0] if check.doubt is not None else None,
    }


def _region_document(region: RegionFacts) -> dict[str, Any]:
    return {
        "region": region.id,
        "committedIndex": region.committed_index,
        "segments": region.segments,
        "logStart": region.log_start,
        "snapshots": region.snapshots,
        "problem": region.problem or None,
    }


def _end_of(log: CommitLog, offset: int, newest: int) -> tuple[int, int]:
    """Where the records end that follow one another from `offset` on, and the newest store time.

    Where the last exit was abnormal, or a broker is at work, the log goes on behind what its queues' files know.
    """
    begun = [
        segment.base_offset for segment in log.segments if isinstance(scan_record(segment, 0), ScannedRecord)
    ]
    offset = max([offset, *begun[-1:]])
    while (segment := log.find(offset)) is not None:
        seen = scan_record(segment, offset - segment.base_offset)
        if isinstance(seen, ScannedRecord):
            offset, newest = seen.end, max(newest, seen.store_timestamp)
        elif seen is NoRecord.FILLER:
            offset = segment.end_offset
        else:
            break
    return offset, newest


def info_facts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the facts of `store_info` about the store as a whole, in words."""
    yield "directory", document["directory"]
    # A running broker's store looks like one that was left without a farewell.
    yield "state", "a broker has it open" if document["inUse"] else f"closed, {_EXITS[document['lastExit']]}"
    files = f"{counted(document['segments'], 'file')} of {counted(document['segmentSize'], 'byte')}"
    yield "log", f"offset {document['logStart']} to {document['logEnd']}, in {files}"
    if document["firstStored"] is not None and document["lastStored"] is not None:
        yield "stored", f"{time_text(document['firstStored'])} to {time_text(document['lastStored'])}"
    if document["queueFileSize"] is not None:
        yield "queue files", f"{counted(document['queueFileSize'], 'byte')} each"
    if document["index"] is not None:
        slots, items = (
            counted(document["index"]["slots"], "slot"),
            counted(document["index"]["items"], "item"),
        )
        yield "key index", f"files of {slots} and {items}"
    ledger = document["dledger"]
    if ledger is not None:
        vote = f", in which it voted for {ledger['vote']}" if ledger["vote"] else ""
        yield "member", f"{ledger['member']}, in term {ledger['term']}{vote}"
        yield "committed", f"entries through {ledger['committedIndex']}"
        if ledger["doubtIndex"] is not None:
            yield "in doubt", f"entries through {ledger['doubtIndex']}, which a start had to cut"
    for region in document["regions"]:
        files = f"log of {counted(region['segments'], 'file')} from offset {region['logStart']} on"
        behind = ", ".join(map(str, region["snapshots"]))
        states = f"states behind entry {behind}" if behind else "no snapshot"
        problem = f"; {region['problem']}" if region["problem"] else ""
        yield (
            f"region {region['region']}",
            f"committed entries through {region['committedIndex']}, {files}, {states}{problem}",
        )
    point = document["checkpoint"]
    if point is not None:
        parts = {"log": "physic", "queues": "logics", "key index": "index"}
        told = {part: point[f"{name}_msg_timestamp"] for part, name in parts.items()}
        yield (
            "checkpoint",
            ", ".join(f"{part}: {time_text(at) if at else 'none'}" for part, at in told.items()),
        )
    bound = document["bound"]
    if bound is not None:
        yield "on disk", f"log to offset {bound['flushed']}, queues to offset {bound['queues']}"
    yield "checksums", f"of {counted(document['checksums'], 'file')} of the log"


def _topics(layout: Layout, disk: DryRunDisk, log: CommitLog) -> tuple[list[dict[str, Any]], int, int]:
    """Every queue with its first and next number; the newest store time, and behind which offset no entry points."""
    found: list[dict[str, Any]] = []
    newest = end = 0
    base = layout.root / "consumequeue"
    for topic in disk.directories(base):
        for name in disk.directories(base / topic):
            if not name.isdigit() or not layout.queue_file_size:
                continue
            queue = ConsumeQueue(topic, int(name), base / topic / name, layout.queue_file_size, disk)
            try:
                queue.load()
                queue.raise_min(log.min_offset)
                stored = last_store_time(queue, log)
            except Exception as exc:  # a damaged queue is one line of the table
                found.append({"topic": topic, "queue": int(name), "problem": str(exc)})
                continue
            newest, end = max(newest, stored), max(end, queue.max_physical)
            found.append(
                {
                    "topic": topic,
                    "queue": int(name),
                    "min": queue.min_offset,
                    "next": queue.next_offset,
                    "lastStored": stored or None,
                }
            )
    return found, newest, end
