"""The tools: the command line over everything below, and the check that guards the repository.

A command parses its arguments, calls one plain function and prints what it returned; there is nothing
to test in it that the function does not already have. `cli.py` is where the commands are gathered,
`check.py` is what `make test` runs.

Left to others: all decisions. A tool that talks to a broker does it through `ropewalk.client`, like
any other program; a tool that reads a store's files does it through `store`.
"""
