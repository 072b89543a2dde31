"""Work on a store that no broker serves: read, verify, repair, preview a start, list diverged tails."""
