"""The layouts of DLedger mode: entries of its log (`entry`), frames between its members (`frame`)."""
