"""Share what jobs have in common: tasks on workers or here, reports, pages, files written whole."""
