"""Write rows of a DataFrame to topics: rows to messages, a task's sender, Spark's writers."""
