"""The bytes of the key-value store: commands in a region's log, and bodies of its requests. Integers are big-endian.

    command   u8 kind | i64 stamp, the leader's clock in ms since 1970 | the rest
      OPEN    text: the leader's address for clients                             the entry that opens a term
      SESSION nothing: the index of this entry becomes the session's id
      WRITE   i64 session | i64 seq | i64 lowest unanswered seq | i64 epoch | operations
      FOUND   items: the keys at which a new store is cut                        of region 0 alone
      RESERVE i64 region | i64 epoch: the id of the region that is cut from it   of region 0 alone
      SPLIT   i64 epoch | i64 id of the new region | its first key
    outcome   u8 status | results, where the status is OK
    items     u16 count | items, each of them a u8 kind and its fields            operations and results alike
    field     i64, or bytes: u32 size | bytes; a size of 0xFFFFFFFF says that there are none

A session's *seq* numbers its writes; a write is applied once, whatever number of times it stands in the log. *Lowest
unanswered* tells which results nobody will ask for again. The whole state of a region as bytes: `snapshot`.
"""
