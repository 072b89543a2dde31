"""The links of a DLedger member to the others: a control and a data link each. Sans-IO.

To be read in this order:

    hello.py        the introduction of one member to another: challenge, hello, welcome; every refusal in words
    address_book.py the members that this one is linked to, and where they are
    frames.py       the core's messages as frames, and back
    blocks.py       bytes of the log for a member whose own copy is damaged
    handshake.py    one end of an introduction
    link.py         one connection: its introduction, frames in and out, its end
    peer_status.py  the links to a peer as people see them
    peers.py        the links to all members
    probe.py        the question to a process which member it is
"""
