"""The findings of an audit as a report."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ropewalk.spark.jobs.audit.job import Audit
from ropewalk.spark.jobs.audit.repair import Repaired
from ropewalk.spark.jobs.common.report import FINDINGS, OK, Report, Strips, Table
from ropewalk.spark.jobs.records.findings import Finding

_BAD: Final = frozenset(("damage",))


def audit_report(audit: Audit) -> Report:
    """Report the copies, the findings, and the remedy of each."""
    roots = [store.root for store in audit.stores]
    damage = [finding for finding in audit.findings if finding.is_damage]
    counts = Counter(finding.kind.value for finding in audit.findings)
    summary = {
        "stores": roots,
        "records": max(audit.records, default=0),
        "record_bytes": audit.record_bytes,
        "queue_entries": sum(audit.entries),
        "checksummed_blocks": audit.blocks,
        "index_items": audit.index_items,
        "damage": len(damage),
        "counts": dict(counts),
        "repairable": sum(finding.repair_from >= 0 for finding in damage),
    }
    sides = Table(
        "copies",
        ("store", "begins", "ends", "records", "entries", "stopped in good order"),
        [
            (store.root, store.min_offset, end, records, entries, "yes" if store.is_clean else "no")
            for store, end, records, entries in zip(
                audit.stores, audit.ends, audit.records, audit.entries, strict=True
            )
        ],
    )
    findings = Table(
        "findings",
        ("kind", "damaged", "log offset", "end", "place", "what", "repair from"),
        [_row(finding, roots) for finding in audit.findings],
        frozenset(number for number, finding in enumerate(audit.findings) if finding.is_damage),
    )
    strips = Strips(
        "Where the copies are damaged",
        "log offset",
        [
            (
                store.root,
                store.min_offset,
                end,
                [(f.start, f.end, f.kind.value) for f in audit.findings if f.side in (number, -1)],
            )
            for number, (store, end) in enumerate(zip(audit.stores, audit.ends, strict=True))
        ],
        frozenset(finding.kind.value for finding in damage),
    )
    title = f"Audit of {' and '.join(roots)}: {len(damage) or 'no'} finding{'' if len(damage) == 1 else 's'}"
    return Report("audit", title, summary, [sides, findings], [strips], FINDINGS if damage else OK, _BAD)


def _row(finding: Finding, roots: list[str]) -> tuple[str, str, int, int, str, str, str]:
    if finding.repair_from < 0:
        remedy = "" if not finding.is_damage else "nobody"
    elif finding.repair_from == finding.side:
        remedy = "its own log"
    else:
        remedy = roots[finding.repair_from]
    return (
        finding.kind.value,
        roots[finding.side] if finding.side >= 0 else "one of them",
        finding.start,
        finding.end,
        finding.place,
        finding.text,
        remedy,
    )


def repair_table(audit: Audit, repaired: list[Repaired]) -> Table:
    """List the repaired copies and the findings that are left in them."""
    return Table(
        "repaired copies",
        ("store", "copy", "files", "places mended", "bytes mended", "findings left"),
        [
            (audit.stores[each.side].root, each.path, each.files, each.patches, each.patched_bytes, each.left)
            for each in repaired
        ],
    )
