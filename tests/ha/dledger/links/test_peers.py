"""The links of a member, sans-IO: introductions, refusals in words, strangers, silence."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import msgspec
import pytest
from structlog.testing import capture_logs

from ha.dledger.links.address_book import LEAVING_MS, Membership
from ha.dledger.links.frames import to_fields
from ha.dledger.links.hello import CHALLENGE_SIZE, Identity, Step, encode
from ha.dledger.links.link import PeerLink
from ha.dledger.links.peers import INTRODUCTION_MS, PING_MS, SILENCE_MS, Peers
from ha.dledger.links.probe import IntroductionProbe
from ha.raft.types import NOTHING, Append, Heartbeat, Link, MemberId, Message, Point, Run
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.entry import encode_entries
from ropewalk.format.dledger.frame import Kind, encode_head

ME = Identity("c", "g", "n1", b"1" * 16, 1 << 20, "test", "")
PEER = Identity("c", "g", "n0", b"0" * 16, 1 << 20, "test", "")


class Wire:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.peer = ("10.0.0.1", 1234)
        self.sent: list[bytes] = []
        self.is_closed = False
        self.goes_first = False

    def send(self, data: bytes | memoryview) -> None:
        assert not self.is_closed, "bytes for a connection that is closed"
        self.sent.append(bytes(data))

    def push(self) -> None: ...

    def go_first(self) -> None:
        self.goes_first = True

    def close(self) -> None:
        self.is_closed = True

    def take(self) -> bytes:
        sent, self.sent = b"".join(self.sent), []
        return sent


class Side:
    """One member's links, and what they tell its core."""

    def __init__(
        self,
        me: Identity,
        others: tuple[MemberId, ...] = ("n0",),
        known: dict[MemberId, bytes] | None = None,
        on_received: Callable[[Message], None] = lambda message: None,
        readmitted: tuple[MemberId, ...] = (),
    ) -> None:
        self.now = 0
        self.news: list[tuple[object, ...]] = []
        self.met_terms: list[tuple[MemberId, int, bool]] = []
        self.term = 7
        self.is_empty = False
        self.times_noted = 0
        self._on_received = on_received
        draw = random.Random(me.id).randbytes
        addresses = {id: f"host-{id}:1" for id in others}
        self.peers = Peers(me, addresses, known or {}, readmitted, self, lambda: self.now, draw)

    def linked(self, peer: MemberId, number: int, kind: Link, up: bool) -> None:
        self.news.append((peer, number, kind, up))

    def received(self, peer: MemberId, number: int, message: Message, body: bytes | memoryview) -> None:
        self.news.append((peer, number, message, bytes(body)))

    def forwarded(self, link: PeerLink, kind: Kind, number: int, body: bytes) -> None:
        self.news.append((link.peer, kind, number, body))

    def met(self, peer: MemberId, term: int, lost: bool) -> None:
        self.met_terms.append((peer, term, lost))

    def noted(self) -> None:
        self.times_noted += 1


def connect(
    dialer: Side, acceptor: Side, kind: Link = Link.CONTROL, *, piece: int = 1 << 20, to: MemberId = ""
) -> tuple[PeerLink, PeerLink]:
    """Connect two members, and carry bytes both ways, in pieces, until neither has more to say."""
    one, other = Wire(), Wire()
    accepted = acceptor.peers.accept(other)
    dialed = dialer.peers.dialed(one, to or acceptor.peers.me.id, kind, lambda: None)
    carry(dialed, accepted, piece)
    return dialed, accepted


def carry(dialed: PeerLink, accepted: PeerLink, piece: int = 1 << 20) -> None:
    while True:
        idle = True
        for here, there in ((dialed, accepted), (accepted, dialed)):
            wire = here.connection
            assert isinstance(wire, Wire)
            data = wire.take()
            for start in range(0, len(data), piece):
                there.receive(data[start : start + piece])
                idle = False
        if idle:
            break
    for here, there in ((dialed, accepted), (accepted, dialed)):
        assert isinstance(here.connection, Wire)
        if here.connection.is_closed:
            there.closed()


