"""The key-value store beside etcd: three members each on this machine, both synced, one after the other.

    python -m tests.bench.peers.etcd [--count 30000] [--rounds 1] [--client-only] [--json]     about six minutes

etcd is Debian's package (`apt-get install etcd-server`), its load a Go program (`load/`), sixty-four goroutines over
one client; ours is sixty-four frames in flight over one connection, made before the clock starts. Both ask the leader.
Values have 128 bytes, keys are ten thousand.

The second table is `AsyncKv`, a client that so many tasks share. With client batching, what they ask together leaves in
one request. Its last rows are reads without read batching: each request begins a round of heartbeats of its own
(`lone_reads`), where else those of a moment share one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import trio
from msgspec import to_builtins

from ropewalk import AsyncKv, Kv
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import KvHeader, KvWriteHeader
from ropewalk.format.kv.commands import Status, decode_found, decode_outcome
from ropewalk.format.kv.items import Count, Put, encode_items, encode_values
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.crash.ledger_group import LedgerGroup
from tests.support.ports import free_ports
from tests.support.waiting import until

IN_FLIGHT, BATCH, KEYS = 64, 100, 10_000
VALUE = b"x" * 128
SOURCES = Path(__file__).with_name("load")
LONE_READS = (sys.executable, "-m", "tests.bench.peers.etcd.lone_reads")
LONE = ", a round each"


class Figure(NamedTuple):
    """A rate in operations a second, and the median time of a request."""

    rate: float
    p50_ms: float


Figures = dict[str, Figure]


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30_000, help="requests of each row")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--client-only", action="store_true", help="only the table of the Python client")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[Figures]] = {"etcd": [], "ropewalk": [], "client": []}
    with tempfile.TemporaryDirectory() as folder:
        loader = None if options.client_only else build_loader(Path(folder))
        for number in range(options.rounds):
            root = Path(folder) / str(number)
            root.mkdir()
            if loader is not None:
                found["etcd"].append(of_etcd(root / "etcd", loader, options.count))
                found["ropewalk"].append(of_ropewalk(root / "ropewalk", options.count))
            found["client"].append(of_client(root / "client", options.count))
    told = {name: middle(each) for name, each in found.items() if each}
    if options.json:
        print(json.dumps({name: {row: each._asdict() for row, each in told[name].items()} for name in told}))
        return
    if "etcd" in told:
        print(f"{'row':28} {'etcd':>10} {'ropewalk':>10} {'ratio':>7} {'p50 ms':>14}")
        for row in told["ropewalk"]:
            ours, theirs = told["ropewalk"][row], told["etcd"].get(row)
            ratio = f"{ours.rate / theirs.rate:.2f}x" if theirs else ""
            medians = f"{theirs.p50_ms:.2f} / {ours.p50_ms:.2f}" if theirs else f"{ours.p50_ms:.2f}"
            print(
                f"{row:28} {theirs.rate if theirs else 0:10,.0f} {ours.rate:10,.0f} {ratio:>7} {medians:>14}"
            )
        print()
    print(f"{'AsyncKv, client batching:':40} {'off':>10} {'on':>10} {'ratio':>7}")
    for row in dict.fromkeys(name.rsplit(",", 1)[0] for name in told["client"]):
        alone, together = (told["client"][f"{row},{each}"].rate for each in ("off", "on"))
        print(f"{row:40} {alone:10,.0f} {together:10,.0f} {together / alone:6.1f}x")


def middle(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each row."""
    return {
        row: Figure(
            *(statistics.median(values) for values in zip(*(each[row] for each in rounds), strict=True))
        )
        for row in rounds[0]
    }


# -- etcd ------------------------------------------------------------------------------------------------


def build_loader(folder: Path) -> Path:
    """Build the load program, and return where it is."""
    program = folder / "load"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=SOURCES, check=True)
    return program


