"""Find messages by key: the index files (`file`), their builder, the helper that runs it, and searches."""
