"""Set up the cluster of a drill: processes, the proxy between them, damage to files."""
