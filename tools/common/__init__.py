"""Share what commands have in common: output, errors, interrupts."""
