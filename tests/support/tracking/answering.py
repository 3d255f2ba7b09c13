"""A small HTTP server that answers as a test wants it, in the place of MLflow's."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]
"""Status and body for a request."""


def healthy(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
    """As an MLflow server that is healthy and has nothing."""
    return 200, b"OK" if request.path == "/health" else b"{}"


@contextmanager
def answering(answer: Answer, port: int = 0) -> Iterator[str]:
    """Answer while the block runs, at any free port for 0; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
