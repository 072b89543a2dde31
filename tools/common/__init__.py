"""Share output, options and interrupts among the commands: output, errors, interrupts."""
