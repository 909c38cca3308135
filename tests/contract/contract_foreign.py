"""Somebody else's server: it must never be taken for ours, measured or touched."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class _Http(ThreadingHTTPServer):
    request_queue_size = 128  # connections that nobody takes


class ForeignServer:
    """A server on a port of the loopback that is not ours, in this process.

    Args:
        silent: it takes connections and answers nothing; otherwise it answers as an older launch would.

    Attributes:
        seen: method and path of each request that it got.
    """

    def __init__(self, port: int = 0, *, silent: bool = False) -> None:
        self.seen: list[tuple[str, str]] = []
        self._silent = silent
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append((self.command, self.path))
                body = json.dumps({"weight_version": "somebody-else"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._http = _Http(("127.0.0.1", port), Handler)
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> ForeignServer:
        if not self._silent:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._silent:
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def is_untouched(self) -> bool:
        """Whether it still takes connections, and was asked nothing that would put load on it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            pass
        return all(method == "GET" for method, _ in self.seen)
