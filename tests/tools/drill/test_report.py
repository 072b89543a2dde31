import re
from itertools import pairwise

import msgspec
import pytest

from tools.drill.audit import Audit, Finding
from tools.drill.drills import ALL_DRILLS, DRILLS, MODES, drills_of
from tools.drill.outcome import Latency, Link, Replicas, Result, Series
from tools.drill.report.html import draw, nice_bytes, nice_ceiling, page
from tools.drill.report.text import figures, lines
from tools.drill.timeline import Event, Gap, repair_wait_s


def result(**changes: object) -> Result:
    made = Result(
        drill="kill-master",
        title="lose the master",
        verdict="clean",
        reasons=[],
        mode="SYNC_MASTER + ASYNC_FLUSH",
        promise="on two machines",
        version="0",
        began="2026-01-31T12:00:00+00:00",
        seconds=2.0,
        rate=10.0,
        acknowledged_rate=9.0,
        write_gap=Gap(0.5, 1.25),
        stored_gap=Gap(0.5, 0.75),
        calm_gap=Gap(0.1, 0.2),
        gaps=[Gap(0.5, 1.25)],
        latency=Latency(1.0, 2.0, 3.0),
        answers={"0": 18, "11": 3},
        remarks={},
        audit=Audit(sent=21, acknowledged=18, unknown=3, unknown_found=3),
        overlapping=0,
        replicas=Replicas(True, "the same bytes"),
        faults_hit=["node-1 ended by signal 9"],
        notes=[],
        events=[Event(0.0, "phase", "the load begins"), Event(0.5, "fault", "kill -9 node-1")],
        series=Series(0.5, [5, 4, 0, 9], [0, 0, 3, 0], [0, 0, 0, 0], {"node-1": [(0.1, 0), (1.5, 700_000)]}),
        links=[Link("node-1", "node-2", 1000, 2)],
        settings={"brokerRole": "SYNC_MASTER"},
    )
    return msgspec.structs.replace(made, **changes)


def test_the_text_holds_timeline_figures_and_verdict() -> None:
    text = "\n".join(lines(result()))
    for words in ("0.500 s  ✗ kill -9 node-1", "750 ms, from 0.500 s", "0 of 18", "yes: the same bytes"):
        assert words in text
    assert text.endswith("verdict: clean")


def test_the_time_in_which_nothing_could_be_stored_comes_first_and_every_wait_has_its_name() -> None:
    told = result(
        write_gap=Gap(0.5, 1.25),
        stored_gap=Gap(0.5, 1.0),
        events=[Event(0.6, "fault", "kill -9 node-1"), Event(0.9, "repair", "start node-1 again")],
    )
    assert figures(told)[:4] == [
        ("nothing could be stored (RTO)", "500 ms, from 0.500 s"),
        ("  before the script's repair", "300 ms"),
        ("nothing was acknowledged", "750 ms, from 0.500 s"),
        ("  waiting for a second copy", "250 ms"),
    ]
    drawn = page([told])
    cards = re.findall(r"<b>([^<]+)</b><span>([^<]+)</span>", drawn)
    assert cards[:3] == [
        ("500 ms", "nothing could be stored (RTO)"),
        ("300 ms", "of it, before the script&#x27;s repair"),
        ("250 ms", "stored, waiting for a second copy"),
    ]


def test_a_gap_that_ends_without_a_repair_waited_for_none() -> None:
    events = [
        Event(0.6, "fault", "kill -9 node-1"),
        Event(0.9, "seen", "node-2 is the master"),
        Event(3.0, "repair", "start node-1 again"),
    ]
    assert repair_wait_s(Gap(0.5, 1.0), events) == 0
    assert repair_wait_s(Gap(0.7, 3.5), events) == pytest.approx(2.3)


def test_every_reason_is_told_where_the_verdict_is() -> None:
    broken = result(verdict="broken", reasons=["replicas differ: at 7", "acknowledged but lost: 2"])
    text = list(lines(broken))
    assert text[-3:] == [
        "broken: replicas differ: at 7",
        "broken: acknowledged but lost: 2",
        "verdict: broken",
    ]


def test_texts_from_outside_are_no_markup() -> None:
    text = page([result(title="<script>alert(1)</script>", events=[Event(0.1, "seen", "<b>&</b>")])])
    assert "<script" not in text
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in text


def test_several_drills_come_with_an_overview() -> None:
    text = page([result(), result(drill="switch", verdict="broken", reasons=["x"])])
    assert "2 drills, 1 clean" in text
    assert 'href="#switch"' in text and 'id="switch"' in text


def test_a_drill_in_which_nothing_happened_can_be_drawn() -> None:
    empty = result(
        seconds=0.0, gaps=[], events=[], latency=None, series=Series(0.1, [0], [0], [0], {}), answers={}
    )
    assert draw(empty).startswith("<svg")
    assert list(lines(empty))


def test_a_long_drill_is_drawn_in_wider_pieces_and_its_numbers_do_not_lie_on_each_other() -> None:
    events = [Event(number / 10, "fault" if number % 2 else "seen", "again") for number in range(500)]
    count = 5000
    long = result(seconds=500.0, events=events, series=Series(0.1, [1] * count, [0] * count, [0] * count, {}))
    drawn = draw(long)
    assert drawn.count("<rect") <= 301 + len(long.gaps)
    places = [float(match) for match in re.findall(r'<circle cx="([0-9.]+)"', drawn)]
    assert all(right - left >= 18.9 for left, right in pairwise(places))
    assert drawn.count(": again</title>") == len(events) // 2


def test_a_result_is_json_and_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(result()), type=Result) == result()


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (3, 5), (5, 5), (7, 10), (180, 200), (0.3, 0.5), (0.02, 0.02)]
)
def test_axes_end_at_round_numbers(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


def test_byte_axes_end_at_round_numbers_of_their_unit() -> None:
    assert nice_bytes(700) == 1024
    assert nice_bytes(300_000) == 500 * 1024
    assert nice_bytes(700_000) == 1024 * 1024


def test_drills_have_names_of_their_own_and_only_orders_touch_a_live_group() -> None:
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)
    assert {drill.name for drill in DRILLS if drill.live} == {"switch", "failover"}
    assert [drill for mode in MODES for drill in drills_of(mode)] == list(ALL_DRILLS)


def test_every_way_to_lose_a_member_or_a_link_can_be_rehearsed() -> None:
    names = {drill.name for drill in DRILLS}
    assert names >= {
        *(
            "kill-master",
            "stop-master",
            "kill-slave",
            "cut-link",
            "cut-to-slave",
            "cut-to-master",
            "slow-link",
        ),
        *(
            "switch",
            "rolling-restart",
            "full-disk",
            "full-disk-master",
            "corrupt-slave",
            "old-master-returns",
        ),
    }


def test_findings_keep_their_count_and_examples() -> None:
    finding = Finding("moved", 12, ("one", "two"))
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