def of_etcd(root: Path, loader: Path, count: int) -> Figures:
    with etcd(root) as leader:

        def load(kind: str, requests: int, in_flight: int = IN_FLIGHT, batch: int = 1) -> Figure:
            words = {
                "endpoint": leader,
                "kind": kind,
                "count": requests,
                "in-flight": in_flight,
                "batch": batch,
            }
            done = subprocess.run(
                [str(loader), *(f"-{name}={value}" for name, value in words.items())],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            told = json.loads(done.stdout)
            return Figure(told["rate"], told["p50Ms"])

        load("put", KEYS)
        return {
            "puts, 64 in flight": load("put", count),
            "puts by 100, 16 in flight": load("put", max(count // 20, 100), 16, BATCH),
            "gets, 64 in flight": load("get", count),
            "local gets, 64 in flight": load("local", count),
        }


@contextmanager
def etcd(root: Path) -> Iterator[str]:
    """Run three members, and yield the address at which the leader serves clients."""
    server = shutil.which("etcd")
    if server is None:
        raise SystemExit("there is no etcd here: apt-get install etcd-server")
    root.mkdir()
    ports = free_ports(6)
    peers = ",".join(f"n{number}=http://127.0.0.1:{ports[number]}" for number in range(3))
    with ExitStack() as stack:
        for number in range(3):
            client, peer = f"http://127.0.0.1:{ports[3 + number]}", f"http://127.0.0.1:{ports[number]}"
            words = {
                "name": f"n{number}", "data-dir": root / f"n{number}", "listen-client-urls": client,
                "advertise-client-urls": client, "listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
                "initial-cluster": peers, "initial-cluster-state": "new", "log-level": "error",
            }  # fmt: skip
            process = subprocess.Popen(
                [server, *(f"--{name}={value}" for name, value in words.items())], stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        until(lambda: leader_of(ports[3:]) is not None, "etcd has a leader", pause_s=0.2)
        leader = leader_of(ports[3:])
        assert leader is not None
        yield leader


def leader_of(ports: Sequence[int]) -> str | None:
    """Return the address of the member that says it leads, by etcd's JSON over HTTP."""
    for port in ports:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as link:
                link.sendall(b"POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
                answer = b"".join(iter(lambda: link.recv(1 << 16), b""))
            told = json.loads(answer.partition(b"\r\n\r\n")[2])
            if told["leader"] == told["header"]["member_id"]:
                return f"127.0.0.1:{port}"
        except (OSError, ValueError, KeyError):
            continue
    return None


# -- Ropewalk --------------------------------------------------------------------------------------------


def of_ropewalk(root: Path, count: int) -> Figures:
    found: Figures = {}
    for lease in (False, True):
        with kv_group(root / str(lease), lease=lease) as (_name_server, leader):
            load = Load(leader)
            load.puts(KEYS, IN_FLIGHT, 1)
            if lease:
                found["lease gets, 64 in flight"] = load.gets(count)
                continue
            found["puts, 64 in flight"] = load.puts(count, IN_FLIGHT, 1)
            found["puts by 100, 16 in flight"] = load.puts(max(count // 20, 100), 16, BATCH)
            found["gets, 64 in flight"] = load.gets(count)
            found["gets by 100, 16 in flight"] = load.gets(max(count // 20, 100), 16, BATCH)
            found["local gets, 64 in flight"] = load.gets(count, unsafe=True)
    return found


@contextmanager
def kv_group(
    root: Path, *, lease: bool = False, command: Sequence[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Run three members; yield the name server's address, and the address of the region's leader."""
    root.mkdir(parents=True)
    settings: dict[str, str | int] = {"ropewalkKvRegions": 1, "raftLeaseReads": str(lease).lower()}
    with LedgerGroup(root, settings=settings, command=command) as group, Kv(group.name_server) as kv:
        until(
            lambda: any(each.values["leads"] for each in kv.status()), "the region has a leader", pause_s=0.1
        )
        yield group.name_server, next(each.member.address for each in kv.status() if each.values["leads"])


class Load:
    """Frames to one member over one connection."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._seq = 0
        with Connection(address, 5.0) as connection:
            regions = json.loads(connection.call(Command(RequestCode.ROPEWALK_KV_REGIONS)).body)["regions"]
            self._region, self._epoch = regions[0]["id"], regions[0]["epoch"]
            header = ext(KvHeader(self._region, self._epoch))
            opened = decode_outcome(connection.call(Command(RequestCode.ROPEWALK_KV_SESSION, header)).body)
            (number,) = opened.results
            assert isinstance(number, Count)
            self._session = number.number

    def puts(self, count: int, in_flight: int, batch: int) -> Figure:
        """Measure so many writes of `batch` values each."""
        frames = []
        for number in range(count):
            self._seq += 1
            lowest = max(self._seq - in_flight + 1, 1)
            header = KvWriteHeader(
                self._region, self._epoch, session=self._session, seq=self._seq, lowest=lowest
            )
            body = encode_items([Put(key(number * batch + place), VALUE) for place in range(batch)])
            frames.append(encode_frame(Command(RequestCode.ROPEWALK_KV_WRITE, ext(header), body)))
        return self._measure(frames, in_flight, batch, is_write=True)

    def gets(self, count: int, in_flight: int = IN_FLIGHT, batch: int = 1, *, unsafe: bool = False) -> Figure:
        """Measure so many reads of `batch` values each."""
        header = ext(KvHeader(self._region, self._epoch, unsafe))
        frames = []
        for number in range(count):
            body = encode_values([key(number * batch + place) for place in range(batch)])
            frames.append(encode_frame(Command(RequestCode.ROPEWALK_KV_MULTI_GET, header, body)))
        return self._measure(frames, in_flight, batch, is_write=False)

    def _measure(self, frames: Sequence[bytes], in_flight: int, batch: int, *, is_write: bool) -> Figure:
        host, port = self._address.split(":")
        buffer = FrameBuffer()
        took: list[float] = []
        sent_at: deque[float] = deque()
        with socket.create_connection((host, int(port))) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.perf_counter()
            asked = 0
            while len(took) < len(frames):
                some = frames[asked : asked + in_flight - len(sent_at)]
                if some:
                    link.sendall(b"".join(some))
                    asked += len(some)
                    sent_at.extend([time.perf_counter()] * len(some))
                payloads = list(buffer.feed(link.recv(1 << 18)))
                now = time.perf_counter()
                took.extend(now - sent_at.popleft() for _ in payloads)
                if payloads:
                    check(decode_frame(payloads[-1]), is_write)
            seconds = time.perf_counter() - began
        return Figure(len(frames) * batch / seconds, statistics.median(took) * 1000)


def ext(header: KvHeader) -> dict[str, str]:
    """Return the extension fields of a header."""
    fields = to_builtins(header)
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()
    }


def key(number: int) -> bytes:
    return b"key-%06d" % (number % KEYS)


def check(answer: Command, is_write: bool) -> None:
    """Hold an answer against what it has to be: a figure of refusals is none."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    if is_write:
        assert decode_outcome(answer.body).status is Status.OK
    else:
        status, values = decode_found(answer.body)
        assert status is Status.OK and None not in values


# -- the client ------------------------------------------------------------------------------------------


def of_client(root: Path, count: int) -> Figures:
    found: Figures = {}
    for kinds, command, name in ((("put", "get"), None, ""), (("get",), LONE_READS, LONE)):
        with kv_group(root / str(len(kinds)), command=command) as (name_server, leader):
            Load(leader).puts(KEYS, IN_FLIGHT, 1)
            for kind in kinds:
                for tasks in (1, 64, 256):
                    row = f"{kind}s of {tasks} tasks{name}"
                    for together in (False, True):
                        figure = trio.run(by_tasks, name_server, kind, tasks, count, together)
                        found[f"{row},{'on' if together else 'off'}"] = figure
    return found


async def by_tasks(name_server: str, kind: str, tasks: int, count: int, batching: bool) -> Figure:
    """Measure calls of tasks that share a client."""
    count = count if tasks > 1 else count // 20
    took: list[float] = []
    async with AsyncKv(name_server, batching=batching) as kv:
        numbers = iter(range(count))

        async def use() -> None:
            for number in numbers:
                since = time.perf_counter()
                if kind == "put":
                    await kv.put(key(number), VALUE)
                else:
                    await kv.get(key(number))
                took.append(time.perf_counter() - since)

        await kv.put(key(0), VALUE)
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(use)
        return Figure(count / (time.perf_counter() - began), statistics.median(took) * 1000)


if __name__ == "__main__":
    main()
