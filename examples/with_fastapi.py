"""A FastAPI application: a request handler that sends, and a consumer beside it, under one lifespan.

    pip install fastapi
    uvicorn --app-dir examples with_fastapi:app

The producer and the consumer are opened once, when the application starts, and shared by all requests. POST /orders
answers when the broker has acknowledged the message; GET /orders/{number} shows what the consumer made of it. Both
clients take their name server from NAMESRV_ADDR.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from ropewalk import AsyncProducer, AsyncPushConsumer, Message, ReceivedMessage, Refused, Unreachable

handled: dict[str, str] = {}


class Order(BaseModel):
    number: str
    item: str


async def handle(message: ReceivedMessage) -> None:
    """Runs in the application's own event loop, beside its requests."""
    (number,) = message.keys
    handled[number] = f"{message.body.decode()} is on its way"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        AsyncProducer(group="web-shop") as producer,
        AsyncPushConsumer("web-desk", {"web-orders": "*"}, handle, consume_from="earliest"),
    ):
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(order: Order) -> dict[str, Any]:
    producer: AsyncProducer = app.state.producer
    try:
        result = await producer.send("web-orders", Message(order.item.encode(), keys=order.number))
    except (Refused, Unreachable) as exc:
        # Nothing was stored: the customer may try again.
        raise HTTPException(503, str(exc)) from exc
    return {"number": order.number, "status": result.status.name}


@app.get("/orders/{number}")
async def show(number: str) -> dict[str, str]:
    if number not in handled:
        raise HTTPException(404, "not handled yet")
    return {"number": number, "state": handled[number]}
