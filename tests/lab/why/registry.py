"""The lab's registry behind a password, and an image of another platform in it."""

import base64
import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lab.places import LAPTOP, NODES, REGISTRY, STATE


@contextlib.contextmanager
def locked_registry() -> Iterator[str]:
    """Serve the lab's registry with a password. Yields its address, as in the name of an image."""
    server = ThreadingHTTPServer((LAPTOP, 0), Locked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"{LAPTOP}:{server.server_address[1]}"
    files = [STATE / node / "registries" / address / "hosts.toml" for node in NODES]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text(f'server = "http://{address}"\n[host."http://{address}"]\ncapabilities = ["pull", "resolve"]\n')
    try:
        yield address
    finally:
        for file in files:
            file.unlink()
            file.parent.rmdir()
        server.shutdown()
        server.server_close()


class Locked(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Basic {base64.b64encode(b'me:open').decode()}":
            self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="lab"', "Content-Length": "0"})
            return
        request = urllib.request.Request(f"http://{REGISTRY}{self.path}", method=self.command)
        if accept := self.headers.get("Accept"):
            request.add_header("Accept", accept)
        with urllib.request.urlopen(request) as response:
            names = ("Content-Type", "Content-Length", "Docker-Content-Digest")
            headers = {name: response.headers[name] for name in names if response.headers[name]}
            self._answer(200, response.read(), headers)

    do_HEAD = do_GET

    def _answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def push_foreign_image() -> None:
    """Push the bare image as an image for another processor."""
    kind = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    request = urllib.request.Request(f"http://{REGISTRY}/v2/lab/bare/manifests/1", headers={"Accept": kind})
    with urllib.request.urlopen(request) as response:
        body, digest, media = (
            response.read(),
            response.headers["Docker-Content-Digest"],
            response.headers["Content-Type"],
        )
    entry = {"mediaType": media, "digest": digest, "size": len(body)}
    platform = {"platform": {"architecture": "s390x", "os": "linux"}}
    media = "application/vnd.docker.distribution.manifest.list.v2+json"
    index = {"schemaVersion": 2, "mediaType": media, "manifests": [entry | platform]}
    config = json.loads(body)
    for digest in [config["config"]["digest"], *(layer["digest"] for layer in config["layers"])]:
        mount(digest)
    put("manifests", entry["digest"], body, entry["mediaType"])
    put("manifests", "1", json.dumps(index).encode(), media)


def mount(digest: str) -> None:
    url = f"http://{REGISTRY}/v2/lab/foreign/blobs/uploads/?mount={digest}&from=lab/bare"
    urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b"")).close()


def put(kind: str, name: str, body: bytes, media: str) -> None:
    url = f"http://{REGISTRY}/v2/lab/foreign/{kind}/{name}"
    headers = {"Content-Type": media}
    urllib.request.urlopen(urllib.request.Request(url, data=body, method="PUT", headers=headers)).close()
