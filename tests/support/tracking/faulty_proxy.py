"""An HTTP proxy in front of a real server that fails in chosen ways for a number of requests."""

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class FaultyProxy:
    """Forwards requests, but for those that a fault was ordered for, and while the server is not there.

    Faults: `refuse` closes the connection unread, a number answers with that status, `drop` lets the server do its
    work and closes the connection before the answer, `delay` answers late, `sleep` never answers.
    """

    DELAY_SECONDS = 0.5

    def __init__(self, target: str) -> None:
        self._host = urlsplit(target).netloc
        self._faults: list[tuple[str, str | int]] = []
        self.hits: list[str] = []
        """`path fault` of each request that failed on purpose."""
        self.requests: list[str] = []
        """`METHOD path` of all requests."""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def _handle(self) -> None:
                proxy._serve(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"

    def order(self, fault: str | int, path: str, times: int) -> None:
        """Let the next `times` requests whose path contains `path` fail."""
        with self._lock:
            self._faults += [(path, fault)] * times

    def forgive(self) -> None:
        """Let no further request fail."""
        with self._lock:
            self._faults.clear()

    def __enter__(self) -> "FaultyProxy":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        fault = self._next_fault(handler.path)
        self.requests.append(f"{handler.command} {handler.path}")
        actions: dict[str | int | None, Callable[[], None]] = {
            "refuse": lambda: None,
            "sleep": lambda: (self._ended.wait(), None)[1],
            "delay": lambda: (self._ended.wait(self.DELAY_SECONDS), self._answer(handler, *self._forward(handler)))[1],
            "drop": lambda: (self._forward(handler), None)[1],
            None: lambda: self._answer(handler, *self._forward(handler)),
        }
        action = actions.get(fault)
        try:
            if action is None:
                self._answer(handler, int(fault or 500), b'{"message": "by order"}')
            else:
                action()
        except (OSError, http.client.HTTPException):
            pass  # the server, or whoever asked, is gone
        handler.close_connection = True

    def _next_fault(self, path: str) -> str | int | None:
        with self._lock:
            for index, (part, fault) in enumerate(self._faults):
                if part in path:
                    del self._faults[index]
                    self.hits.append(f"{path} {fault}")
                    return fault
        return None

    def _forward(self, handler: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(self._host, timeout=30)
        headers = {key: value for key, value in handler.headers.items() if key.lower() not in ("host", "connection")}
        connection.request(handler.command, handler.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, data: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
