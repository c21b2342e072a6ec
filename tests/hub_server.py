"""A web server with the hub's paths, on the loopback: `python hub_server.py ROOT FAIL_EVERY` prints its port.

ROOT/datasets/OWNER/NAME/… are repositories, ROOT/files/… plain files. Every FAIL_EVERY-th request fails, in turn with
500, with 429 and a Retry-After, and with a body that is cut short. ROOT/log.jsonl has a line for each request.
"""

import hashlib
import http.server
import json
import re
import sys
import threading
from pathlib import Path
from typing import cast
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

ROOT, FAIL_EVERY = Path(sys.argv[1]), int(sys.argv[2])
PAGE = 2  # entries of a tree in one response
LARGE = 1000  # bytes: a larger file is identified by its SHA-256, a smaller one by its Git hash
TOKEN = "Bearer good"
REPOSITORY = r"/(?:api/)?datasets/([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)(?:/(.*))?"
requests = failures = 0
turn = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cut_next = False

    def do_GET(self) -> None:
        with turn:  # one at a time, so that the log has their order
            self.fault = self.next_fault()
            if self.fault in (500, 429):
                self.answer(self.fault, b"", {"Retry-After": "1"} if self.fault == 429 else {})
            else:
                self.route(urlsplit(self.path))

    def next_fault(self) -> int | str | None:
        global requests, failures
        requests += 1
        if Handler.cut_next:
            Handler.cut_next = False
            return "cut"
        if not FAIL_EVERY or requests % FAIL_EVERY:
            return None
        failures += 1
        return (500, 429, "cut")[(failures - 1) % 3]

    def route(self, url: SplitResult) -> None:
        if match := re.fullmatch(REPOSITORY, url.path):
            name, endpoint, revision, path = match[1], match[2], unquote(match[3]), unquote(match[4] or "")
            self.repository(name, endpoint, revision, path, parse_qs(url.query))
        elif url.path.startswith(("/files/", "/cdn/")):
            folder = "datasets" if url.path.startswith("/cdn/") else "files"
            self.file(ROOT / folder / unquote(url.path).split("/", 2)[2])
        else:
            self.answer(404, b"", {})

    def repository(self, name: str, endpoint: str, revision: str, path: str, query: dict[str, list[str]]) -> None:
        home = ROOT / "datasets" / name
        if "private" in name and self.headers.get("Authorization") != TOKEN:
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif "gated" in name and self.headers.get("Authorization") != TOKEN:
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif not home.is_dir():
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", "refs/convert/parquet", commit(home)):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif endpoint == "revision":
            self.answer(200, json.dumps({"id": name, "sha": commit(home)}).encode(), {})
        elif endpoint == "tree":
            cursor = int(query.get("cursor", ["0"])[0])
            self.tree(home, path, recursive=query.get("recursive") == ["true"], cursor=cursor)
        else:  # to another host, as the hub does with large files
            _, port = cast(tuple[str, int], self.server.server_address)
            self.answer(302, b"", {"Location": f"http://localhost:{port}/cdn/{name}/{path}"})

    def tree(self, home: Path, path: str, *, recursive: bool, cursor: int) -> None:
        folder = home / path
        if not folder.is_dir():
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        paths = sorted(folder.rglob("*") if recursive else folder.iterdir())
        entries = [entry(home, child) for child in paths[cursor : cursor + PAGE]]
        url = urlsplit(self.path)
        link = f"<http://{self.headers['Host']}{url.path}?recursive={str(recursive).lower()}&cursor={cursor + PAGE}>"
        more = {"Link": f'{link}; rel="next"'} if cursor + PAGE < len(paths) else {}
        self.answer(200, json.dumps(entries).encode(), more)

    def file(self, path: Path) -> None:
        if not path.is_file():
            self.answer(404, b"", {})
            return
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted or "no-ranges" in path.name or self.headers.get("If-Range", tag) != tag:
            self.answer(200, content, {"ETag": tag})
            return
        start, stop = int(wanted[1]), int(wanted[2] or len(content) - 1) + 1
        headers = {"ETag": tag, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        self.answer(206 if start < len(content) else 416, content[start:stop], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        length = len(body)
        if self.fault == "cut" and len(body) > 1:
            body, self.close_connection = body[: len(body) // 2], True
        elif self.fault == "cut":
            Handler.cut_next = True  # there is nothing to cut: cut the next body instead
        self.log(status, len(body))  # before the client gets the response and reads the log
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log(self, status: int, sent: int) -> None:
        line = {"path": unquote(self.path), "status": status, "sent": sent, "fault": self.fault}
        line |= {"range": self.headers.get("Range"), "authorization": self.headers.get("Authorization")}
        with open(ROOT / "log.jsonl", "a") as log:
            log.write(json.dumps(line) + "\n")

    def log_message(self, *_: object) -> None:
        pass


def commit(home: Path) -> str:
    content = [(str(path), path.read_bytes()) for path in sorted(home.rglob("*")) if path.is_file()]
    return hashlib.sha1(repr(content).encode()).hexdigest()


def entry(home: Path, path: Path) -> dict[str, object]:
    name = str(path.relative_to(home))
    if path.is_dir():
        return {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
    content = path.read_bytes()
    record: dict[str, object] = {"type": "file", "path": name, "size": len(content)}
    record["oid"] = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    if len(content) > LARGE:
        record["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return record


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
