"""An image as its registry describes it, for one platform: manifest, config, layers."""

import json
from dataclasses import dataclass
from typing import Any

from stoker.launch.image.reference import Reference
from stoker.launch.image.registry import INDEXES, MANIFESTS, Manifest, Registry
from stoker.spec.errors import UserError

OTHER_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A blob, as a manifest names it."""

    digest: str
    size: int
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    reference: Reference
    manifest: Manifest
    document: dict[str, Any]
    config: dict[str, Any]
    layers: tuple[Described, ...]
    """The lowest first."""

    def environment(self) -> dict[str, str]:
        words = (self.config.get("config") or {}).get("Env") or []
        return dict(word.split("=", 1) for word in words if "=" in word)


def normal_platform(text: str) -> str:
    """`linux/x86_64` and `amd64` are both linux/amd64."""
    words = text.split("/")
    system, machine, *variant = words if len(words) > 1 else ["linux", *words]
    machine = OTHER_NAMES.get(machine, machine)
    if system != "linux" or not machine:
        raise UserError(f"'{text}' is no platform of a container", remedy="Write linux/amd64 or linux/arm64")
    return "/".join(["linux", machine, *([] if machine == "arm64" else variant)])


def pull(registry: Registry, reference: Reference, platform: str) -> Image:
    """Its description: kilobytes. The layers stay where they are."""
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
            f"image {reference} is of a kind that is not known here: {manifest.kind or 'none'}",
            remedy="Push it again with a newer tool",
        )
    document = manifest.document()
    config = json.loads(registry.blob(reference.repository, document["config"]["digest"]))
    there = normal_platform(f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}")
    if there != "/".join(platform.split("/")[:2]):
        raise _other_platform(reference, [there], platform)
    layers = tuple(
        Described(digest=one["digest"], size=one["size"], kind=one["mediaType"]) for one in document["layers"]
    )
    return Image(reference=reference, manifest=manifest, document=document, config=config, layers=layers)


def _chosen(registry: Registry, reference: Reference, index: Manifest, platform: str) -> Manifest:
    there: dict[str, str] = {}
    for one in index.document().get("manifests", []):
        said = one.get("platform") or {}
        if said.get("os") == "linux":
            name = normal_platform("/".join(filter(None, ["linux", said.get("architecture"), said.get("variant")])))
            there.setdefault(name, one["digest"])
    if platform not in there:
        raise _other_platform(reference, sorted(there), platform)
    found = registry.manifest(reference.repository, there[platform])
    if found is None:
        raise UserError(f"image {reference} is incomplete for {platform}", remedy="Push it again")
    return found


def _other_platform(reference: Reference, there: list[str], platform: str) -> UserError:
    return UserError(
        f"image {reference} is for {', '.join(there) or 'no known platform'}, and {platform} is asked for",
        remedy=f"Choose a base for {platform}" + (f", or ask for --platform {there[0]}" if there else ""),
    )
