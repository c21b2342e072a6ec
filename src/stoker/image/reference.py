"""Image names, parsed by the rules that all container tools share."""

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Self

from stoker.spec.errors import UserError

DEFAULT_REGISTRY = "docker.io"  # of a name without a host
API_HOSTS = {DEFAULT_REGISTRY: "registry-1.docker.io"}
PLAIN = "http://"

PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
REPOSITORY = re.compile(rf"{PART}(?:/{PART})*")
HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
EXAMPLE = "Write it as REGISTRY/REPOSITORY:TAG, such as registry.example.com/team/trainer:1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    registry: str
    """Host, with a port if there is one."""
    repository: str
    tag: str | None = None
    digest: str | None = None
    plain: bool = False
    """Without TLS: written with http://, or on this machine."""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"

    @property
    def name(self) -> str:
        return f"{self.registry}/{self.repository}"

    @property
    def version(self) -> str:
        """What is requested from the registry: the digest if there is one, since a tag can move."""
        return self.digest or self.tag or "latest"

    @property
    def url(self) -> str:
        scheme = "http" if self.plain else "https"
        return f"{scheme}://{API_HOSTS.get(self.registry, self.registry)}"

    def at(self, *, tag: str | None = None, digest: str | None = None) -> Self:
        return replace(self, tag=tag, digest=digest)


def parse(text: str) -> Reference:
    """`python:3.12`, `registry.example.com/team/app@sha256:…`; `http://` before it means a registry without TLS."""
    plain = text.startswith(PLAIN)
    rest, at, digest = without_scheme(text).partition("@")
    rest, tag = _tag(rest)
    registry, repository = _registry(rest)
    if at and not DIGEST.fullmatch(digest):
        raise UserError(
            f"image {text}: {digest or 'nothing'} is not a digest", remedy="Write sha256: and 64 hex digits"
        )
    if tag is not None and not TAG.fullmatch(tag):
        raise UserError(f"image {text}: '{tag}' is not a tag", remedy=EXAMPLE)
    if not HOST.fullmatch(registry):
        raise UserError(f"image {text}: '{registry}' is not a registry host", remedy=EXAMPLE)
    if not REPOSITORY.fullmatch(repository):
        lower = " in lower case" if REPOSITORY.fullmatch(repository.lower()) else ""
        raise UserError(f"image {text}: '{repository}' is not a repository name", remedy=EXAMPLE + lower)
    return Reference(
        registry=registry,
        repository=repository,
        tag=tag if tag or at else "latest",
        digest=digest or None,
        plain=plain or _is_here(registry),
    )


def parse_repository(text: str) -> Reference:
    """The repository that an image is pushed to; the tag is derived from its content."""
    reference = parse(text)
    if "@" in text or reference.tag != "latest" or text.endswith(":latest"):
        plain = PLAIN if text.startswith(PLAIN) else ""
        raise UserError(
            f"{text} names a tag, and the tag is derived from the content", remedy=f"Write {plain}{reference.name}"
        )
    return reference


def without_scheme(text: str) -> str:
    """The name for a cluster, without http://: nodes have their own settings for that."""
    return text.removeprefix(PLAIN).removeprefix("https://")


def _tag(text: str) -> tuple[str, str | None]:
    """A colon in the last part starts a tag; one before it, a port."""
    head, slash, last = text.rpartition("/")
    name, colon, tag = last.partition(":")
    return head + slash + name, tag if colon else None


def _registry(text: str) -> tuple[str, str]:
    first, slash, rest = text.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest if first != DEFAULT_REGISTRY or "/" in rest else f"library/{rest}"
    return DEFAULT_REGISTRY, text if slash else f"library/{text}"


def _is_here(registry: str) -> bool:
    host = registry.rpartition(":")[0] if re.search(r":[0-9]+$", registry) else registry
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
