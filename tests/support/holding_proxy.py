"""A proxy in front of one server that holds back what clients send, and lets it go later: a cut network that heals."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class HoldingProxy:
    """Forwards connections to a server; between `hold` and `release` nothing of a client's reaches it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.held = 0
        """Bytes that arrived while nothing was let through."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        with self._lock:
            for each in (self._listener, *self._sockets):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_held: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_held and not self._open.is_set():
                    self.held += len(data)
                    self._open.wait()
                sink.sendall(data)
