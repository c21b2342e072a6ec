"""An API server with the few objects that a test gives it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

Object = dict[str, Any]


@dataclass
class ClusterObjects:
    by_plural: dict[str, list[Object]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    """API group -> the version of it that is preferred."""
    broken: dict[str, int] = field(default_factory=dict)
    """Plural -> the code that it is answered with."""
    requested: list[str] = field(default_factory=list)
    """Paths."""

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, object]:
        parts = path.strip("/").split("/")
        if path == "/version":
            return 200, {"gitVersion": "v1.34.4"}
        if path == "/apis":
            groups = [{"name": name, "preferredVersion": {"version": version}} for name, version in self.groups.items()]
            return 200, {"groups": groups}
        if parts[0] == "apis" and len(parts) == 3:
            return self._resources()
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            rest = rest[2:]
        if rest[0] in self.broken:
            return self.broken[rest[0]], {"message": "refused by the test"}
        if rest[2:] == ["log"]:
            return (200, self.logs[rest[1]]) if rest[1] in self.logs else (404, {"message": "no such pod"})
        objects = self.by_plural.get(rest[0], [])
        if len(rest) == 1:
            items = [object for object in objects if _is_selected(object, query)]
            return 200, {"metadata": {"resourceVersion": "1"}, "items": items}
        named = [object for object in objects if object["metadata"]["name"] == rest[1]]
        return (200, named[0]) if named else (404, {"message": f"{rest[1]} not found"})

    def _resources(self) -> tuple[int, object]:
        kinds = {"workloads": "Workload", "localqueues": "LocalQueue", "queues": "Queue"}
        return 200, {"resources": [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds.items()]}


def _is_selected(object: Object, query: dict[str, str]) -> bool:
    for selector in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, wanted = selector.partition("=")
        value: Any = object
        for key in path.split("."):
            value = value.get(key, {})
        if value != wanted:
            return False
    return True


@contextmanager
def served(objects: ClusterObjects, folder: Path) -> Iterator[Path]:
    """Yields its kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            objects.requested.append(url.path)
            query = {key: unquote(values[0]) for key, values in parse_qs(url.query).items()}
            code, value = objects.answer(url.path, query)
            body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "text/plain" if isinstance(value, str) else "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    values = {
        "current-context": "lab",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(values))
    try:
        yield file
    finally:
        server.shutdown()
        server.server_close()
