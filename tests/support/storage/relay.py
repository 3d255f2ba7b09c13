"""Stands between a training and its object store: counts requests, holds one up, or is gone for a while."""

import re
import socket
import threading
from contextlib import suppress

BUFFER_BYTES = 1 << 16
_REQUEST = re.compile(rb"^(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.[01]\r\n", re.MULTILINE)


class Relay:
    """Passes bytes on to a port of 127.0.0.1, from one of its own, which stays the same while it is away."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening: socket.socket | None = None
        self._open: list[socket.socket] = []
        self._requests: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._held = threading.Event()
        self._go = threading.Event()
        self._lock = threading.Lock()
        self.port = 0
        self.come()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def come(self) -> None:
        """Be there, again."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen(64)
        self.port = listening.getsockname()[1]
        self._listening = listening
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()

    def leave(self) -> None:
        """Be gone: nothing answers, and connections break."""
        if self._listening is not None:
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._listening = None
        with self._lock:
            connections, self._open = self._open, []
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def hold(self, pattern: str) -> threading.Event:
        """Keep the next request that matches from its target, with all that follows on its connection; tells when."""
        self._held.clear()
        self._go.clear()
        self._pattern = re.compile(pattern)
        return self._held

    def let_go(self) -> None:
        """Hold nothing up any more."""
        self._pattern = None
        self._go.set()

    def forget(self) -> None:
        """Count anew."""
        self._requests.clear()

    def seen(self, pattern: str = "") -> list[str]:
        """The requests so far that match, such as `GET /bucket/run.json`."""
        return [each for each in list(self._requests) if re.search(pattern, each)]

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *raised: object) -> None:
        self.let_go()
        self.leave()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                if is_asking:
                    self._look(data)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _look(self, data: bytes) -> None:
        for method, path in _REQUEST.findall(data):
            request = f"{method.decode()} {path.decode()}"
            self._requests.append(request)
            if self._pattern is not None and self._pattern.search(request):
                self._pattern = None
                self._held.set()
                self._go.wait()
