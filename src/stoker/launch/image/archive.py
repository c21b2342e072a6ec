"""An image as one file: an OCI archive, which `ctr`, `podman`, `skopeo` and `docker` read."""

import io
import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from stoker.launch.image.base import Progress
from stoker.launch.image.build import Built
from stoker.launch.image.layer import WRITTEN
from stoker.launch.image.registry import OCI_INDEX, Registry
from stoker.spec.errors import UserError


def write_archive(built: Built, name: str, to: Path, *, progress: Progress) -> None:
    """`name`: what the image is called in it, such as `demo:0123abcd`."""
    try:
        _write(built, name, to, progress)
    except OSError as e:
        raise UserError(f"{to} cannot be written: {e.strerror}", remedy="Name a file elsewhere: -o FILE") from e


def _write(built: Built, name: str, to: Path, progress: Progress) -> None:
    half = to.with_name(f"{to.name}.half")
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": built.tag}
    system, machine, *_ = built.platform.split("/")
    described = {
        "mediaType": built.kind,
        "digest": built.digest,
        "size": len(built.manifest),
        "annotations": annotations,
        "platform": {"os": system, "architecture": machine},
    }
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [described]}
    try:
        with tarfile.open(half, "w", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
            _add(tar, "index.json", json.dumps(index).encode())
            _add(tar, _place(built.digest), built.manifest)
            _add(tar, _place(built.config_digest), built.config)
            for layer in built.layers:
                with open(layer.path, "rb") as file:
                    _put(tar, _place(layer.digest), layer.size, file)
            _base_layers(tar, built, half.with_name(f"{half.name}.layer"), progress)
        half.replace(to)
    finally:
        half.unlink(missing_ok=True)


def _base_layers(tar: tarfile.TarFile, built: Built, scratch: Path, progress: Progress) -> None:
    total, done = sum(layer.size for layer in built.base.layers), 0
    source = built.base.reference
    try:
        with closing(Registry(source)) as registry:
            for layer in built.base.layers:
                with open(scratch, "wb") as file:
                    for part in registry.parts(source.repository, layer.digest):
                        done += file.write(part)
                        progress("pull", done, total)
                with open(scratch, "rb") as file:
                    _put(tar, _place(layer.digest), layer.size, file)
    finally:
        scratch.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    _put(tar, name, len(content), io.BytesIO(content))


def _put(tar: tarfile.TarFile, name: str, size: int, file: BinaryIO) -> None:
    if name in tar.getnames():  # an image may hold the same layer twice
        return
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, WRITTEN
    tar.addfile(info, file)


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
