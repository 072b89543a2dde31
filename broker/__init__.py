"""The broker: one process that owns one log and answers everyone who asks about it.

One trio loop owns all state, so there are no locks: topics, groups, consumer offsets, who is
connected, whom an answer is still owed. Whatever can block leaves the loop: flushes, cold reads,
file creation. A connection's bytes go into a session, which is a plain object that takes bytes and
returns what is to be written and what has to wait. All complete frames of one read are handled before
anything is written.

An answer that must wait is an entry in a queue ordered by the offset it waits for. When that offset
moves, one pump completes every entry that is satisfied. The pump never awaits: a peer that reads
slowly fills its own bounded buffer and delays nobody else. A full queue is answered with the
protocol's own "busy", never by growing and never by silence.

`remoting/shell.py` and its parts alone know the sockets of clients, so that the shell can change while every
session test stays as it is. The name server, embedded or as a process of its own, is a handler of the same kind.

Left to others: byte layouts (`ropewalk.format`), files and recovery (`store`), copies on other
machines (`ha`), and the command line that starts all of it (`tools`).
"""
