"""Histories made by hand, with the verdict of a person: what every checker of linearizability has to tell apart."""

from __future__ import annotations

from dataclasses import dataclass

from tests.linear.drawn import drawn
from tests.linear.history import Call
from tests.linear.models import COUNTER, LOG, REGISTER, Model

__all__ = ["HISTORIES", "Drawn"]


@dataclass(frozen=True)
class Drawn:
    """One history and its verdict."""

    name: str
    good: bool
    lines: tuple[str, ...]
    model: Model = REGISTER

    @property
    def calls(self) -> list[Call]:
        """Return its calls."""
        return drawn(*self.lines)


def _good(name: str, *lines: str, model: Model = REGISTER) -> Drawn:
    return Drawn(name, True, lines, model)


def _bad(name: str, *lines: str, model: Model = REGISTER) -> Drawn:
    return Drawn(name, False, lines, model)


HISTORIES = [
    # -- one after the other
    _good("nothing happened", ""),
    _good("nothing is there at first", "[r.]"),
    _bad("a value from nowhere", "[r1]"),
    _good("what was written is read", "[w1][r1]"),
    _bad("what was written is not there", "[w1][r.]"),
    _good("the last write counts", "[w1][w2][r2]"),
    _bad("an older write is read", "[w1][w2][r1]"),
    _bad("a read before any write sees it", "[r1][w1]"),
    _good("read again and again", "[w1][r1][r1][r1]"),
    _bad("read and then lost", "[w1][r1][r.]"),
    # -- at the same time
    _good("a read beside a write may see it", "[w1     ]", "   [r1]"),
    _good("a read beside a write may miss it", "[w1     ]", "   [r.]"),
    _good("two reads beside a write: old, then new", "[w1          ]", " [r.] [r1]"),
    _bad("two reads beside a write: new, then old", "[w1          ]", " [r1] [r.]"),
    _bad("new, then old, by different readers", "[w1            ]", " [r1]", "      [r.]"),
    _good("old and new by readers at the same time", "[w1            ]", " [r1    ]", "   [r.  ]"),
    _good("two writes in either order: the first", "[w1   ]   [r1]", "[w2   ]"),
    _good("two writes in either order: the second", "[w1   ]   [r2]", "[w2   ]"),
    _bad("two writes in both orders", "[w1   ]   [r1][r2]", "[w2   ]"),
    _bad("two writes in both orders, by two readers", "[w1   ]   [r1]", "[w2   ]       [r2]"),
    _good("two readers at the same time agree on an order", "[w1   ]   [r1]", "[w2   ]   [r1]"),
    _bad("two readers at the same time do not agree", "[w1   ]   [r1  ]", "[w2   ]   [r2  ]"),
    _good("two readers in the midst of two writes", "[w1         ]", "[w2         ]", "  [r1]  [r2]"),
    _bad("back and forth with two writes", "[w1             ]", "[w2             ]", " [r1] [r2] [r1]"),
    _good("the write overlaps, the read comes later", "[w1]    [r2]", "  [w2]"),
    _bad("a write that ended before another began is read after it", "[w1]", "    [w2]", "         [r1]"),
    _good("a long read sees any of the writes it overlaps", "[w1][w2][w3]", " [r2      ]"),
    _good("a long read sees the first", "[w1][w2][w3]", "  [r1     ]"),
    _bad("a long read sees what was over before it", "[w1][w2][w3]", "         [r1]"),
    _good("calls that touch overlap", "[w1]", "   [r.]"),
    _good("a chain of overlaps", "[w1  ]   [r2  ]", "   [w2   ]"),
    _good("overtaken on the way", "[w1              ]", " [w2] [r2] [r1]"),
    _bad("overtaken, and back", "[w1                   ]", " [w2] [r2] [r1] [r2]"),
    _good("three writers and the order that fits", "[w1    ]", "[w2    ]", "[w3    ] [r2]"),
    _good("three writers, two readers", "[w1        ]", "[w2        ]", "[w3        ]", "  [r3] [r1]  [r2]"),
    _bad(
        "three writers, one comes twice", "[w1        ]", "[w2        ]", "[w3        ]", "  [r3] [r1]  [r3]"
    ),
    # -- the stale read of a deposed leader
    _bad("a deposed leader answers what it has", "[w1][w2]", "         [r2]", "              [r1]"),
    _bad("a follower that lags answers", "[w1][w2]      ", "          [r1]"),
    _bad("a member that restarted has lost a commit", "[w1][w2]", "        [r2][r1]"),
    _good("a follower that lags answers beside the write", "[w1][w2      ]", "       [r1]"),
    _bad("one client reads its own write, and then not", "[w1]", "    [w2][r2]", "            [r1]"),
    _good(
        "reads of others may miss a write that is under way", "[w1][w2            ]", "       [r1] [r1] [r2]"
    ),
    # -- unknown outcomes
    _good("an unknown write happened", "[w1?]   [r1]"),
    _good("an unknown write did not happen", "[w1?]   [r.]"),
    _good("an unknown write happens late", "[w1?] [w2] [r2] [r1]"),
    _good("an unknown write happens very late", "[w1?]", "     [r.] [r.] [r.] [r1]"),
    _bad("an unknown write happens and is undone", "[w1?] [r1] [r.]"),
    _bad("an unknown write happens twice", "[w1?] [r1]", "          [w2] [r2] [r1]"),
    _bad("an unknown write happens before it began", "     [w1?]", "[r1]"),
    _good("two unknown writes, one order", "[w1?][w2?]  [r2] [r1]"),
    _bad("two unknown writes, both orders", "[w1?][w2?]  [r2] [r1] [r2]"),
    _good("an unknown read says nothing", "[w1] [r.?] [w2] [r2]"),
    _good("unknown writes that nobody sees", "[w1?][w2?][w3?][w4?] [w5] [r5] [r5]"),
    _good("an unknown write hides an older one", "[w1] [w2?] [r1] [r2]"),
    _bad("an unknown write is seen and not seen", "[w1] [w2?] [r2] [r1]"),
    # -- compare_and_put
    _good("compared and put", "[w1][1>2+][r2]"),
    _bad("compared with another value, and put", "[w1][3>2+][r2]"),
    _bad("not put, though equal", "[w1][1>2-]"),
    _good("not put, for another value", "[w1][3>2-][r1]"),
    _bad("not put, and there nevertheless", "[w1][3>2-][r2]"),
    _good("put where there is nothing", "[.>2+][r2]"),
    _bad("put where there is something", "[w1][.>2+]"),
    _good("one of two wins", "[w1][1>2+  ] [r2]", "    [1>3-  ]"),
    _bad("both win", "[w1][1>2+  ]", "    [1>3+  ]"),
    _bad("neither wins", "[w1][1>2-  ]", "    [1>3-  ]"),
    _good("a chain of exchanges at the same time", "[w1][2>3+    ] [r3]", "    [1>2+    ]"),
    _bad("a chain that is broken", "[w1][3>4+    ]", "    [1>2+    ]"),
    _good("an unknown exchange happened", "[w1][1>2?][r2]"),
    _good("an unknown exchange did not happen", "[w1][1>2?][r1]"),
    _bad("an unknown exchange happened, and the same value is exchanged again", "[w1][1>2?][r2][1>3+]"),
    _bad("a retry is applied twice", "[w1][1>2?][2>1+][r1][r2][2>1+]"),
    # -- put_if_absent, delete
    _good("put where nothing was", "[i1.][r1]"),
    _good("told what was there", "[i1.][i2:1][r1]"),
    _bad("put over what was there", "[i1.][i2.]"),
    _good("one of two is first", "[i1.   ]", "[i2:1  ]"),
    _bad("both are first", "[i1.   ]", "[i2.   ]"),
    _bad("neither is first", "[i1:2   ]", "[i2:1   ]"),
    _good("an unknown one was first", "[i1?] [i2:1]"),
    _good("an unknown one was not first", "[i1?] [i2.] [r2]"),
    _bad("an unknown one came late and won", "[i1?] [i2.] [r1]"),
    _good("deleted", "[w1][d+][r.]"),
    _bad("deleted, and there", "[w1][d+][r1]"),
    _bad("deleted twice", "[w1][d+  ]", "    [d+  ]"),
    _good("deleted once", "[w1][d+  ]", "    [d-  ]"),
    _good("deleted and put again", "[i1.][d+][i2.][r2]"),
    # -- counters
    _good("counted", "[+1:0][+1:1][+1:2]", model=COUNTER),
    _bad("a number twice", "[+1:0  ]", "[+1:0  ]", model=COUNTER),
    _bad("a number left out", "[+1:0][+1:2]", model=COUNTER),
    _good("a number left out for an unknown call", "[+1:0][+1?][+1:2]", model=COUNTER),
    _good("numbers in the order of nobody", "[+1:1  ]", "[+1:0  ]", model=COUNTER),
    _bad("numbers against time", "[+1:1]", "      [+1:0]", model=COUNTER),
    _good("steps of several", "[+3:0][+2:3]", "            [r5]", model=COUNTER),
    _bad("read before it was counted", "[+3:0]", "  [r5]", model=COUNTER),
    # -- logs
    _good("a queue and its end", "[a0][r1][a1][r2]", model=LOG),
    _bad("the end falls", "[a0][r1]", "        [r0]", model=LOG),
    _bad("the end is behind an answered append", "[a0][a1]", "        [r1]", model=LOG),
    _good("the end may be ahead of an answer", "[a0   ]", " [r1]", model=LOG),
    _bad("a place is given twice", "[a0][r1]", "     [a0]", model=LOG),
    _good("an unknown append shows late", "[a?]   [r0] [r1] [a1]", model=LOG),
    _bad("an unknown append shows, and is gone", "[a?] [r1] [r0]", model=LOG),
    _good("two appends at one time, in either order", "[a1  ][r2]", "[a0  ]", model=LOG),
    _bad("an end from nowhere", "[a0][a?][r3]", model=LOG),
]
