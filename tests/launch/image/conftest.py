"""A real registry on this machine, a wire to it that can be cut, and small real images."""

import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from stoker.launch.image.needs import needs
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise.lifeline import die_with

HOST = "127.0.0.1"
PATIENCE_S = 60
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"


def registry_program() -> str:
    """Debian's docker-registry; installed when it is missing and that is allowed."""
    if found := shutil.which("docker-registry"):
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        argv = [
            "apt-get",
            "-o",
            "DPkg::Lock::Timeout=300",
            "install",
            "-y",
            "--no-install-recommends",
            "docker-registry",
        ]
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    found = shutil.which("docker-registry")
    if found is None:
        why = "docker-registry is not installed: run apt-get install docker-registry"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    return found


@dataclass(kw_only=True)
class Served:
    """A registry that listens, and what it wrote down."""

    port: int
    log: Path

    @property
    def name(self) -> str:
        return f"{HOST}:{self.port}"

    def requests(self) -> list[tuple[str, str, int]]:
        """Method, path and status of every request so far, from its access log."""
        found = []
        for line in self.log.read_text().splitlines():
            if '] "' in line and " HTTP/1." in line:
                request, _, rest = line.partition('] "')[2].partition('" ')
                method, path, _ = request.split(" ")
                found.append((method, path, int(rest.split()[0])))
        return found

    def writes(self) -> list[tuple[str, str, int]]:
        return [one for one in self.requests() if one[0] in ("PUT", "PATCH", "POST")]


@contextmanager
def serve(folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[Served]:
    program, port = registry_program(), free_port()
    config = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}, "delete": {"enabled": True}},
        "http": {"addr": f"{HOST}:{port}"},
    } | ({"auth": auth} if auth else {})
    (folder / "config.yml").write_text(json.dumps(config))
    log, tests = folder / "log", os.getpid()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")],
            stdout=output, stderr=output, preexec_fn=lambda: die_with(tests),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(requests.ConnectionError):
                requests.get(f"http://{HOST}:{port}/v2/", timeout=5)
                break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "docker-registry does not answer"
            time.sleep(0.02)
        yield Served(port=port, log=log)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="session")
def serving() -> Callable[..., Any]:
    """(folder, how it is locked) -> a registry of its own, as a context."""
    return serve


@pytest.fixture(scope="session")
def unused_port() -> Callable[[], int]:
    return free_port


@pytest.fixture
def repository(registry: Served) -> str:
    """A name that nobody has pushed to."""
    return f"{registry.name}/team/app-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials and no cache of the user's."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))


