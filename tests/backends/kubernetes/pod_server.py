"""An API server that knows pods and their logs, and nothing else: for more pods than a test cluster has.

python pod_server.py PODS LINES: prints its port.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PODS, LINES = int(sys.argv[1]), int(sys.argv[2])
FOLLOWED = threading.Barrier(max(1, PODS - 1))  # all pods with a log are followed at once
PADDING = {"annotations": {"note": "x" * 5000}}  # a real pod is as large


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path == "/version":
            self._answer(json.dumps({"gitVersion": "v1.34.4"}).encode())
        elif url.path.endswith("/log"):
            self._log(int(url.path.split("/")[-2].rpartition("-")[2]), query)
        else:
            self._pods(int(query.get("continue", 0)), int(query.get("limit", 500)))

    def _pods(self, first: int, limit: int) -> None:
        last = min(PODS, first + limit)
        items = [pod(number) for number in range(first, last)]
        further = {"continue": str(last)} if last < PODS else {}
        self._answer(json.dumps({"metadata": {"resourceVersion": "1", **further}, "items": items}).encode())

    def _log(self, number: int, query: dict[str, str]) -> None:
        if number == 3:
            self._answer(b'{"message": "container is waiting to start"}', code=400)
            return
        stamp = "2026-11-15T12:00:00.123456789Z"
        count = min(LINES, int(query.get("tailLines", LINES)))
        lines = [f"{stamp} node {number} begins"] + [
            f"{stamp} [{2 * number + line % 2}] step {line} of node {number}" for line in range(LINES - count, LINES)
        ]
        if "follow" in query:
            self.send_response(200)
            self.end_headers()
            for line in lines:
                self.wfile.write(f"{line}\n".encode())
                if line == lines[0]:
                    FOLLOWED.wait(60)
                time.sleep(0.01)
            self.close_connection = True
            return
        self._answer("".join(f"{line}\n" for line in lines).encode())

    def _answer(self, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def pod(number: int) -> dict[str, object]:
    labels = {"batch.kubernetes.io/job-completion-index": str(number)}
    return {"metadata": {"name": f"demo-{number}", "labels": labels, **PADDING}, "status": {"phase": "Running"}}


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