def changed(identity: Identity, **fields: str | int | bytes) -> Identity:
    return msgspec.structs.replace(identity, **fields)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("kind", Link)
@pytest.mark.parametrize("secret", ["", "of the group"])
def test_two_members_introduce_themselves_and_both_cores_hear_of_the_link(
    piece: int, kind: Link, secret: str
) -> None:
    dialer, acceptor = Side(changed(ME, secret=secret)), Side(changed(PEER, secret=secret), ("n1",))
    dialed, accepted = connect(dialer, acceptor, kind, piece=piece)
    assert dialed.is_up and accepted.is_up
    assert dialer.news == [("n0", 1, kind, True)] and acceptor.news == [("n1", 1, kind, True)]
    assert dialer.peers.known == {"n0": b"0" * 16} and acceptor.peers.known == {"n1": b"1" * 16}
    assert dialer.met_terms == [("n0", 7, False)] and acceptor.met_terms == [("n1", 7, False)]
    assert dialer.times_noted == acceptor.times_noted == 1


REFUSED = {
    "cluster": (changed(ME, cluster="d"), "group g in cluster d"),
    "group": (changed(ME, group="h"), "group h in cluster c"),
    "id": (changed(ME, id="n7"), "names n1, and not n7"),
    "own id": (changed(ME, id="n2"), "give each member a dLegerSelfId of its own"),
    "segment size": (changed(ME, segment_size=1 << 21), "mappedFileSizeCommitLog is 2097152 at n1 and 1048576 at n0"),
    "incarnation": (changed(ME, incarnation=b"2" * 16), "of another group or an earlier life of n1: stop it"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_acceptor_refuses_in_words_before_anything_changes(case: str) -> None:
    me, words = REFUSED[case]
    acceptor = Side(changed(PEER, id="n2") if case == "own id" else PEER, ("n1",), {"n1": b"1" * 16})
    dialer = Side(me)
    dialed, accepted = connect(dialer, acceptor, to="n0")
    assert not dialed.is_up and not accepted.is_up
    assert dialer.news == [] and acceptor.news == []
    assert words in dialer.peers.status["n0"].why, "the dialer's owner is told"
    assert isinstance(dialed.connection, Wire) and dialed.connection.is_closed
    assert isinstance(accepted.connection, Wire) and accepted.connection.is_closed


@pytest.mark.parametrize("piece", [1, 1 << 20])
@pytest.mark.parametrize("kind", Link)
def test_a_member_that_all_others_dial_is_told_why_they_refuse_it(piece: int, kind: Link) -> None:
    dialer = Side(ME, known={"n0": b"0" * 16})
    acceptor = Side(changed(PEER, incarnation=b"2" * 16), ("n1",))
    with capture_logs() as logs:
        dialed, accepted = connect(dialer, acceptor, kind, piece=piece)
    assert not dialed.is_up and not accepted.is_up and dialer.news == []
    words = "n0 came back with an empty store"
    assert words in acceptor.peers.status["n1"].why and words in dialer.peers.status["n0"].why
    told = [log for log in logs if log["log_level"] == "warning" and words in log["reason"]]
    assert [log["peer"] for log in told] == ["n0", "n1"], "either end has a line of it"


@pytest.mark.parametrize("is_dialer", [False, True])
@pytest.mark.parametrize("is_empty", [False, True])
def test_an_empty_member_takes_a_refusal_for_the_news_that_its_log_was_lost_and_one_with_a_log_does_not(
    is_dialer: bool, is_empty: bool
) -> None:
    if is_dialer:
        lost = dialer = Side(changed(ME, incarnation=b"2" * 16))
        acceptor = Side(PEER, ("n1",), known={"n1": b"1" * 16})
    else:
        dialer = Side(ME, known={"n0": b"0" * 16})
        lost = acceptor = Side(changed(PEER, incarnation=b"2" * 16), ("n1",))
    lost.is_empty = is_empty
    connect(dialer, acceptor)
    peer = "n0" if is_dialer else "n1"
    assert ((peer, -1, True) in lost.met_terms) is is_empty
    assert (acceptor if is_dialer else dialer).met_terms == [], (
        "the one that refuses has not forgotten anything"
    )


@pytest.mark.parametrize("step", [Step.CHALLENGE, Step.HELLO, Step.WELCOME])
def test_a_welcomed_dialer_that_introduces_itself_again_is_hung_up_on(step: Step) -> None:
    _, accepted = connect(Side(ME), Side(PEER, ("n1",)))
    with pytest.raises(RemoteProtocolError, match="that nothing asked for"):
        accepted.receive(encode(step, b""))


@pytest.mark.parametrize("dials", [("old", ""), ("old", "new"), ("new", "old")])
@pytest.mark.parametrize("accepts", [("old", "new"), ("new", "old")])
def test_the_secret_of_a_group_is_changed_one_member_after_the_other(
    dials: tuple[str, str], accepts: tuple[str, str]
) -> None:
    one = Side(changed(ME, secret=dials[0], secret_also=dials[1]))
    other = Side(changed(PEER, secret=accepts[0], secret_also=accepts[1]), ("n1",))
    dialed, accepted = connect(one, other)
    assert dialed.is_up and accepted.is_up


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (
            "a",
            "",
            "n0 of group g in cluster c has a ropewalkSecret, and the peer that says it is n1 has none",
        ),
        ("a", "b", "the ropewalkSecret of the peer that says it is n1 differs from that of n0 of group g"),
        (
            "",
            "b",
            "n1 of group g in cluster c has a ropewalkSecret, and the peer that says it is n0 has none",
        ),
    ],
)
def test_a_member_without_the_secret_is_refused_and_both_ends_say_what_differs(
    ours: str, theirs: str, words: str
) -> None:
    dialer, acceptor = Side(changed(ME, secret=theirs)), Side(changed(PEER, secret=ours), ("n1",))
    with capture_logs() as logs:
        connect(dialer, acceptor)
    assert ("n0", 1, Link.CONTROL, True) not in dialer.news, "the dialer never believed it"
    assert acceptor.news == [] or not ours
    assert not acceptor.peers.link("n1", Link.CONTROL)
    assert not dialer.peers.link("n0", Link.CONTROL)
    for side, peer in ((dialer, "n0"), (acceptor, "n1")):
        assert words in side.peers.status[peer].refusal
    assert sum(words in log["reason"] for log in logs) == 2, "either end has a line of it"


