"""The image of a run: its base, what the base lacks, Stoker and the user's code; pushed where it is not there yet."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stoker
from stoker.launch.image import upload
from stoker.launch.image.base import Base, Progress, probe
from stoker.launch.image.code import WORKDIR, Code, collect
from stoker.launch.image.layer import Entry, Layer, write_layer
from stoker.launch.image.needs import check_etcd, check_torch, needs
from stoker.launch.image.pull import Image, normal_platform, pull
from stoker.launch.image.reference import Reference, parse, parse_repository
from stoker.launch.image.registry import DOCKER_MANIFEST, OCI_MANIFEST, Registry
from stoker.launch.image.wheels import LIBRARY, package_layer
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
    found: Base
    packages: tuple[str, ...]
    """Name and version of what the base lacked."""
    layers: tuple[Layer, ...]
    """Those on top of the base's."""
    code: Code
    manifest: bytes
    kind: str
    config: bytes
    config_digest: str
    tag: str
    """Of the content alone: the same code on the same base has the same tag everywhere."""
    platform: str

    @property
    def digest(self) -> str:
        return _digest(self.manifest)

    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in json.loads(self.config)["config"]["Env"])


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRef:
    """An image in a registry."""

    reference: Reference
    """With tag and digest."""
    sent: int
    """Bytes that had to be sent; 0 when it was there."""
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
    progress: Progress = lambda *_: None,
) -> ImageRef:
    """The run's image, in `repository`: found there when the same was pushed before, else built and pushed."""
    with build(spec, base=base, platform=platform, workspace=workspace, progress=progress) as built:
        return push(built, repository, progress=progress)


@contextmanager
def build(
    spec: AnySpec,
    *,
    base: str,
    platform: str = PLATFORM,
    workspace: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Iterator[Built]:
    """The layers lie in a folder that is gone afterwards."""
    reference, platform = parse(base), normal_platform(platform)
    wanted = needs(spec)
    with ExitStack() as stack:
        registry = stack.enter_context(closing(Registry(reference)))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stoker-image-")))
        image = pull(registry, reference, platform)
        code = collect(spec, workspace=workspace, workdir=_workdir(image) if workspace else WORKDIR)
        found = probe(registry, image, wanted, progress=progress)
        check_torch(spec, found, reference)
        check_etcd(spec, found, reference)
        packages = package_layer(found, wanted, platform, progress=progress)
        own = write_layer([*_stoker(), *code.entries], scratch / "code.tar.gz")
        layers = (*([packages[0]] if packages else []), own)
        yield _assembled(image, found, layers, tuple(packages[1] if packages else ()), code, platform)


def push(built: Built, repository: str, *, progress: Progress = lambda *_: None) -> ImageRef:
    """Blobs first, the manifest last: a tag never points to half an image."""
    target = parse_repository(repository)
    with closing(Registry(target)) as registry:
        there = registry.digest(target.repository, built.tag)
        if there:
            return ImageRef(reference=target.at(tag=built.tag, digest=there), sent=0, code=built.code)
        sent = _send_blobs(built, registry, target, progress)
        registry.put_manifest(target.repository, built.tag, built.manifest, built.kind)
    return ImageRef(reference=target.at(tag=built.tag, digest=built.digest), sent=sent, code=built.code)


def _send_blobs(built: Built, registry: Registry, target: Reference, progress: Progress) -> int:
    source = built.base.reference
    here = source.registry == target.registry
    total = sum(layer.size for layer in built.base.layers) + sum(layer.size for layer in built.layers)
    done = sent = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        progress("push", done, total)

    with closing(Registry(source)) as origin:
        for layer in built.base.layers:
            blob = upload.of_registry(origin, source.repository, layer.digest, layer.size)
            from_there = source.repository if here else None
            sent += layer.size * upload.send(registry, target.repository, blob, mount_from=from_there, progress=tell)
    for own in built.layers:
        blob = upload.of_file(own.path, own.digest)
        sent += own.size * upload.send(registry, target.repository, blob, progress=tell)
    config = upload.of_bytes(built.config, built.config_digest)
    return sent + len(built.config) * upload.send(registry, target.repository, config)


def _assembled(
    image: Image, found: Base, layers: tuple[Layer, ...], packages: tuple[str, ...], code: Code, platform: str
) -> Built:
    config = json.dumps(_config(image, layers, code), sort_keys=True, separators=(",", ":")).encode()
    kind = image.manifest.kind
    document = {**image.document, "mediaType": kind}
    document["config"] = {**image.document["config"], "digest": _digest(config), "size": len(config)}
    document["layers"] = [
        *image.document["layers"],
        *({"mediaType": LAYER_KINDS[kind], "digest": one.digest, "size": one.size} for one in layers),
    ]
    content = [image.manifest.digest, platform, code.workdir, *(layer.diff_id for layer in layers)]
    return Built(
        base=image,
        found=found,
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
    """The base's, with our layers, and a Python that finds Stoker. No clock: the same build gives the same bytes."""
    config = json.loads(json.dumps(image.config))
    inner = config.setdefault("config", {}) or {}
    environment = image.environment()
    before = [word for word in environment.get("PYTHONPATH", "").split(":") if word and word != LIBRARY]
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


def _stoker() -> Iterator[Entry]:
    """This very Stoker: what the laptop runs is what the pod runs."""
    folder, root = Path(stoker.__file__).parent, f"{LIBRARY.lstrip('/')}/stoker"
    yield Entry(name=LIBRARY.lstrip("/"))
    yield Entry(name=root)
    for path in folder.rglob("*"):
        within = path.relative_to(folder)
        if "__pycache__" not in within.parts:
            yield Entry(name=f"{root}/{within.as_posix()}", source=None if path.is_dir() else path)


def _workdir(image: Image) -> str:
    said = (image.config.get("config") or {}).get("WorkingDir") or ""
    return said.rstrip("/") if said.strip("/") else WORKDIR


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
