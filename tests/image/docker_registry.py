"""Runs Debian's docker-registry."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.server import HOST, served


@dataclass(kw_only=True)
class Served:
    """A running registry, and its log."""

    port: int
    log: Path

    @property
    def name(self) -> str:
        return f"{HOST}:{self.port}"

    def requests(self) -> list[tuple[str, str, int]]:
        """Method, path and status of every request so far, from its access log."""
        requests = []
        for line in self.log.read_text().splitlines():
            if '] "' in line and " HTTP/1." in line:
                request, _, rest = line.partition('] "')[2].partition('" ')
                method, path, _ = request.split(" ")
                requests.append((method, path, int(rest.split()[0])))
        return requests

    def writes(self) -> list[tuple[str, str, int]]:
        return [request for request in self.requests() if request[0] in ("PUT", "PATCH", "POST")]


@contextmanager
def serve(folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[Served]:
    program, port, log = registry_program(), free_port(HOST), folder / "log"
    config = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}, "delete": {"enabled": True}},
        "http": {"addr": f"{HOST}:{port}"},
    } | ({"auth": auth} if auth else {})
    (folder / "config.yml").write_text(json.dumps(config))
    with served([program, "serve", str(folder / "config.yml")], f"http://{HOST}:{port}/v2/", log=log):
        yield Served(port=port, log=log)


def registry_program() -> str:
    """Installs it if it is missing and that is allowed."""
    if program := shutil.which("docker-registry"):
        return program
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
    program = shutil.which("docker-registry")
    if program is None:
        why = "docker-registry is not installed: run apt-get install docker-registry"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return program
