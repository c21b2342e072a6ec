"""Images: written into a folder, pushed from there to the lab's registry."""

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
    """The layer (a tar stream) and its papers. `config` is what a container starts with: Entrypoint, Cmd, User."""
    papers = {"architecture": "amd64", "os": "linux", "config": {"Env": [PATH], **config}}
    _write_papers(folder, papers | {"rootfs": {"type": "layers", "diff_ids": [_pack(layer, folder / "layer-0")]}})


def extend(folder: Path, base: Path, layer: BinaryIO) -> None:
    """The image in `base` with one layer more."""
    papers = json.loads((base / "config").read_text())
    there = papers["rootfs"]["diff_ids"]
    for number in range(len(there)):
        (folder / f"layer-{number}").symlink_to(base / f"layer-{number}")
    there.append(_pack(layer, folder / f"layer-{len(there)}"))
    _write_papers(folder, papers)


def layer(files: Mapping[str, Path | str]) -> BinaryIO:
    """A tar of programs (a file's path) and links (where they lead), in memory."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, what in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if isinstance(what, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, what
                tar.addfile(entry)
            else:
                entry.size = what.stat().st_size
                with open(what, "rb") as content:
                    tar.addfile(entry, content)
    packed.seek(0)
    return packed


def push(folder: Path, name: str) -> None:
    """`name` is registry/repository:tag, over plain HTTP: the lab's registry has no other."""
    registry, _, rest = name.partition("/")
    repository, _, tag = rest.rpartition(":")
    manifest = json.loads((folder / "manifest").read_text())
    connection = http.client.HTTPConnection(registry, timeout=120)
    try:
        for number, part in enumerate(manifest["layers"]):
            _push_blob(connection, repository, part["digest"], folder / f"layer-{number}")
        _push_blob(connection, repository, manifest["config"]["digest"], folder / "config")
        _ask(
            connection,
            "PUT",
            f"/v2/{repository}/manifests/{tag}",
            (folder / "manifest").read_bytes(),
            {"Content-Type": manifest["mediaType"]},
        )
    finally:
        connection.close()


def _pack(layer: BinaryIO, file: Path) -> str:
    """Its digest before it was packed."""
    plain = _Hashing(layer)
    with open(file, "wb") as out, gzip.GzipFile("", "wb", 1, out, mtime=0) as packed:
        shutil.copyfileobj(plain, packed, 1 << 20)
    return f"sha256:{plain.hash.hexdigest()}"


def _write_papers(folder: Path, papers: dict[str, Any]) -> None:
    (folder / "config").write_text(json.dumps(papers))
    kind, number = "application/vnd.oci.image", len(papers["rootfs"]["diff_ids"])
    layers = [_part(folder / f"layer-{one}", f"{kind}.layer.v1.tar+gzip") for one in range(number)]
    config = _part(folder / "config", f"{kind}.config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
    (folder / "manifest").write_text(json.dumps(manifest))


def _push_blob(connection: http.client.HTTPConnection, repository: str, digest: str, file: Path) -> None:
    place = _ask(connection, "POST", f"/v2/{repository}/blobs/uploads/").headers["Location"]
    path = "/" + place.split("://", 1)[-1].split("/", 1)[1]
    with open(file, "rb") as content:
        size = {"Content-Length": str(file.stat().st_size), "Content-Type": "application/octet-stream"}
        _ask(connection, "PUT", f"{path}{'&' if '?' in path else '?'}digest={digest}", content, size)


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | BinaryIO | None = None,
    headers: Mapping[str, str] | None = None,
) -> http.client.HTTPResponse:
    connection.request(method, path, body, dict(headers or {}))
    answer = connection.getresponse()
    said = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {said.decode(errors='replace')}")
    return answer


def _part(file: Path, kind: str) -> dict[str, Any]:
    with open(file, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"mediaType": kind, "size": file.stat().st_size, "digest": f"sha256:{digest}"}


class _Hashing:
    """Reads on, and keeps the hash of what went by."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        found = self.stream.read(size)
        self.hash.update(found)
        return found
