"""Hold answers until they are true: producers' acknowledgements, held pulls, calls to clients. Pulls far behind the end
of the log are held until the loop has time for them.

All are ordered queues that one pump on the loop completes, and all entries end exactly once: by what they waited for,
by their deadline, or with their connection.
"""
