"""Reads an image for one platform from its registry: manifest, config, layers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stoker.image.reference import DIGEST, Reference
from stoker.image.registry import INDEXES, MANIFESTS, ImageManifest, Registry
from stoker.spec.errors import UserError

OTHER_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """A blob, as a manifest names it."""

    digest: str
    size: int
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    reference: Reference
    manifest: ImageManifest
    document: dict[str, Any]
    config: dict[str, Any]
    layers: tuple[Descriptor, ...]
    """The lowest first."""

    def environment(self) -> dict[str, str]:
        variables = (self.config.get("config") or {}).get("Env") or []
        return dict(variable.split("=", 1) for variable in variables if "=" in variable)


def normal_platform(text: str) -> str:
    """`linux/x86_64` and `amd64` are both linux/amd64."""
    parts = text.split("/")
    system, machine, *variant = parts if len(parts) > 1 else ["linux", *parts]
    machine = OTHER_NAMES.get(machine, machine)
    if system != "linux" or not machine:
        raise UserError(f"'{text}' is not a container platform", remedy="Write linux/amd64 or linux/arm64")
    return "/".join(["linux", machine, *([] if machine == "arm64" else variant)])


def pull(registry: Registry, reference: Reference, platform: str) -> Image:
    """Its manifest and config: kilobytes. The layers are not downloaded."""
    manifest = registry.manifest(reference.repository, reference.version)
    if manifest is None:
        raise UserError(
            f"image {reference} does not exist",
            remedy=f"Check its name and tag, or, if it is private, run: docker login {reference.registry}",
        )
    if manifest.kind in INDEXES:
        manifest = _chosen(registry, reference, manifest, platform)
    if manifest.kind not in MANIFESTS:
        raise UserError(
            f"image {reference} has an unknown media type: {manifest.kind or 'none'}",
            remedy="Push it again with a newer tool",
        )
    with _damage_reported(reference):
        document = manifest.document()
        layers = tuple(map(_descriptor, document["layers"]))
        config = json.loads(registry.blob(reference.repository, _digest(document["config"])))
        if len(config["rootfs"]["diff_ids"]) != len(layers):
            raise ValueError("its config describes other layers")
        actual = normal_platform(f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}")
    if actual != "/".join(platform.split("/")[:2]):
        raise _other_platform(reference, [actual], platform)
    return Image(reference=reference, manifest=manifest, document=document, config=config, layers=layers)


def _chosen(registry: Registry, reference: Reference, index: ImageManifest, platform: str) -> ImageManifest:
    digests: dict[str, str] = {}
    with _damage_reported(reference):
        for entry in index.document().get("manifests", []):
            target = entry.get("platform") or {}
            if target.get("os") == "linux":
                parts = ["linux", target.get("architecture"), target.get("variant")]
                digests.setdefault(normal_platform("/".join(filter(None, parts))), _digest(entry))
    if platform not in digests:
        raise _other_platform(reference, sorted(digests), platform)
    manifest = registry.manifest(reference.repository, digests[platform])
    if manifest is None:
        raise UserError(f"image {reference} is incomplete for {platform}", remedy="Push it again")
    return manifest


def _descriptor(entry: dict[str, Any]) -> Descriptor:
    size = entry["size"]
    if type(size) is not int or size < 0:
        raise ValueError("the size of a layer is not a number of bytes")
    return Descriptor(digest=_digest(entry), size=size, kind=entry["mediaType"])


def _digest(entry: dict[str, Any]) -> str:
    """Checked: it becomes part of URLs and of file names."""
    digest = entry["digest"]
    if not DIGEST.fullmatch(digest):
        raise ValueError("a digest is not a SHA-256")
    return str(digest)


@contextmanager
def _damage_reported(reference: Reference) -> Iterator[None]:
    """What a registry returns may be anything."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UserError(
            f"image {reference} has a damaged manifest or config: {type(e).__name__}: {e}", remedy="Push it again"
        ) from e


def _other_platform(reference: Reference, available: list[str], platform: str) -> UserError:
    return UserError(
        f"image {reference} is for {', '.join(available) or 'no known platform'}, and {platform} is requested",
        remedy=f"Choose a base for {platform}" + (f", or use --platform {available[0]}" if available else ""),
    )
