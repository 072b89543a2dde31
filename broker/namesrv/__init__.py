"""Serve routes: the name server, embedded in a broker or as a process of its own.

`server` answers requests; `routes` is its memory of brokers and topics; `registration` reads what brokers send;
`kv_config` keeps pairs of text for administrators; `settings` says which of its settings may change at run time.
"""
