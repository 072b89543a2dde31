"""Implement the client's protocol without sockets: connection, conversations, routes, messages.

`connection` matches answers to requests; `steps` are conversations as generators; `directory` remembers routes.
`produce` has a producer's decisions, `consume` a consumer's.
"""
