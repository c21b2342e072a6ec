"""The image of a run: its base, missing packages, Stoker and the user's code; pushed unless the registry has it."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stoker
from stoker.image import upload
from stoker.image.base import Base, BuildProgress, probe
from stoker.image.code import WORKDIR, Code, collect
from stoker.image.layer import Layer, LayerEntry, write_layer
from stoker.image.pull import Image, normal_platform, pull
from stoker.image.reference import Reference, parse, parse_repository
from stoker.image.registry import DOCKER_MANIFEST, OCI_MANIFEST, Registry
from stoker.image.requirements import check_etcd, check_torch, needs
from stoker.image.wheels import LIBRARY, package_layer
from stoker.spec.run import AnySpec

PLATFORM = "linux/amd64"
LAYER_KINDS = {
    OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar+gzip",
    DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
TAG_DIGITS = 16
BASE_NAME, BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """An image that is ready to be pushed or written; nothing of it has been sent."""

    base: Image
    contents: Base
    packages: tuple[str, ...]
    """Name and version of the packages that the base did not have."""
    layers: tuple[Layer, ...]
    """On top of those of the base."""
    code: Code
    manifest: bytes
    kind: str
    config: bytes
    config_digest: str
    tag: str
    """From the content only: the same code on the same base has the same tag everywhere."""
    platform: str

    @property
    def digest(self) -> str:
        return _digest(self.manifest)

    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in json.loads(self.config)["config"]["Env"])


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRef:
    """An image in a registry."""

    reference: Reference
    """With tag and digest."""
    sent: int
    """Bytes that had to be sent; 0 if the registry had it."""
    code: Code

    def __str__(self) -> str:
        return str(self.reference)


def ensure_image(
    spec: AnySpec,
    *,
    base: str,
    repository: str,
    platform: str = PLATFORM,
    workspace: Path | None = None,
    progress: BuildProgress = lambda *_: None,
) -> ImageRef:
    """The run's image in `repository`, built and pushed unless the same image was pushed before."""
    with build(spec, base=base, platform=platform, workspace=workspace, progress=progress) as built:
        return push(built, repository, progress=progress)


@contextmanager
def build(
    spec: AnySpec,
    *,
    base: str,
    platform: str = PLATFORM,
    workspace: Path | None = None,
    progress: BuildProgress = lambda *_: None,
) -> Iterator[Built]:
    """The layers are in a folder that is deleted afterwards."""
    reference, platform = parse(base), normal_platform(platform)
    wanted = needs(spec)
    with ExitStack() as stack:
        registry = stack.enter_context(closing(Registry(reference)))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stoker-image-")))
        image = pull(registry, reference, platform)
        code = collect(spec, workspace=workspace, workdir=_workdir(image) if workspace else WORKDIR)
        contents = probe(registry, image, wanted, progress=progress)
        check_torch(spec, contents, reference)
        check_etcd(spec, contents, reference)
        packages = package_layer(contents, wanted, platform, progress=progress)
        own = write_layer([*_stoker(), *code.entries], scratch / "code.tar.gz")
        layers = (*([packages[0]] if packages else []), own)
        yield _assembled(image, contents, layers, tuple(packages[1] if packages else ()), code, platform)


def push(built: Built, repository: str, *, progress: BuildProgress = lambda *_: None) -> ImageRef:
    """Blobs first, the manifest last: a tag never points to an incomplete image."""
    target = parse_repository(repository)
    with closing(Registry(target)) as registry:
        existing = registry.digest(target.repository, built.tag)
        if existing:
            return ImageRef(reference=target.at(tag=built.tag, digest=existing), sent=0, code=built.code)
        sent = _send_blobs(built, registry, target, progress)
        registry.put_manifest(target.repository, built.tag, built.manifest, built.kind)
    return ImageRef(reference=target.at(tag=built.tag, digest=built.digest), sent=sent, code=built.code)


