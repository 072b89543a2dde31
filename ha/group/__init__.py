"""Keep one master in a group: roles and their promises, handover, epochs, divergence, repair between members.

All of it is pure: files and questions are carried by `broker.replication` and by the operator's commands.
"""
