"""Read a broker's settings: flags, environment, RocketMQ's configuration files.

`keys` is the table of every key that RocketMQ 5.5.0 knows and what becomes of it here, `config` the values that count
and where each came from, `java_properties` the text form of the files.
"""