def _send_blobs(built: Built, registry: Registry, target: Reference, progress: BuildProgress) -> int:
    source = built.base.reference
    same_registry = source.registry == target.registry
    total = sum(layer.size for layer in built.base.layers) + sum(layer.size for layer in built.layers)
    done = sent = 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        progress("push", done, total)

    with closing(Registry(source)) as origin:
        for layer in built.base.layers:
            blob = upload.of_registry(origin, source.repository, layer.digest, layer.size)
            mount_from = source.repository if same_registry else None
            sent += layer.size * upload.send(registry, target.repository, blob, mount_from=mount_from, progress=report)
    for own in built.layers:
        blob = upload.of_file(own.path, own.digest)
        sent += own.size * upload.send(registry, target.repository, blob, progress=report)
    config = upload.of_bytes(built.config, built.config_digest)
    return sent + len(built.config) * upload.send(registry, target.repository, config)


def _assembled(
    image: Image, contents: Base, layers: tuple[Layer, ...], packages: tuple[str, ...], code: Code, platform: str
) -> Built:
    config = json.dumps(_config(image, layers, code), sort_keys=True, separators=(",", ":")).encode()
    kind = image.manifest.kind
    document = {**image.document, "mediaType": kind}
    document["config"] = {**image.document["config"], "digest": _digest(config), "size": len(config)}
    document["layers"] = [
        *image.document["layers"],
        *({"mediaType": LAYER_KINDS[kind], "digest": layer.digest, "size": layer.size} for layer in layers),
    ]
    content = [image.manifest.digest, platform, code.workdir, *(layer.diff_id for layer in layers)]
    return Built(
        base=image,
        contents=contents,
        packages=packages,
        layers=layers,
        code=code,
        manifest=json.dumps(document, sort_keys=True, separators=(",", ":")).encode(),
        kind=kind,
        config=config,
        config_digest=_digest(config),
        tag=hashlib.sha256("\n".join(content).encode()).hexdigest()[:TAG_DIGITS],
        platform=platform,
    )


def _config(image: Image, layers: tuple[Layer, ...], code: Code) -> dict[str, Any]:
    """The base's, with our layers and Stoker in PYTHONPATH. No timestamp: the same build gives the same bytes."""
    config = json.loads(json.dumps(image.config))
    inner = config.setdefault("config", {}) or {}
    environment = image.environment()
    before = [path for path in environment.get("PYTHONPATH", "").split(":") if path and path != LIBRARY]
    environment["PYTHONPATH"] = ":".join([LIBRARY, *before])
    inner["Env"] = [f"{name}={value}" for name, value in environment.items()]
    inner["WorkingDir"] = code.workdir
    inner["Labels"] = {
        **(inner.get("Labels") or {}), BASE_NAME: image.reference.name, BASE_DIGEST: image.manifest.digest
    }  # fmt: skip
    config["config"] = inner
    config["rootfs"]["diff_ids"] += [layer.diff_id for layer in layers]
    note = {"created_by": f"stoker {stoker.__version__}"}
    if config.get("history"):  # as many entries as layers, or none
        config["history"] += [note for _ in layers]
    return dict(config)


def _stoker() -> Iterator[LayerEntry]:
    """The Stoker of this machine, so that pods run the same version."""
    folder, root = Path(stoker.__file__).parent, f"{LIBRARY.lstrip('/')}/stoker"
    yield LayerEntry(name=LIBRARY.lstrip("/"))
    yield LayerEntry(name=root)
    for path in folder.rglob("*"):
        within = path.relative_to(folder)
        if "__pycache__" not in within.parts:
            yield LayerEntry(name=f"{root}/{within.as_posix()}", source=None if path.is_dir() else path)


def _workdir(image: Image) -> str:
    workdir = (image.config.get("config") or {}).get("WorkingDir") or ""
    return workdir.rstrip("/") if workdir.strip("/") else WORKDIR


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