class Wire:
    """A port that leads to another, and can break off."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server((HOST, 0))
        self._open: set[socket.socket] = set()
        self.sent = 0
        self.refuse = 0
        """So many of the next connections are cut before anything has passed."""
        self.cut_at: list[int] = []
        """When so many bytes have gone up in all, the connection is cut, once each."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def name(self) -> str:
        return f"{HOST}:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        for one in list(self._open):
            _end(one)

    def close(self) -> None:
        self.cut()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if self.refuse:
                    self.refuse -= 1
                    client.recv(1)
                    _end(client)
                    continue
                there = socket.create_connection((HOST, self._to))
                self._open |= {client, there}
                for one, other, counts in ((client, there, True), (there, client, False)):
                    threading.Thread(target=self._carry, args=(one, other, counts), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
                self.sent += len(data) * counts
                if counts and self.cut_at and self.sent >= self.cut_at[0]:
                    self.cut_at.pop(0)
                    break
        for each in (one, other):
            self._open.discard(each)
            _end(each)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.fixture
def wire(registry: Served) -> Iterator[Wire]:
    made = Wire(registry.port)
    yield made
    made.close()


Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """(what a request of this method, path and headers gets) -> the host that answers so, with TLS if it is given."""
    servers = []

    def start(answer: Callable[[str, str, Mapping[str, str]], Answer], tls: ssl.SSLContext | None = None) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, body = answer(self.command, self.path, dict(self.headers))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = answer

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"{HOST}:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def lying(registry: Served, answering: Callable[..., str]) -> Callable[[str, str], str]:
    """(image, another) -> the image at a host that gives the other's last layer for its own."""

    def start(name: str, other: str) -> str:
        true, false = (_manifest(registry, one)["layers"][-1]["digest"] for one in (name, other))

        def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
            if path.endswith(true):
                there = f"http://{registry.name}/v2/{_repository(other)}/blobs/{false}"
                # more than one reads who stops at the end of the tar
                return 200, {}, requests.get(there, timeout=10).content + gzip.compress(bytes(3 << 20))
            got = requests.request(method, f"http://{registry.name}{path}", headers=dict(headers), timeout=10)
            return got.status_code, {"Content-Type": got.headers["Content-Type"]}, got.content

        return name.replace(registry.name, answering(answer))

    return start


def _manifest(registry: Served, name: str) -> dict[str, Any]:
    url = f"http://{registry.name}/v2/{_repository(name)}/manifests/1"
    found: dict[str, Any] = requests.get(url, headers={"Accept": OCI_MANIFEST}, timeout=10).json()
    return found


def _repository(name: str) -> str:
    return name.partition("/")[2].rpartition(":")[0]


Files = Mapping[str, str | bytes | tuple[str, str]]
"""Path -> content, or ("link", target)."""


def layer_of(files: Files) -> bytes:
    """A gzipped tar, written with nothing of ours."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = tarfile.SYMTYPE, content[1]
                tar.addfile(info)
            else:
                data = content.encode() if isinstance(content, str) else content
                info.size, info.mode = len(data), 0o755
                tar.addfile(info, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), 1, mtime=0)


OS_LAYER: Files = {
    "bin": ("link", "usr/bin"),
    "lib": ("link", "usr/lib"),
    "usr/lib/x86_64-linux-gnu/libc.so.6": b"\x7fELF GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n",
}
PYTHON_LAYER: Files = {
    "usr/bin/python3": ("link", "python3.11"),
    "usr/bin/python3.11": b"\x7fELF",
    "usr/lib/python3.11/os.py": "",
}
SITE = "usr/local/lib/python3.11/dist-packages"


def packages(*, without: tuple[str, ...] = (), torch: str | None = "2.11.0+cpu", spec: AnySpec | None = None) -> Files:
    """What Stoker needs, as installed packages in versions that will do."""
    found = {need.name: "99.0" for need in needs(spec or ScriptSpec(script="x.py")) if need.name not in without}
    found |= {"kr8s": "0.20.15"} if "kr8s" in found else {}
    found |= {"torch": torch} if torch else {}
    return {f"{SITE}/{name}-{version}.dist-info/METADATA": "" for name, version in found.items()}


@pytest.fixture
def parts() -> SimpleNamespace:
    """Layers that images are made of."""
    return SimpleNamespace(os=OS_LAYER, python=PYTHON_LAYER, packages=packages, site=SITE)


Make = Callable[..., str]


def push_image(
    registry: Served,
    layers: list[bytes],
    *,
    repository: str,
    machine: str = "amd64",
    config: Mapping[str, Any] | None = None,
) -> str:
    """With plain requests; gives its name."""
    base = f"http://{registry.name}/v2/{repository}"
    described = {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], **(config or {})},
        "rootfs": {"type": "layers", "diff_ids": [_digest(gzip.decompress(layer)) for layer in layers]},
    }
    blobs = [*layers, json.dumps(described).encode()]
    for blob in blobs:
        begun = requests.post(f"{base}/blobs/uploads/", timeout=10)
        place = begun.headers["Location"]
        joined = f"{place}{'&' if '?' in place else '?'}digest={_digest(blob)}"
        requests.put(joined, data=blob, timeout=30).raise_for_status()
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": _digest(blobs[-1]), "size": len(blobs[-1])},
        "layers": [{"mediaType": OCI_LAYER, "digest": _digest(one), "size": len(one)} for one in layers],
    }
    answer = requests.put(
        f"{base}/manifests/1", data=json.dumps(manifest), headers={"Content-Type": OCI_MANIFEST}, timeout=10
    )
    answer.raise_for_status()
    return f"{registry.name}/{repository}:1"


@pytest.fixture
def pushing() -> Make:
    """(registry, layers, repository=…) -> the image's name."""
    return push_image


@pytest.fixture
def image(registry: Served) -> Make:
    """Push a base image of these layers."""

    def make(*layers: Files, **more: Any) -> str:
        name = f"bases/{uuid.uuid4().hex[:8]}"
        return push_image(registry, [layer_of(files) for files in layers], repository=name, **more)

    return make


@pytest.fixture
def base(image: Make) -> str:
    """A base that lacks nothing."""
    return image(OS_LAYER, PYTHON_LAYER, packages())


@pytest.fixture
def script(tmp_path: Path) -> ScriptSpec:
    """A folder of code, and a run of it."""
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("import lib.model\nprint('hello')\n")
    (folder / "lib" / "model.py").write_text("layers = 2\n")
    return ScriptSpec(script=str(folder / "train.py"))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
