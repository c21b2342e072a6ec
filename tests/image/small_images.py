"""Small images, built and pushed without Stoker's code."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

import requests

from stoker.image.requirements import needs
from stoker.spec.run import AnySpec, ScriptSpec
from tests.image.docker_registry import Served

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"

Files = Mapping[str, str | bytes | tuple[str, str]]
"""Path -> content, or ("link", target)."""


def layer_of(files: Files) -> bytes:
    """A gzipped tar, written without Stoker's code."""
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
    """The packages that Stoker needs, in versions that fit."""
    versions = {need.name: "99.0" for need in needs(spec or ScriptSpec(script="x.py")) if need.name not in without}
    versions |= {"torch": torch} if torch else {}
    return {f"{SITE}/{name.replace('-', '_')}-{version}.dist-info/METADATA": "" for name, version in versions.items()}


def push_image(
    registry: Served,
    layers: list[bytes],
    *,
    repository: str,
    machine: str = "amd64",
    config: Mapping[str, Any] | None = None,
) -> str:
    """Pushes it with plain requests, and returns its name."""
    base = f"http://{registry.name}/v2/{repository}"
    config_document = {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], **(config or {})},
        "rootfs": {"type": "layers", "diff_ids": [_digest(gzip.decompress(layer)) for layer in layers]},
    }
    blobs = [*layers, json.dumps(config_document).encode()]
    for blob in blobs:
        started = requests.post(f"{base}/blobs/uploads/", timeout=60)
        location = started.headers["Location"]
        url = f"{location}{'&' if '?' in location else '?'}digest={_digest(blob)}"
        requests.put(url, data=blob, timeout=30).raise_for_status()
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": _digest(blobs[-1]), "size": len(blobs[-1])},
        "layers": [{"mediaType": OCI_LAYER, "digest": _digest(layer), "size": len(layer)} for layer in layers],
    }
    answer = requests.put(
        f"{base}/manifests/1", data=json.dumps(manifest), headers={"Content-Type": OCI_MANIFEST}, timeout=60
    )
    answer.raise_for_status()
    return f"{registry.name}/{repository}:1"


def manifest_of(registry: Served, name: str) -> dict[str, Any]:
    url = f"http://{registry.name}/v2/{repository_of(name)}/manifests/1"
    manifest: dict[str, Any] = requests.get(url, headers={"Accept": OCI_MANIFEST}, timeout=60).json()
    return manifest


def repository_of(name: str) -> str:
    return name.partition("/")[2].rpartition(":")[0]


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
