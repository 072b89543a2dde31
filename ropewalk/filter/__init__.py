"""Message filters beyond tags: expressions over a message's properties, pure and without a broker.

`sql92` is the one language that RocketMQ has. The broker evaluates expressions, clients only carry them.
"""
