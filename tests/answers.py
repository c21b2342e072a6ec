"""A web server whose responses come from a function."""

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from typing import Any

Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


@contextmanager
def answers(answer: Callable[[str, str, Message], Answer], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve `answer(method, path, headers)`. Yields host:port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = answer(self.command, self.path, self.headers)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client has closed the connection
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