def test_a_stranger_under_the_name_of_a_linked_member_leaves_no_word_about_it() -> None:
    dialer, acceptor = Side(changed(ME, secret="s")), Side(changed(PEER, secret="s"), ("n1",))
    for kind in Link:
        connect(dialer, acceptor, kind)
    connect(Side(changed(ME, secret="another")), acceptor)
    assert acceptor.peers.status["n1"].refusal == ""
    unknown = Side(changed(ME, id="n9", secret="another"))
    connect(unknown, acceptor)
    assert "differs" in unknown.peers.status["n0"].refusal and "n9" not in acceptor.peers.status


def test_the_dialer_refuses_a_member_that_answers_at_anothers_address() -> None:
    dialer = Side(ME, ("n0", "n2"))
    acceptor = Side(changed(PEER, id="n2"), ("n1",))
    wire = Wire()
    accepted = acceptor.peers.accept(Wire())
    dialed = dialer.peers.dialed(wire, "n0", Link.DATA, lambda: None)
    carry(dialed, accepted)
    assert "here is n2 of group g in cluster c, and not n0" in dialer.peers.status["n0"].why
    assert dialer.news == [] and acceptor.news == []


def test_an_overheard_introduction_is_worth_nothing_on_another_connection() -> None:
    dialer, acceptor = Side(changed(ME, secret="s")), Side(changed(PEER, secret="s"), ("n1",))
    one, other = Wire(), Wire()
    first = acceptor.peers.accept(other)
    dialed = dialer.peers.dialed(one, "n0", Link.CONTROL, lambda: None)
    dialed.receive(other.take())
    overheard = one.take()
    first.receive(overheard)
    assert first.is_up
    second = acceptor.peers.accept(Wire())
    second.receive(overheard)
    assert not second.is_up


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x40\x01" + bytes(60),
        b"RWDL\x02\x02\0\0",
        b"RWDL\x09\x01\0\0",
        b"RWDL\x02\x01\xff\xff",
        encode(Step.WELCOME, bytes(64)),
        encode(Step.CHALLENGE, bytes(32)),
        encode(Step.HELLO, b""),
        encode(Step.HELLO, bytes(32) + b"\x93\x01\x02"),
        encode(Step.HELLO, bytes(32) + b"\x80"),
    ],
)
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_hostile_bytes_are_refused_and_change_nothing(data: bytes, piece: int) -> None:
    side = Side(PEER, ("n1",))
    link = side.peers.accept(Wire())
    with pytest.raises(RemoteProtocolError):
        for start in range(0, len(data), piece):
            link.receive(data[start : start + piece])
    link.closed()
    assert side.news == [] and side.peers.link("n1", Link.CONTROL) is None


