"""The comparison of clients measures both, in every load, and leaves out what is void."""

from __future__ import annotations

import pytest

from tests.bench.peers.rocketmq.artifacts import JavaUnavailable
from tests.bench.peers.rocketmq.clients import Load, Plan, Rates, as_table, compare
from tests.compat.conftest import unavailable
from tests.support.long_run import ROOM_S
from tools.bench.spec import ClientMode


@pytest.mark.compat
@pytest.mark.slow
def test_both_clients_carry_out_a_load_of_each_kind() -> None:
    modes: tuple[ClientMode, ...] = ("async", "pull")
    plan = Plan(warm_up_s=0.2, duration_s=0.8, rounds=1, body_size=100, in_flight=4, backlog=3000)
    try:
        rates = compare(plan, modes)
    except JavaUnavailable as missing:
        unavailable(str(missing))
    assert tuple(one.mode for one in rates) == modes
    for one in rates:
        for load in (*one.ours, *one.java):
            assert not load.void and load.rate > 0 and load.cpu_s > 0, one
            assert load.seconds <= plan.duration_s + 0.5 + ROOM_S, one


def test_a_void_load_has_no_ratio() -> None:
    rounds = (Load(100, 10.0, 0.001), Load(300, 10.0, 0.003))
    void = (Load(10, 1.0, 0.1), Load(void="ours: 1 replies never came"))
    table = as_table(
        [Rates("sync", rounds, (Load(400, 10.0, 0.004),)), Rates("async", void, (Load(5, 1.0, 0.1),))],
        Plan(rounds=2),
    )
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["20 (10-30)", "void"] and cells[3] == ["0.50", ""]
    assert cells[4] == ["10.0", ""] and cells[6] == ["", "ours: 1 replies never came"]
