"""`ropewalk store verify | recover | repair | info`: exit codes, JSON, and what stays untouched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.replication.role_files import read_roles, write_roles
from ha.group.epochs import Epochs
from ha.group.roles import RoleCore, RoleRecord
from store.io.disk import Disk
from store.message_store import MessageStore
from tests.store.region_world import Region
from tests.store.worlds import put
from tests.support.clocks import Clock
from tests.support.recorded_stores import unpack
from tests.support.stores import config, fill, fill_ledger, flip, segments
from tests.tools.conftest import RunCommand
from tools.storage.maintenance import verify_configs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_verify_says_clean_and_ends_with_0(ropewalk: RunCommand, root: Path) -> None:
    done = ropewalk("store", "verify", root)
    assert (done.status, done.errors) == (0, "")
    assert done.lines[-1].startswith("0 damaged places; looked at 60 records in ")


def test_verify_names_file_offset_and_remedy_and_ends_with_1(ropewalk: RunCommand, root: Path) -> None:
    flip(segments(root)[1], 700, 2)
    done = ropewalk("store", "verify", root, "--json")
    assert done.status == 1
    assert done.document["clean"] is False
    finding = done.document["findings"][0]
    assert finding["damage"] and finding["path"] == str(segments(root)[1])
    assert "log offset" in finding["place"] and "ropewalk store repair" in finding["advice"]
    table = ropewalk("store", "verify", root)
    assert table.status == 1 and str(segments(root)[1]) in table.out.decode()


@pytest.mark.parametrize("command", ["verify", "recover", "info"])
def test_what_is_no_store_ends_with_2(ropewalk: RunCommand, command: str, tmp_path: Path) -> None:
    for directory in (tmp_path / "nowhere", tmp_path):
        done = ropewalk("store", command, directory)
        assert done.status == 2 and "error: " in done.errors, command


@pytest.mark.parametrize("words", [("verify",), ("recover",), ("repair", "--in-place")])
def test_a_store_in_use_is_left_to_its_broker(
    ropewalk: RunCommand, words: tuple[str, ...], root: Path
) -> None:
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    done = ropewalk("store", *words, root)
    assert done.status in (1, 2) and "in use" in done.errors
    assert ropewalk("store", "info", root, "--json").document["inUse"] is True
    store.close()


@pytest.mark.parametrize("command", ["dump", "info", "verify"])
def test_the_folder_above_a_store_names_the_store(ropewalk: RunCommand, tmp_path: Path, command: str) -> None:
    (tmp_path / "data" / "broker-a" / "commitlog").mkdir(parents=True)
    ended = ropewalk("store", command, tmp_path / "data")
    assert ended.status == 2
    assert f"try {tmp_path / 'data' / 'broker-a'}" in ended.errors


def test_recover_only_says_what_it_would_do_until_it_is_told(ropewalk: RunCommand, root: Path) -> None:
    last = segments(root)[-1] if any(segments(root)[-1].read_bytes()) else segments(root)[-2]
    data = bytearray(last.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    data[end + 10 : end + 14] = b"dead"
    last.write_bytes(data)
    before = contents(root)
    said = ropewalk("store", "recover", root)
    assert said.status == 0 and contents(root) == before
    assert any("dead bytes behind" in line for line in said.lines)
    done = ropewalk("store", "recover", root, "--apply", "--json")
    assert done.status == 0 and done.document["applied"] is True
    assert b"dead" not in last.read_bytes()
    assert (root / "ropewalk" / "tails").is_dir()


def test_recover_says_why_a_start_is_refused(ropewalk: RunCommand, root: Path) -> None:
    flip(segments(root)[1], 700, 2)
    before = contents(root)
    done = ropewalk("store", "recover", root, "--apply")
    assert done.status == 1
    assert "A start is refused" in done.lines[0] and "cutting is no choice here" in done.lines[1]
    assert contents(root) == before


def test_what_does_not_concern_the_log_is_no_reason_to_give_bytes_up(
    ropewalk: RunCommand, root: Path
) -> None:
    foreign = root / "commitlog" / "notes.txt"
    foreign.write_text("hello")
    done = ropewalk("store", "recover", root)
    assert done.status == 1 and f"move it out of {foreign.parent}" in done.lines[0]
    assert "--accept-loss" not in done.out.decode()
    foreign.unlink()
    segments(root)[-1].unlink()
    segments(root)[-1].unlink()
    (line, more) = ropewalk("store", "recover", root).lines
    assert "files are missing" in line and "--accept-loss" in more


def test_repair_never_touches_the_source_unless_told(
    ropewalk: RunCommand, root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "backup")
    flip(segments(root)[1], 700, 2)
    before = contents(root)
    assert ropewalk("store", "repair", root).status == 2
    assert ropewalk("store", "repair", root, "--to", tmp_path / "backup").status == 2

    lost = ropewalk("store", "repair", root, "--to", tmp_path / "alone", "--json")
    assert lost.status == 1 and lost.document["lost"] and not lost.document["rebuilt"]

    done = ropewalk(
        "store", "repair", root, "--to", tmp_path / "copy", "--from", tmp_path / "backup", "--json"
    )
    assert done.status == 0, done.errors
    assert done.document["rebuilt"] and done.document["taken"]
    assert contents(root) == before
    assert ropewalk("store", "verify", tmp_path / "copy").status == 0
    assert [p.read_bytes() for p in segments(tmp_path / "copy")][:-1] == [
        p.read_bytes() for p in segments(tmp_path / "backup")
    ][: len(segments(tmp_path / "copy")) - 1]

    assert ropewalk("store", "repair", root, "--in-place", "--from", tmp_path / "backup").status == 0
    assert ropewalk("store", "verify", root).status == 0


def test_a_copy_has_what_lies_behind_links_to_other_disks(
    ropewalk: RunCommand, root: Path, tmp_path: Path
) -> None:
    for name in ("commitlog", "consumequeue"):
        (root / name).rename(tmp_path / name)
        (root / name).symlink_to(tmp_path / name)
    (root / "config").mkdir()
    (root / "config" / "round").symlink_to(root)
    done = ropewalk("store", "repair", root, "--to", tmp_path / "copy", "--json")
    assert done.status == 0, done.errors
    assert done.document["records"] == 60 and not done.document["lost"]
    assert not (tmp_path / "copy" / "commitlog").is_symlink()
    assert ropewalk("store", "verify", tmp_path / "copy").status == 0


def test_info_shows_sizes_queues_and_how_it_was_left(ropewalk: RunCommand, root: Path) -> None:
    document = ropewalk("store", "info", root, "--json").document
    assert (document["segmentSize"], document["queueFileSize"], document["index"]) == (
        4096,
        200,
        {"slots": 50, "items": 200},
    )
    assert document["lastExit"] == "clean" and document["bound"]["clean"] and not document["inUse"]
    assert sum(queue["next"] - queue["min"] for queue in document["topics"]) == 60
    (root / "abort").write_text("1")
    assert ropewalk("store", "info", root, "--json").document["lastExit"] == "abnormal"
    (state,) = (line for line in ropewalk("store", "info", root).lines if line.startswith("state "))
    assert "without a farewell" in state


def test_info_tells_where_the_log_ends_also_where_the_queues_lag_behind_it(
    ropewalk: RunCommand, root: Path, tmp_path: Path
) -> None:
    clock = Clock()
    store = MessageStore(config(root), Disk(), clock, lambda: None)
    store.open()
    clock.ms += 60_000
    put(store, [b"x" * 50] * 60)
    shutil.copytree(root, tmp_path / "killed")
    end, stored = store.log.end_offset, store.last_store_ms
    store.close()
    document = ropewalk("store", "info", tmp_path / "killed", "--json").document
    assert (document["logEnd"], document["lastStored"]) == (end, stored)
    assert document["bound"]["queues"] < end, "or this would be no test"


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_store_of_rocketmq_is_looked_at_mended_and_then_ours(
    ropewalk: RunCommand, name: str, tmp_path: Path
) -> None:
    unpack(name, tmp_path / "store")
    before = contents(tmp_path / "store")
    assert ropewalk("store", "verify", tmp_path / "store").status == 0
    assert ropewalk("store", "recover", tmp_path / "store").status == 0
    document = ropewalk("store", "info", tmp_path / "store", "--json").document
    assert document["logEnd"] == 156585
    assert contents(tmp_path / "store") == before
    copy = tmp_path / "copy"
    assert ropewalk("store", "repair", tmp_path / "store", "--to", copy, "--json").document["records"] == 131
    assert ropewalk("store", "verify", copy, "--json").document["looked"]["items"] == 386


def write(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zero(data: bytes) -> bytes:
    return bytes(len(data))


@pytest.mark.parametrize("change", [cut, zero])
@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "topics.json.bak"])
def test_a_torn_config_file_is_damage(tmp_path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    text = b'{"offsetTable":{"a@b":{0:5,1:7}}}'
    for each in ("topics.json", "consumerOffset.json", "topics.json.bak"):
        write(tmp_path / "config" / each, text)
    assert not verify_configs(tmp_path)
    write(tmp_path / "config" / name, change(text))
    (finding,) = verify_configs(tmp_path)
    assert finding.damage and finding.path == str(tmp_path / "config" / name) and finding.advice


def test_a_config_file_that_another_program_wrote_is_a_note(tmp_path: Path) -> None:
    write(tmp_path / "config" / "topics.json", b"{}")
    write(tmp_path / "ropewalk" / "config.crc", b'{"topics.json": 1}')
    (finding,) = verify_configs(tmp_path)
    assert not finding.damage and "another program" in finding.text


@pytest.mark.parametrize("words", [("recover",), ("repair", "--in-place")])
def test_the_store_of_a_dledger_member_is_not_taken_for_one_that_lost_its_log(
    ropewalk: RunCommand, words: tuple[str, ...], root: Path
) -> None:
    (root / "dledger-n0").mkdir()
    (root / "commitlog").rename(root / "dledger-n0" / "data")
    before = contents(root)
    done = ropewalk("store", *words, root)
    assert done.status == 2 and "is the store of a DLedger member" in done.errors
    assert f"ropewalk store dump {root / 'dledger-n0'}" in done.errors
    assert contents(root) == before


def test_the_store_of_a_dledger_member_is_verified_and_described(
    ropewalk: RunCommand, tmp_path: Path
) -> None:
    root = tmp_path / "member"
    fill_ledger(root, 40, committed=30)
    for place in (root, root / "dledger-n0"):
        done = ropewalk("store", "verify", place)
        assert done.status == 0, done.errors
        facts = json.loads(ropewalk("store", "info", place, "--json").out)
        assert facts["dledger"] == {
            "member": "n0", "term": 1, "vote": "n0", "committedIndex": 29, "doubtIndex": None,
        }  # fmt: skip
        assert (
            facts["segments"] > 2
            and facts["logEnd"] == json.loads(ropewalk("store", "verify", place, "--json").out)["logEnd"]
        )
    assert "n0, in term 1, in which it voted for n0" in ropewalk("store", "info", root).out.decode()


def test_verify_and_info_tell_of_the_regions_of_the_key_value_store(
    ropewalk: RunCommand, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    fill_ledger(root)
    region = Region(root / "kv" / "0", segment_size=None)
    region.lead(1)
    region.append(b"a command")
    region.commit()
    region.store.close()
    clean = ropewalk("store", "verify", root)
    assert clean.status == 0, clean.out
    assert clean.lines[-1].endswith("at 2 records and 0 snapshots in 1 region")
    assert "region 0 " in ropewalk("store", "info", root).out.decode()
    (shown,) = ropewalk("store", "info", root, "--json").document["regions"]
    assert (shown["region"], shown["committedIndex"], shown["logStart"]) == (0, 1, 0)
    flip(root / "kv" / "0" / "data" / f"{0:020d}", 60)
    harmed = ropewalk("store", "verify", root)
    assert harmed.status == 1 and harmed.lines[-1].startswith("1 damaged place; ")


def test_verify_tells_that_the_known_incarnations_of_a_member_cannot_be_read(
    ropewalk: RunCommand, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    fill_ledger(root)
    (root / "ropewalk" / "dledger" / "peers.json").write_bytes(b"{torn")
    done = ropewalk("store", "verify", root)
    assert done.status == 1 and "peers.json cannot be read" in done.out.decode()


def role_with(root: Path, record: RoleRecord, epochs: Epochs | None = None) -> None:
    write_roles(root / "ropewalk", Disk(), record, epochs)


def test_an_epoch_that_no_group_comes_to_is_lowered_and_the_broker_can_be_promised_again(
    ropewalk: RunCommand, root: Path
) -> None:
    taken = (1 << 63) - 1
    role_with(root, RoleRecord("ASYNC_MASTER", 0, taken, 3, "stranger"), Epochs.of([(2, 100), (3, 200)]))
    assert ropewalk("store", "epoch", root, "--json").document["promisedEpoch"] == taken
    done = ropewalk("store", "epoch", root, "--lower-to", "3", "--json")
    assert done.status == 0, done.errors
    assert (done.document["promisedEpoch"], done.document["leaderEpoch"]) == (3, 3)
    record, epochs = read_roles(root / "ropewalk", Disk())
    assert record is not None and RoleCore(record).accept(4, "op").refusal is None
    assert not RoleCore(record).is_fenced and epochs.pairs() == [(2, 100), (3, 200)]


def test_a_master_of_such_an_epoch_has_its_part_of_the_log_under_the_lower_one(
    ropewalk: RunCommand, root: Path
) -> None:
    taken = 1 << 62
    role_with(root, RoleRecord("ASYNC_MASTER", 0, taken, taken, "x"), Epochs.of([(3, 200), (taken, 900)]))
    low = ropewalk("store", "epoch", root, "--lower-to", "3")
    assert low.status == 2 and "of epoch 4 or above" in low.errors
    assert ropewalk("store", "epoch", root, "--lower-to", "4").status == 0
    record, epochs = read_roles(root / "ropewalk", Disk())
    assert record is not None and (record.leader_epoch, record.promised_epoch) == (4, 4)
    assert epochs.pairs() == [(3, 200), (4, 900)]


def test_a_store_without_epochs_is_told_in_words_and_is_no_error(
    ropewalk: RunCommand, root: Path, tmp_path: Path
) -> None:
    ledger, rocketmq, empty = (tmp_path / name for name in ("ledger", "rocketmq", "empty"))
    fill_ledger(ledger)
    (rocketmq / "commitlog").mkdir(parents=True)
    empty.mkdir()
    before = {store: contents(store) for store in (root, ledger, rocketmq)}
    for store, words in (
        (root, "no role but that of its configuration: its epoch is 0"),
        (ledger, "has terms instead of epochs"),
        (rocketmq, "the store of a RocketMQ broker"),
    ):
        shown = ropewalk("store", "epoch", store)
        assert shown.status == 0 and words in shown.out.decode(), (shown.out, shown.errors)
        refused = ropewalk("store", "epoch", store, "--lower-to", "5")
        assert refused.status == 2 and words in refused.errors and "nothing was changed" in refused.errors
    assert ropewalk("store", "epoch", ledger, "--json").document == {"kind": "dledger", "term": 1}
    assert ropewalk("store", "epoch", root, "--json").document["kind"] == "alone"
    assert ropewalk("store", "epoch", empty).status == 2
    for store, kept in before.items():
        now = contents(store)
        assert {path: now[path] for path in kept} == kept and now.keys() <= kept.keys() | {"lock"}


def test_an_epoch_above_all_of_a_store_is_refused_and_nothing_is_changed(
    ropewalk: RunCommand, root: Path
) -> None:
    role_with(root, RoleRecord("ASYNC_MASTER", 0, 4, 3, "operator"), Epochs.of([(2, 100), (3, 200)]))
    before = contents(root)
    done = ropewalk("store", "epoch", root, "--lower-to", "5")
    assert done.status == 2 and "no epoch of this store is above 5: the highest is 4" in done.errors
    assert "lower every other member" not in done.errors and contents(root) == before
    assert ropewalk("store", "epoch", root, "--lower-to", "4").status == 0


def test_the_epochs_of_a_store_that_a_broker_has_open_are_left_alone(
    ropewalk: RunCommand, root: Path, tmp_path: Path
) -> None:
    role_with(root, RoleRecord("ASYNC_MASTER", 0, 9, 3, "x"))
    before = contents(root)
    held = subprocess.Popen(
        [sys.executable, "-c", f"import pathlib,time\nfrom store.io.disk import Disk\n"
         f"Disk().lock(pathlib.Path({str(root / 'lock')!r})); print(1, flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert held.stdout is not None and held.stdout.readline()
        assert ropewalk("store", "epoch", root, "--lower-to", "3").status == 2
        assert contents(root) == before
    finally:
        held.kill()
        held.communicate()
    assert ropewalk("store", "epoch", tmp_path / "nothing").status == 2
