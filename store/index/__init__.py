"""Find messages by key: the index files (`files`) and the helper that builds them (`builder`)."""
