"""The server processes: a broker, and a name server on its own.

To be read in this order:

    options.py          options from the command line
    launch.py           needs of a process before it serves: interpreter, descriptors, clocks, signals
    logs.py             the log of a process
    main.py             `ropewalk broker`: options in, the process run, its exit
    broker.py           a broker, its shell and its tasks: start, turns, graceful end
    ports.py            the ports, bound or refused in words
    table_saver.py      tables and changed settings on disk
    reopening.py        a store that is closed for a moment
    announcement.py     the ready line, and the configuration on request
    service_manager.py  the word to systemd
    stop_signals.py     the signals that stop a process: in good order, or at once
    namesrv.py          `ropewalk namesrv`
"""
