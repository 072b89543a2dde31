"""A slave's conversation with its master, and with the other members, over the remoting port.

To be read in this order:

    peer.py           a connection to another member, over which questions are proven
    slave_broker.py   this broker as the conversation changes it, each change in a turn of its own
    hello.py          with the HA connection open: compare the logs
    sync.py           the tasks: fetch what moved at the master, bring what consumers committed here
    rocketmq.py       the tables of a RocketMQ master
    master_search.py  the search for a newer master
"""
