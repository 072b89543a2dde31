"""Copy the log from a master to its slaves: HAService, HAConnection, HAClient, GroupTransfer.

`service` counts the slaves of a master and what they have, `connection` frames the log for one of them, `client` is
the slave's end, `group_transfer` turns reports into what producers may be told, `source` reads the log to be sent.
"""
