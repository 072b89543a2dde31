"""The comparison of clients measures both, in every load, and leaves out what is void."""

from __future__ import annotations

import pytest

from tests.bench.peers.rocketmq.artifacts import JavaUnavailable
from tests.bench.peers.rocketmq.clients import Plan, Rates, as_table, compare
from tests.compat.conftest import unavailable
from tools.bench.spec import ClientMode


@pytest.mark.compat
@pytest.mark.slow
def test_both_clients_carry_out_a_load_of_each_kind() -> None:
    modes: tuple[ClientMode, ...] = ("async", "pull")
    plan = Plan(warm_up_s=0.2, duration_s=0.8, body_size=100, in_flight=4, backlog=3000)
    try:
        rates = compare(plan, modes)
    except JavaUnavailable as missing:
        unavailable(str(missing))
    assert tuple(one.mode for one in rates) == modes
    for one in rates:
        assert one.ours is not None and one.ours > 0, one
        assert one.java is not None and one.java > 0, one


def test_a_void_load_has_no_ratio() -> None:
    table = as_table(
        [Rates("sync", 10.0, 20.0), Rates("async", None, 5.0, "ours: 1 replies never came")], Plan()
    )
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["10", "void"] and cells[3] == ["0.50", ""]
    assert cells[4] == ["", "ours: 1 replies never came"]
