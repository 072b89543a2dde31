"""Share code between the jobs: tasks on workers or here, reports, pages, files written whole."""
