"""Serve `examples/with_fastapi.py` on a free port, be its customer, and print what it answered.

    python tests/support/serve_example.py EXAMPLES NAME_SERVER

A process of its own: the application reads its environment when it is imported.
"""

import asyncio
import importlib
import json
import os
import socket
import sys
import time
from http.client import HTTPConnection
from typing import Any


def ask(port: int, method: str, path: str, body: dict[str, str] | None = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def be_a_customer(port: int) -> None:
    status, answer = ask(port, "POST", "/orders", {"number": "order-1", "item": "chair"})
    print(status, answer["status"])
    for _ in range(1200):
        status, answer = ask(port, "GET", "/orders/order-1")
        if status == 200:
            print(answer["state"])
            return
        time.sleep(0.05)
    raise SystemExit(f"the order was never handled: {status} {answer}")


async def main(examples: str, name_server: str) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    os.environ["NAMESRV_ADDR"] = name_server
    sys.path.insert(0, examples)
    application = importlib.import_module("with_fastapi").app
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = config.errorlog = None
    over = asyncio.Event()
    served = asyncio.create_task(serve(application, config, shutdown_trigger=over.wait))
    await asyncio.to_thread(be_a_customer, port)
    over.set()
    await served


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
