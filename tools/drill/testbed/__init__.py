"""Set up what a drill breaks: processes, the proxy between them, damage to files."""