def test_random_bytes_never_raise_anything_but_a_protocol_error() -> None:
    draw = random.Random(28)
    for _ in range(2000):
        side = Side(PEER, ("n1",))
        link = side.peers.accept(Wire())
        data = draw.choice([b"", b"RWDL\x02\x01", encode(Step.HELLO, draw.randbytes(60))]) + draw.randbytes(
            draw.randrange(80)
        )
        with contextlib.suppress(RemoteProtocolError):
            link.receive(data)
        assert side.news == []


def frame(message: Message, body: bytes = b"", group: int = 0) -> bytes:
    kind, flags, count, numbers = to_fields(message)
    return encode_head(kind, flags, group, count, numbers, body) + body


AT_THE_END = Point(4, 3, (1 << 20) - 56)
LAST = encode_entries(5, 3, AT_THE_END.pos, [b"1234"])
"""An entry that leaves four bytes of its segment."""
ENTRIES = encode_entries(5, 3, 1000, [b"one", b"two", b"three"])
PREV = Point(4, 3, 1000)


def run(count: int = 3, term: int = 3) -> Append:
    return Append(4, PREV, Run(5, count, term, 1000, len(ENTRIES)), 2)


def test_frames_reach_the_core_whole_and_in_order_however_they_are_cut() -> None:
    for piece in (1, 63, 64, 65, 1000):
        dialer, acceptor = Side(ME), Side(PEER, ("n1",))
        _dialed, accepted = connect(dialer, acceptor, Link.DATA)
        acceptor.news.clear()
        data = frame(run(), ENTRIES) + frame(Append(4, PREV, None, 2))
        for start in range(0, len(data), piece):
            accepted.receive(data[start : start + piece])
        assert acceptor.news == [("n1", 1, run(), ENTRIES), ("n1", 1, Append(4, PREV, None, 2), b"")]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Link.CONTROL, frame(run(), ENTRIES)),
        (Link.DATA, frame(Heartbeat(1, -1, 1))),
        (Link.DATA, frame(run(count=2), ENTRIES)),
        (Link.DATA, frame(run(count=4), ENTRIES)),
        (Link.DATA, frame(run(term=2), ENTRIES)),
        (Link.DATA, frame(Append(4, Point(4, 3, 1008), Run(5, 3, 3, 1008, len(ENTRIES)), 2), ENTRIES)),
        (Link.DATA, frame(Append(4, Point(5, 3, 1000), Run(6, 3, 3, 1000, len(ENTRIES)), 2), ENTRIES)),
        (Link.DATA, frame(run(), ENTRIES[:55] + b"\xff" * 4 + ENTRIES[59:])),
        (Link.DATA, frame(run(), bytes(len(ENTRIES)))),
        (Link.DATA, frame(Append(4, NOTHING, Run(0, 1, 0, 0, 8), 2), bytes(8))),
        (Link.DATA, frame(Append(4, AT_THE_END, Run(5, 1, 3, AT_THE_END.pos, 52), 2), LAST)),
    ],
)
def test_a_frame_that_lies_is_refused_before_the_core_hears_of_it(kind: Link, data: bytes) -> None:
    dialer, acceptor = Side(ME), Side(PEER, ("n1",))
    _dialed, accepted = connect(dialer, acceptor, kind)
    acceptor.news.clear()
    with pytest.raises(RemoteProtocolError):
        accepted.receive(data)
    assert acceptor.news == []


