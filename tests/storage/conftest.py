"""Real stores on this machine, and a wire to them that can be cut."""

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests

from stoker.supervise.lifeline import die_with

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
PATIENCE_S = 60
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # nobody is asked but the stores here
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_GCE_CHECK": "true",
}


class Wire:
    """A port that leads to another; it counts what goes up, can hold it, and can be taken down."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server((HOST, 0))
        self._open: set[socket.socket] = set()
        self._up = threading.Event()
        self._up.set()
        self.sent = 0
        self.most: int | None = None
        """Bytes that may go up from now on."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        self._up.clear()
        for one in list(self._open):
            _end(one)

    def mend(self) -> None:
        self._up.set()

    def close(self) -> None:
        self.cut()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if not self._up.is_set():
                    client.close()
                    continue
                there = socket.create_connection((HOST, self._to))
                self._open |= {client, there}
                for one, other, counts in ((client, there, True), (there, client, False)):
                    threading.Thread(target=self._carry, args=(one, other, counts), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                while counts and self.most is not None and self.sent + len(data) > self.most:
                    time.sleep(0.01)
                    if one not in self._open:
                        return
                self.sent += len(data) * counts
                other.sendall(data)
        for each in (one, other):
            self._open.discard(each)
            _end(each)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def served(argv: list[str], port: int, path: str) -> Iterator[None]:
    tests = os.getpid()
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=lambda: die_with(tests)
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(requests.ConnectionError):
                requests.get(f"http://{HOST}:{port}{path}", timeout=5)
                break
            assert process.poll() is None, f"{argv[0]} ended"
            assert time.monotonic() < deadline, f"{argv[0]} does not answer"
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    """moto's S3 server, on this port."""
    port = free_port()
    code = "from moto.server import main; main()"
    with served([sys.executable, "-c", code, "-H", HOST, "-p", str(port)], port, "/moto-api/"):
        yield port


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[int]:
    """fake-gcs-server, on this port."""
    binary = shutil.which("fake-gcs-server", path=f"{ROOT / '.lab' / 'bin'}:{os.environ['PATH']}")
    assert binary, "fake-gcs-server is not built: run make test once, or make .lab/bin/fake-gcs-server"
    port = free_port()
    argv = [binary, "-backend", "memory", "-scheme", "http", "-host", HOST, "-port", str(port), "-log-level", "error"]
    with served(argv, port, "/storage/v1/b"):
        yield port


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's own: no credentials, no endpoint, no cache."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def wire(request: pytest.FixtureRequest, bucket: str) -> Wire:
    """What the bucket is reached by."""
    found: Wire = request.getfixturevalue(f"{bucket[:2]}_wire")
    return found


@pytest.fixture
def s3_wire(moto: int, nowhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:  # noqa: ARG001 (it is set)
    wire = Wire(moto)
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
    yield wire
    wire.close()


@pytest.fixture
def gs_wire(fake_gcs: int, nowhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:  # noqa: ARG001
    wire = Wire(fake_gcs)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", wire.url)
    yield wire
    wire.close()


@pytest.fixture
def s3(moto: int, s3_wire: Wire) -> str:  # noqa: ARG001 (it is reached by that)
    """An empty bucket."""
    name = f"stoker-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=f"http://{HOST}:{moto}").create_bucket(Bucket=name)
    return f"s3://{name}/some/runs"


@pytest.fixture
def gs(fake_gcs: int, gs_wire: Wire) -> str:  # noqa: ARG001 (it is reached by that)
    """An empty bucket."""
    name = f"stoker-{uuid.uuid4().hex[:12]}"
    requests.post(f"http://{HOST}:{fake_gcs}/storage/v1/b", json={"name": name}, timeout=10).raise_for_status()
    return f"gs://{name}/some/runs"


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> str:
    """One of each kind, in turn."""
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on this is another machine: one with a cache of its own."""
    return lambda name: monkeypatch.setenv("STOKER_CACHE", str(tmp_path / f"cache-{name}"))


@pytest.fixture
def forbidding() -> Iterator[str]:
    """A server that says 403 to everything, as S3 and as Google's API."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            xml = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            body = b'{"error": {"code": 403, "message": "no"}}' if "/storage/v1/" in self.path else xml
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{HOST}:{server.server_address[1]}"
    server.shutdown()
