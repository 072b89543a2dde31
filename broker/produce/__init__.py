"""Store producers' messages: admission, append, answer.

`send` is the readable way of one message, `batch` of many in one request, `request_reply` of an answer to a client
that waits; `responses` holds the text of the common answer. `fast` has quick ways of the same decisions.

Left to others: the log (`store.append`), waiting for disks and slaves (`broker.waiting`).
"""
