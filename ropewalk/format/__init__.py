"""Every byte layout Ropewalk reads or writes, as pure functions: no files, no sockets, no clock.

A module here owns one layout: stored records (`record`), their property text (`properties`), batch bodies
(`batch`), queue entries (`queue_entry`), the checkpoint file (`checkpoint`), frames on the wire (`remoting`),
the typed headers inside them (`headers`), the JSON dialect of RocketMQ's files and bodies (`fastjson`) and
the rules for names (`names`). All integers are big-endian and signed unless a module says otherwise.

Bytes handed in are a stranger's or a disk's: a decoder raises the one typed error its module names, whatever
the bytes are. Bytes handed out are ours: an encoder that is asked for something the layout cannot carry
raises `LocalProtocolError`. What records and frames *mean* is decided in the rooms above.
"""
