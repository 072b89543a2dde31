"""Answer administrators' requests: topics, groups, offsets, brokers, members of a high-availability group.

`registry` lists every code and the file that answers it. Each handler is a plain function or method over
`AdminContext` (`base`), which brings refusals in words and look-ups of the disk that do not stop the loop.

Left to others: requests that programs send by themselves (`produce`, `consume`), the tables (`state`).
"""