def test_groups_that_share_the_links_hear_of_their_own_frames_and_of_every_link() -> None:
    dialer, acceptor, region = Side(ME), Side(PEER, ("n1",)), Side(PEER, ("n1",))
    acceptor.peers.join(3, region, 1 << 14)
    _dialed, accepted = connect(dialer, acceptor, Link.DATA)
    assert region.news == [("n1", 1, Link.DATA, True)]
    acceptor.news.clear()
    region.news.clear()
    accepted.receive(frame(run(), ENTRIES, group=3) + frame(Append(4, PREV, None, 2)))
    assert region.news == [("n1", 1, run(), ENTRIES)]
    assert acceptor.news == [("n1", 1, Append(4, PREV, None, 2), b"")]
    accepted.closed()
    assert region.news[1:] == [("n1", 1, Link.DATA, False)]


def test_entries_are_judged_by_the_segments_of_their_own_group() -> None:
    dialer, acceptor, region = Side(ME), Side(PEER, ("n1",)), Side(PEER, ("n1",))
    acceptor.peers.join(3, region, 1 << 10)
    _dialed, accepted = connect(dialer, acceptor, Link.DATA)
    with pytest.raises(RemoteProtocolError, match="crosses the border"):
        accepted.receive(frame(run(), ENTRIES, group=3))


def test_a_frame_of_a_group_that_is_not_here_is_lost_and_the_link_stays() -> None:
    """The peer is set up with a key-value store, and this member is not yet."""
    dialer, acceptor = Side(ME), Side(PEER, ("n1",))
    _dialed, accepted = connect(dialer, acceptor)
    acceptor.news.clear()
    accepted.receive(frame(Heartbeat(1, -1, 1), group=3) + frame(Heartbeat(2, -1, 1)))
    assert acceptor.news == [("n1", 1, Heartbeat(2, -1, 1), b"")]


def test_a_newer_connection_takes_the_place_of_the_one_before() -> None:
    dialer, acceptor = Side(ME), Side(PEER, ("n1",))
    _one, first = connect(dialer, acceptor)
    _two, second = connect(dialer, acceptor)
    assert acceptor.news == [
        ("n1", 1, Link.CONTROL, True),
        ("n1", 1, Link.CONTROL, False),
        ("n1", 2, Link.CONTROL, True),
    ]
    first.closed()
    assert acceptor.peers.link("n1", Link.CONTROL) is second, "the end of the old one is no news"


def test_an_idle_link_is_kept_alive_and_a_silent_one_ends() -> None:
    dialer, acceptor = Side(ME), Side(PEER, ("n1",))
    dialed, accepted = connect(dialer, acceptor)
    for time in range(0, 5 * SILENCE_MS, PING_MS):
        dialer.now = acceptor.now = time
        dialer.peers.tick(time, 0)
        acceptor.peers.tick(time, 0)
        carry(dialed, accepted)
    assert dialed.is_up and accepted.is_up
    late = acceptor.now + SILENCE_MS + 1
    acceptor.now = late
    acceptor.peers.tick(late, SILENCE_MS)
    assert acceptor.peers.link("n1", Link.CONTROL) is accepted, "its own lateness is no silence"
    acceptor.now = late + SILENCE_MS
    acceptor.peers.tick(acceptor.now, 0)
    assert acceptor.peers.link("n1", Link.CONTROL) is None
    assert acceptor.peers.status["n1"].why == f"nothing was heard for {SILENCE_MS} ms"


def test_strangers_that_come_again_and_again_push_no_member_out() -> None:
    """A member that connects has to answer a challenge; until then it stood in one row with whoever else came."""
    side = Side(ME, ("n2", "n3"))
    for host, is_kept in (("host-n2", True), ("10.9.9.9", False)):
        wire = Wire()
        wire.peer = (host, 1)
        side.peers.accept(wire)
        for number in range(200):
            stranger = Wire()
            stranger.peer = ("10.9.9.9", number)
            side.peers.accept(stranger)
        assert wire.is_closed is not is_kept


