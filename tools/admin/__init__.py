"""Run `ropewalk admin …`: look after a running cluster, Ropewalk's or Apache RocketMQ's."""
