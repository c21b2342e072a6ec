"""Writes container images to a folder, and pushes them to the lab's registry."""

import gzip
import hashlib
import http.client
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write(folder: Path, layer: BinaryIO, **config: Any) -> None:
    """Write an image with one layer (a tar stream). `config` has Entrypoint, Cmd, User."""
    image_config = {"architecture": "amd64", "os": "linux", "config": {"Env": [PATH], **config}}
    rootfs = {"type": "layers", "diff_ids": [_compress(layer, folder / "layer-0")]}
    _write_manifest(folder, image_config | {"rootfs": rootfs})


def extend(folder: Path, base: Path, layer: BinaryIO) -> None:
    """Write the image in `base` with one more layer."""
    image_config = json.loads((base / "config").read_text())
    diff_ids = image_config["rootfs"]["diff_ids"]
    for number in range(len(diff_ids)):
        (folder / f"layer-{number}").symlink_to(base / f"layer-{number}")
    diff_ids.append(_compress(layer, folder / f"layer-{len(diff_ids)}"))
    _write_manifest(folder, image_config)


def layer(files: Mapping[str, Path | str]) -> BinaryIO:
    """A tar stream, in memory, of programs (a Path) and symbolic links (a string, the target)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, source in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if isinstance(source, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, source
                tar.addfile(entry)
            else:
                entry.size = source.stat().st_size
                with open(source, "rb") as content:
                    tar.addfile(entry, content)
    packed.seek(0)
    return packed


def push(folder: Path, name: str) -> None:
    """Push the image as `name` (registry/repository:tag), over plain HTTP: the lab's registry has no TLS."""
    registry, _, rest = name.partition("/")
    repository, _, tag = rest.rpartition(":")
    manifest = json.loads((folder / "manifest").read_text())
    connection = http.client.HTTPConnection(registry, timeout=120)
    try:
        for number, part in enumerate(manifest["layers"]):
            _push_blob(connection, repository, part["digest"], folder / f"layer-{number}")
        _push_blob(connection, repository, manifest["config"]["digest"], folder / "config")
        _request(
            connection,
            "PUT",
            f"/v2/{repository}/manifests/{tag}",
            (folder / "manifest").read_bytes(),
            {"Content-Type": manifest["mediaType"]},
        )
    finally:
        connection.close()


def _compress(layer: BinaryIO, file: Path) -> str:
    """Write the layer with gzip, and return the digest of the uncompressed layer."""
    plain = _Hashing(layer)
    with open(file, "wb") as out, gzip.GzipFile("", "wb", 1, out, mtime=0) as packed:
        shutil.copyfileobj(plain, packed, 1 << 20)
    return f"sha256:{plain.hash.hexdigest()}"


def _write_manifest(folder: Path, image_config: dict[str, Any]) -> None:
    (folder / "config").write_text(json.dumps(image_config))
    kind, layers_count = "application/vnd.oci.image", len(image_config["rootfs"]["diff_ids"])
    layers = [_descriptor(folder / f"layer-{n}", f"{kind}.layer.v1.tar+gzip") for n in range(layers_count)]
    config = _descriptor(folder / "config", f"{kind}.config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
    (folder / "manifest").write_text(json.dumps(manifest))


def _push_blob(connection: http.client.HTTPConnection, repository: str, digest: str, file: Path) -> None:
    location = _request(connection, "POST", f"/v2/{repository}/blobs/uploads/").headers["Location"]
    path = "/" + location.split("://", 1)[-1].split("/", 1)[1]
    with open(file, "rb") as content:
        size = {"Content-Length": str(file.stat().st_size), "Content-Type": "application/octet-stream"}
        _request(connection, "PUT", f"{path}{'&' if '?' in path else '?'}digest={digest}", content, size)


def _request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | BinaryIO | None = None,
    headers: Mapping[str, str] | None = None,
) -> http.client.HTTPResponse:
    connection.request(method, path, body, dict(headers or {}))
    response = connection.getresponse()
    text = response.read()
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}: {response.status} {text.decode(errors='replace')}")
    return response


def _descriptor(file: Path, kind: str) -> dict[str, Any]:
    with open(file, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"mediaType": kind, "size": file.stat().st_size, "digest": f"sha256:{digest}"}


class _Hashing:
    """A stream that hashes the bytes that are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self.stream.read(size)
        self.hash.update(chunk)
        return chunk