def test_a_member_that_is_called_by_a_name_is_known_by_the_address_it_came_from() -> None:
    dialer, acceptor = Side(msgspec.structs.replace(ME, id="n2")), Side(ME, ("n2",))
    dialer.peers = Peers(
        msgspec.structs.replace(ME, id="n2"),
        {"n1": "h:1"},
        {},
        (),
        dialer,
        lambda: 0,
        random.Random(1).randbytes,
    )
    connect(dialer, acceptor)
    again = Wire()  # of the address that the member came from
    acceptor.peers.accept(again)
    for number in range(200):
        stranger = Wire()
        stranger.peer = ("10.9.9.9", number)
        acceptor.peers.accept(stranger)
    assert not again.is_closed


def test_a_churn_from_one_address_leaves_other_addresses_alone() -> None:
    side = Side(ME, ("n2",))
    new = Wire()
    new.peer = ("10.0.0.77", 1)
    side.peers.accept(new)
    for number in range(200):
        stranger = Wire()
        stranger.peer = ("10.9.9.9", number)
        side.peers.accept(stranger)
    assert not new.is_closed, "a member whose address changed"


@pytest.mark.parametrize("term", [1_000_008, (1 << 63) - 1])
def test_a_peer_in_a_term_that_no_group_comes_to_is_refused_in_words(term: int) -> None:
    dialer, acceptor = Side(msgspec.structs.replace(ME, id="n2"), ("n1",)), Side(ME, ("n2",))
    dialer.term = term
    dialed, accepted = connect(dialer, acceptor)
    assert not dialed.is_up and not accepted.is_up and not acceptor.met_terms
    assert f"n2 is in term {term}" in acceptor.peers.status["n2"].why


def test_strangers_that_say_nothing_are_hung_up_on_and_never_many() -> None:
    side = Side(PEER, ("n1",))
    wires = [Wire() for _ in range(100)]
    for wire in wires:
        side.peers.accept(wire)
    assert sum(not wire.is_closed for wire in wires) == 64
    side.now = INTRODUCTION_MS + 1
    side.peers.tick(side.now, 0)
    assert all(wire.is_closed for wire in wires)


def test_a_link_that_ends_while_its_frames_are_handled_is_read_no_further() -> None:
    dialer, acceptor = Side(ME), Side(PEER, ("n1",))
    _dialed, accepted = connect(dialer, acceptor)
    acceptor.news.clear()
    received = acceptor.received

    def refuse(peer: MemberId, number: int, message: Message, body: bytes | memoryview) -> None:
        received(peer, number, message, body)
        acceptor.peers.hang_up(peer, number, "refused")

    acceptor.received = refuse  # type: ignore[method-assign]
    accepted.receive(frame(Heartbeat(1, -1, 1)) + frame(Heartbeat(1, -1, 2)))
    assert acceptor.news == [("n1", 1, Heartbeat(1, -1, 1), b""), ("n1", 1, Link.CONTROL, False)]


@pytest.mark.parametrize("kind", [Kind.FORWARD, Kind.FORWARD_ANSWER])
def test_a_forwarded_request_travels_on_the_control_link_and_on_no_other(kind: Kind) -> None:
    n1, n0 = Side(ME), Side(PEER, ("n1",))
    dialed, accepted = connect(n1, n0)
    dialed.send(encode_head(kind, 0, 0, 5, (0, 0, 0, 0, 0, 0), b"request"), b"request")
    carry(dialed, accepted)
    assert n0.news[-1] == ("n1", kind, 5, b"request")
    dialed, accepted = connect(n1, n0, Link.DATA)
    dialed.send(encode_head(kind, 0, 0, 5, (0, 0, 0, 0, 0, 0), b"request"), b"request")
    with pytest.raises(RemoteProtocolError, match="on the DATA link"):
        carry(dialed, accepted)


GROUP = {"n0": "host-n0:1", "n1": "host-n1:1", "n2": "host-n2:1"}


