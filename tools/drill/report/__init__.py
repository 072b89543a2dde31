"""Print the outcome of a drill: for a terminal, and as a page."""
