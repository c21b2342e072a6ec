"""An API server with a run of many pods, their events and nodes: for more of them than a test cluster has.

python cluster_server.py PODS: prints its port. It knows no kind of any operator.
"""

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PODS = int(sys.argv[1])
PADDING = {"annotations": {"note": "x" * 5000}}  # a real object is as large
BORN = "2026-11-15T12:00:00Z"
INDEX = "batch.kubernetes.io/job-completion-index"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        last = url.path.rpartition("/")[2]
        if url.path == "/version":
            self._answer({"gitVersion": "v1.34.4"})
        elif last == "pods":
            self._list(pod, query)
        elif last == "nodes":
            self._list(node, query)
        elif last == "events" and query.get("fieldSelector") == "type=Warning":
            self._list(event, query)
        elif last == "events":
            self._answer({"metadata": {"resourceVersion": "1"}, "items": []})
        elif url.path.startswith("/apis/batch/v1/") and last == "demo-abcd":
            self._answer({"metadata": {"name": last, "creationTimestamp": BORN}, "spec": {}, "status": {}})
        elif "/persistentvolumeclaims/" in url.path:
            self._answer({"metadata": {"name": last}, "spec": {}, "status": {"phase": "Bound"}})
        elif "/namespaces/" in url.path and last == "default":
            self._answer({"metadata": {"name": "default"}})
        else:
            self._answer({"message": "the server could not find the requested resource"}, code=404)

    def _list(self, create: Callable[[int], dict[str, Any]], query: dict[str, str]) -> None:
        first = int(query.get("continue", 0))
        last = min(PODS, first + int(query.get("limit", 500)))
        further = {"continue": str(last)} if last < PODS else {}
        items = [create(number) for number in range(first, last)]
        metadata: dict[str, str] = {"resourceVersion": "1"} | further
        self._answer({"metadata": metadata, "items": items})

    def _answer(self, value: object, code: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def pod(number: int) -> dict[str, object]:
    """The last of them find no node."""
    late = number >= PODS // 2
    condition = {"type": "PodScheduled", "status": "False" if late else "True", "message": "0/9 nodes are available"}
    state = {} if late else {"containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "Creating"}}}]}
    container = {"name": "pytorch", "image": "x", "resources": {"requests": {"cpu": "512"}}}
    return {
        "metadata": {"name": f"demo-abcd-{number}", "labels": {INDEX: str(number)}, "creationTimestamp": BORN}
        | PADDING,
        "spec": {"containers": [container]} | ({} if late else {"nodeName": f"n-{number}"}),
        "status": {"phase": "Pending", "conditions": [condition]} | state,
    }


def node(number: int) -> dict[str, object]:
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": f"n-{number}"} | PADDING,
        "spec": {},
        "status": {"conditions": [ready], "allocatable": {"cpu": "96"}},
    }


def event(number: int) -> dict[str, object]:
    involved = {"kind": "Pod", "name": f"demo-abcd-{number}"}
    fields = {"reason": "FailedScheduling", "message": "0/9 nodes are available: 9 Insufficient cpu."}
    return {"metadata": {"creationTimestamp": BORN}, "involvedObject": involved, "lastTimestamp": BORN, **fields}


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
