"""The server processes: a broker, and a name server on its own.

To be read in this order:

    options.py          options from the command line
    launch.py           needs of a process before it serves: interpreter, descriptors, clocks, signals
    logs.py             the log of a process
    broker.py           `ropewalk broker`: start, tasks, graceful end
    announcement.py     the ready line, and the configuration on request
    service_manager.py  the word to systemd
    namesrv.py          `ropewalk namesrv`
"""
