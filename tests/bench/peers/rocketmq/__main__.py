"""`python -m tests.bench.peers.rocketmq` is the comparison; `make bench-rocketmq` calls it so."""

import typer

from tests.bench.peers.rocketmq.compare import main

typer.run(main)
