"""Talk to name servers as their client: register this broker (`registrar`), find routes of topics (`route_finder`),
and have them and consumers hear of changed topics (`topic_changes`).
"""
