"""Run `ropewalk pipeline audit`: compare copies of a log, report findings, repair a copy."""
