"""The parts of a push consumer: what its member of the group knows, and the tasks that work on it.

    options    what a program may choose
    member     the state that all parts share: core, links, readers of queues
    progress   records how far the queues are done
    handling   calls the handler, and gives back what failed
    sharing    divides the queues among the members, takes them on and gives them up
    requests   answers what brokers and administrators ask

Each knows those above it and none below. `push_consumer.py` is the consumer that a program sees: it makes the parts and
runs their tasks.
"""
