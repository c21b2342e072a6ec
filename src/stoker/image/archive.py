"""An image as one file: an OCI archive, which `ctr`, `podman`, `skopeo` and `docker` read."""

import io
import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from stoker.image.base import BuildProgress
from stoker.image.build import Built
from stoker.image.layer import MTIME
from stoker.image.registry import OCI_INDEX, Registry
from stoker.spec.errors import UserError


def write_archive(built: Built, name: str, to: Path, *, progress: BuildProgress) -> None:
    """`name`: the name of the image in it, such as `demo:0123abcd`."""
    try:
        _write(built, name, to, progress)
    except OSError as e:
        raise UserError(f"{to} cannot be written: {e.strerror}", remedy="Name another file: -o FILE") from e


def _write(built: Built, name: str, to: Path, progress: BuildProgress) -> None:
    partial = to.with_name(f"{to.name}.partial")
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": built.tag}
    system, machine, *_ = built.platform.split("/")
    descriptor = {
        "mediaType": built.kind,
        "digest": built.digest,
        "size": len(built.manifest),
        "annotations": annotations,
        "platform": {"os": system, "architecture": machine},
    }
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [descriptor]}
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
            _add(tar, "index.json", json.dumps(index).encode())
            _add(tar, _blob_path(built.digest), built.manifest)
            _add(tar, _blob_path(built.config_digest), built.config)
            for layer in built.layers:
                with open(layer.path, "rb") as file:
                    _add_file(tar, _blob_path(layer.digest), layer.size, file)
            _add_base_layers(tar, built, partial.with_name(f"{partial.name}.layer"), progress)
        partial.replace(to)
    finally:
        partial.unlink(missing_ok=True)


def _add_base_layers(tar: tarfile.TarFile, built: Built, scratch: Path, progress: BuildProgress) -> None:
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
                    _add_file(tar, _blob_path(layer.digest), layer.size, file)
    finally:
        scratch.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    _add_file(tar, name, len(content), io.BytesIO(content))


def _add_file(tar: tarfile.TarFile, name: str, size: int, file: BinaryIO) -> None:
    if name in tar.getnames():  # an image may contain the same layer twice
        return
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, MTIME
    tar.addfile(info, file)


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
