"""Run `ropewalk pipeline replay`: send messages of a store, a topic or a lake again."""
