"""Drills: break a cluster on purpose, under load, and say what it cost.

    cli.py          `ropewalk drill list | run`: parse, run, print
    drills.py       the table of drills and their scripts: fault, repair
    stage.py        what a script sees and may do
    run.py          one run of one drill: load, script, audit, verdict
    group.py        the group that is drilled: ours, or one at work
    cluster.py      real processes on loopback addresses of their own, gone when the drill is
    proxy.py        the TCP proxy in every link: cut, delay, rate, reset
    peers.py        which process a connection comes from, asked of the kernel
    damage.py       a small disk that fills up, a byte that changes
    operate.py      an operator's commands
    load.py         producers that send in order and remember every answer
    messages.py     what a message's bytes must be, by its identity
    reading.py      what is there afterwards: pulled, and read from the files
    audit.py        what was promised against what is there; pure
    timeline.py     events, samples, gaps; pure
    outcome.py      the result, as one document
    report_text.py  that document for a terminal
    report_html.py  and as a page of its own

A drill ends with a verdict, and the verdict is worth something because it can be a bad one: tests run drills against
builds with planted bugs and see them fail. A fault that did not take effect gives no verdict at all.

On a live cluster a drill does nothing but an administrator's commands. Everything else happens on a throw-away one.
"""
