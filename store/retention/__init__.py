"""Remove old segments: the rules (`rules`), and carrying them out (`cleaner`)."""