def configured(me: Identity, index: int, *members: MemberId, settings: tuple[MemberId, ...] = ()) -> Side:
    """A member whose log has a configuration."""
    side = Side(me, settings or members)
    side.peers.configure(Membership(index, {id: f"host-{id}:1" for id in members}))
    return side


def member(number: int) -> Identity:
    return changed(ME, id=f"n{number}", incarnation=b"%d" % number * 16)


def test_a_member_that_the_group_does_not_have_is_refused_with_the_command_that_adds_it() -> None:
    stranger, old = Side(member(3), ("n0", "n1", "n2", "n3")), configured(PEER, 0, "n0", "n1", "n2")
    dialed, accepted = connect(stranger, old)
    assert not dialed.is_up and not accepted.is_up
    why = stranger.peers.status["n0"].why
    assert "n3 is no member of group g, which n0, n1, n2 are" in why
    assert "`ropewalk admin dledger add n3-HOST:PORT`" in why


def test_new_members_that_a_group_refuses_begin_no_group_of_their_own() -> None:
    settings = ("n0", "n3", "n4")
    three, four, old = Side(member(3), settings), Side(member(4), settings), configured(PEER, 0, "n0")
    linked, _ = connect(four, three)
    assert linked.is_up, "as those of a group that begins"
    connect(three, old)
    assert not three.peers.link("n4", Link.CONTROL)
    again, _ = connect(four, three)
    assert not again.is_up
    assert "n3 and n4 are both new to group g, which works without them" in four.peers.status["n3"].why
    old.peers.configure(Membership(5, {"n0": "h:1", "n3": "h:2", "n4": "h:3"}))
    assert connect(three, old)[0].is_up
    assert connect(four, three)[0].is_up, "the group has told of both"


def test_a_new_member_learns_of_all_others_from_the_first_that_it_meets() -> None:
    new = Side(member(3), ("n0", "n3"))
    assert list(new.peers.dialed_members) == ["n0"]
    old = configured(PEER, 7, "n0", "n1", "n2", "n3")
    dialed, _accepted = connect(new, old)
    assert dialed.is_up
    assert list(new.peers.dialed_members) == ["n0", "n1", "n2"]
    assert new.peers.book.places("n2") == ("host-n2:1",)
    assert new.peers.status["n2"].address == "host-n2:1"


def test_a_member_that_was_away_accepts_a_leader_that_its_log_has_never_heard_of() -> None:
    away, leader = configured(PEER, 3, "n0", "n1", "n2"), configured(member(4), 9, "n0", "n2", "n4")
    _dialed, accepted = connect(leader, away)
    assert accepted.is_up and away.news == [("n4", 1, Link.CONTROL, True)]


def test_the_member_with_the_newer_configuration_refuses_one_that_was_removed() -> None:
    here, removed = configured(PEER, 9, "n0", "n2", "n4"), configured(ME, 3, "n0", "n1", "n2")
    dialed, _accepted = connect(removed, here)
    assert (
        not dialed.is_up
        and "n1 is no member of group g, which n0, n2, n4 are" in removed.peers.status["n0"].why
    )


def test_a_member_that_leaves_is_linked_for_a_while_for_it_may_lead_until_that_is_committed() -> None:
    here, leaving = configured(PEER, 3, "n0", "n1", "n2"), configured(ME, 3, "n0", "n1", "n2")
    _dialed, accepted = connect(leaving, here)
    for side in (here, leaving):
        side.peers.configure(Membership(8, {"n0": "host-n0:1", "n2": "host-n2:1"}))
    assert accepted.is_up
    accepted.closed()
    _dialed, accepted = connect(leaving, here)
    assert accepted.is_up, "also after its link has broken"
    here.now = LEAVING_MS
    here.peers.tick(here.now, LEAVING_MS)
    assert not here.peers.link("n1", Link.CONTROL) and "n1" not in here.peers.status
    assert here.news[-1] == ("n1", 2, Link.CONTROL, False)
    assert not connect(leaving, here)[0].is_up


