"""Ask over a topic and wait for the answer, as one calls a function: the responder may run anywhere, and be many.

    python examples/request_reply.py [NAME_SERVER]

The request is a stored message like any other, so a responder that is down for a moment finds it when it is back. Who
asks waits for `timeout` seconds and hears `NoReply` after that.
"""

import json
import sys

from ropewalk import NoReply, Producer, PushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
PRICES = {"chair": 49, "table": 180}

responder = Producer(name_server, group="price-desk")


def quote(message: ReceivedMessage) -> None:
    """The service: one message in, one answer back."""
    order = json.loads(message.body)
    if order["item"] in PRICES:
        total = PRICES[order["item"]] * order["count"]
        responder.reply(message, json.dumps({"total": total}).encode())


with (
    responder,
    PushConsumer("price-desks", {"price-requests": "*"}, quote, name_server, consume_from="earliest"),
    Producer(name_server, group="shop") as shop,
):
    for item, count in (("chair", 4), ("table", 1)):
        request = json.dumps({"item": item, "count": count}).encode()
        answer = shop.request("price-requests", request, timeout=10)
        print(f"{count} x {item}: {json.loads(answer.body)['total']}")
    try:
        shop.request("price-requests", json.dumps({"item": "unicorn", "count": 1}).encode(), timeout=1)
    except NoReply as exc:
        print(f"unicorn: {exc}")
