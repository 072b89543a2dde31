"""The one hold that the simulator has on trio's internals, pinned: docs/design/decisions.md tells why it is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import trio
from trio._core import _run as trio_run

ROOT = Path(__file__).parents[2]
HOLDER = "tests/sim/group.py"
ROOMS = ("ropewalk", "store", "ha", "broker", "tools", "tests", "examples")
TASKS = 12


def order_of(seed: int) -> list[int]:
    """Return the order in which trio runs tasks that are all ready at once."""
    ran: list[int] = []

    async def one(number: int) -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            ran.append(number)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(TASKS):
                nursery.start_soon(one, number)

    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    try:
        trio_run._r.seed(seed)
        trio.run(main)
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
    return ran


def test_trio_has_the_two_names_that_the_simulator_holds() -> None:
    assert hasattr(trio_run._r, "seed")
    assert isinstance(trio_run._ALLOW_DETERMINISTIC_SCHEDULING, bool)


def test_a_seed_decides_the_order_of_tasks() -> None:
    orders = [order_of(seed) for seed in range(5)]
    assert [order_of(seed) for seed in range(5)] == orders
    assert len({tuple(order) for order in orders}) > 1, (
        "all seeds give one order: trio draws elsewhere by now"
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_other_file_holds_trios_internals(room: str) -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / room).rglob("*.py"))
        if path != Path(__file__) and _reaches_inside(path)
    ]
    assert found == ([HOLDER] if room == "tests" else [])


def _reaches_inside(path: Path) -> bool:
    """Tell whether a file imports a private module of trio, or names one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("trio._"):
                return True
            case ast.Import(names=names) if any(name.name.startswith("trio._") for name in names):
                return True
            case ast.Attribute(value=ast.Name(id="trio"), attr=attr) if attr.startswith("_"):
                return True
    return False