def test_what_was_heard_is_forgotten_when_the_own_log_is_as_new() -> None:
    here = configured(PEER, 3, "n0", "n1")
    connect(configured(ME, 9, "n0", "n1", "n5"), here)
    assert here.peers.members == {"n1", "n5"}
    here.peers.configure(Membership(9, {"n0": "host-n0:1", "n1": "host-n1:1", "n6": "host-n6:1"}))
    assert here.peers.members == {"n1", "n6"}
    connect(configured(ME, 9, "n0", "n1", "n5"), here)
    assert here.peers.members == {"n1", "n6"}, "an older one, or one as old, tells nothing new"


def test_a_cut_goes_back_to_the_configuration_before() -> None:
    here = configured(PEER, 3, "n0", "n1")
    here.peers.configure(Membership(9, {**GROUP}))
    here.peers.configure(Membership(3, {id: GROUP[id] for id in ("n0", "n1")}))
    here.peers.tick(LEAVING_MS, LEAVING_MS)
    assert here.peers.members == {"n1"}


def test_a_member_that_moved_is_looked_for_where_its_settings_say_too() -> None:
    here = configured(ME, 3, "n0", "n1")
    here.peers.configure(Membership(4, {"n0": "old-host:1", "n1": "host-n1:1"}))
    assert here.peers.book.places("n0") == ("old-host:1", "host-n0:1")


def test_an_introduction_of_a_large_group_with_long_names_fits() -> None:
    ids = [f"n{number}" for number in range(15)]
    here, there = Side(PEER), Side(ME, ("n0",))
    for side in (here, there):
        side.peers.configure(Membership(3, {id: f"{'h' * 253}-{id}:40911" for id in ids}))
    assert connect(there, here)[0].is_up


def asked(me: Identity, named: MemberId, acceptor: Side, piece: int = 1 << 20) -> str | None:
    """Ask who listens, and return the outcome."""
    outcomes: list[str | None] = []
    one, other = Wire(), Wire()
    accepted = acceptor.peers.accept(other)
    membership = Membership(7, {"n0": "h:1", me.id: "h:2"})
    session = IntroductionProbe(one, me, named, bytes(CHALLENGE_SIZE), membership, outcomes.append)
    for _ in range(4):
        for wire, heard in ((other, session), (one, accepted)):
            data = wire.take()
            for start in range(0, len(data), piece):
                heard.receive(data[start : start + piece])
    accepted.closed()
    session.closed()
    (outcome,) = outcomes
    assert one.is_closed and not session.has_backlog
    return outcome


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_new_member_that_is_asked_who_it_is_says_so_and_no_link_is_left(piece: int) -> None:
    new = Side(member(3), others=("n1",))
    assert asked(ME, "n3", new, piece) is None
    assert new.peers.link("n1", Link.CONTROL) is None
    assert asked(changed(ME, secret="s"), "n3", Side(changed(member(3), secret="s"))) is None


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (member(0), "here is n0 of group g in cluster c, and not n3"),
        (changed(member(3), group="other"), "here is n3 of group other in cluster c, and not group g"),
        (changed(member(3), cluster="other"), "in cluster other"),
        (ME, "n1 is this member itself"),
        (changed(member(3), segment_size=1 << 16), "mappedFileSizeCommitLog"),
        (changed(member(3), secret="s"), "has a ropewalkSecret"),
    ],
)
def test_another_process_that_is_asked_who_it_is_is_named_in_words(there: Identity, words: str) -> None:
    assert words in (asked(ME, "n3", Side(there, others=("n1",))) or "")


def test_a_process_that_is_no_member_is_told_apart_from_one() -> None:
    outcomes: list[str | None] = []
    session = IntroductionProbe(Wire(), ME, "n3", bytes(CHALLENGE_SIZE), Membership(-1, {}), outcomes.append)
    session.receive(b"HTTP/1.1 400 Bad Request\r\n")
    session.closed()
    IntroductionProbe(Wire(), ME, "n3", bytes(CHALLENGE_SIZE), Membership(-1, {}), outcomes.append).closed()
    first, second = outcomes
    assert "no member of a DLedger group" in (first or "") and "without a word" in (second or "")
