"""A member of a DLedger group: its role, the state that it logs, reads of the newest state, repair of its log."""
