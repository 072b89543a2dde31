"""Publish a broker's measurements: snapshots made on the loop (`snapshot`), metric families made of them (`families`).

Left to others: HTTP (`broker.web`), counting itself (`broker.state.statistics`, `broker.remoting.rpc_times`).
"""
