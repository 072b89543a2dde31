"""Talk to name servers as their client: register this broker (`registrar`), find routes of topics (`route_finder`)."""
