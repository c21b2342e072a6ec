"""What a base image contains: its Python, libc and packages, read from its layers while they are downloaded."""

import json
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stoker.image import cache
from stoker.image.contents import Contents, read_contents
from stoker.image.pull import Descriptor, Image
from stoker.image.registry import Registry
from stoker.spec.errors import UserError

MIN_PYTHON = (3, 11)
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FORMAT = 2
"""Version of the cache: entries of other versions are ignored."""
SMALL_LAYER = 1 << 20  # bytes: read to its end although everything is known, so that it can be cached
MAX_LINKS = 40
OWN_BASES = "or build a base from Stoker's docker/ folder"

BuildProgress = Callable[[str, int, int], None]
"""(step, bytes so far, total bytes)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The properties of an image that decide which wheels fit it."""

    python: str
    """Such as 3.12."""
    libc: str
    """Such as `glibc 2.36`."""
    packages: dict[str, str]
    """Canonical name -> version of the packages that its Python can import."""

    @property
    def torch(self) -> str | None:
        return self.packages.get("torch")

    def has(self, need: Requirement) -> bool:
        version = self.packages.get(canonicalize_name(need.name))
        return version is not None and need.specifier.contains(version, prereleases=True)


def probe(registry: Registry, image: Image, needs: Sequence[Requirement], *, progress: BuildProgress) -> Base:
    """Reads the newest layer first, until Python, libc and all of `needs` are known."""
    merged = _MergedLayers(image.environment())
    total = sum(layer.size for layer in image.layers)
    done = 0
    for layer in reversed(image.layers):
        merged.add(_contents(registry, image, layer, partial(_report, progress, done, total)))
        done += layer.size
        base = merged.base()
        if base and base.libc and (merged.described or ("torch" in base.packages and all(map(base.has, needs)))):
            return _checked(base, image)
    return _checked(merged.base(), image)


def _report(progress: BuildProgress, before: int, total: int, more: int) -> None:
    progress("base", before + more, total)


def _checked(base: Base | None, image: Image) -> Base:
    name = image.reference
    if base is None:
        raise UserError(
            f"image {name} has no Python: python3 is not in its PATH",
            remedy=f"Choose a base with Python {_dotted(MIN_PYTHON)} or newer, {OWN_BASES}",
        )
    if tuple(map(int, base.python.split("."))) < MIN_PYTHON:
        raise UserError(
            f"image {name} has Python {base.python}, and Stoker needs {_dotted(MIN_PYTHON)}",
            remedy=f"Choose a newer base, {OWN_BASES}",
        )
    if not base.libc:
        raise UserError(
            f"image {name} has neither glibc nor musl, so no wheels fit it", remedy=f"Choose another base, {OWN_BASES}"
        )
    return base


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _contents(registry: Registry, image: Image, layer: Descriptor, progress: Callable[[int], None]) -> Contents:
    file = cache.folder("layers") / f"{layer.digest.removeprefix('sha256:')}.json"
    if cached := _read_cached(file):
        return cached
    parts = _counted(registry.parts(image.reference.repository, layer.digest), progress)
    contents = read_contents(parts, f"layer {layer.digest[:19]} of {image.reference}")
    if contents.description and layer.size > SMALL_LAYER:
        return contents  # not cached: without the rest, its digest is not verified
    deque(parts, maxlen=0)
    cache.write(file, json.dumps({"format": FORMAT, **asdict(contents)}).encode())
    return contents


def _read_cached(file: Any) -> Contents | None:
    try:
        values = json.loads(file.read_bytes())
        return Contents(**values) if values.pop("format") == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _counted(parts: Iterator[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    for part in parts:
        done += len(part)
        progress(done)
        yield part


class _MergedLayers:
    """The layers read so far as one file system; upper layers hide lower ones."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._path = environment.get("PATH", STANDARD_PATH).split(":")
        self._python_path = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
        self._contents = Contents()
        self._deleted: set[str] = set()
        self._packages: dict[str, None] = {}

    @property
    def described(self) -> bool:
        return self._contents.description is not None

    def add(self, layer: Contents) -> None:
        contents = self._contents
        contents.programs = {k: v for k, v in layer.programs.items() if not self._hidden(k)} | contents.programs
        contents.links = {k: v for k, v in layer.links.items() if not self._hidden(k)} | contents.links
        contents.homes += [path for path in layer.homes if not self._hidden(path)]
        contents.venvs += [path for path in layer.venvs if not self._hidden(path)]
        contents.libc = contents.libc or layer.libc
        contents.description = contents.description or layer.description
        self._packages |= dict.fromkeys(
            path for path in layer.packages if not self._hidden(f"{path}.dist-info", f"{path}.egg-info")
        )
        self._deleted |= set(layer.deleted)

    def base(self) -> Base | None:
        """As far as it is known; None until Python is found."""
        description = self._contents.description or {}
        python, folders = self._python()
        python = python or description.get("python")
        if python is None:
            return None
        packages: dict[str, str] = {
            canonicalize_name(name): parsed
            for name, version in description.get("packages", {}).items()
            if (parsed := _version_of(version))
        }
        for folder in reversed(folders):  # the first folder in the path has precedence
            packages |= self._packages_in(folder)
        return Base(python=python, libc=self._contents.libc or description.get("libc") or "", packages=packages)

    def _python(self) -> tuple[str | None, list[str]]:
        """The version of the `python3` that the image's PATH finds, and the folders that it imports from."""
        for folder in self._path:
            first = self._real(posixpath.join(folder, "python3"))
            if first not in self._contents.programs:
                continue
            chain = list(self._chain(first))
            homes = [posixpath.dirname(posixpath.dirname(path)) for path in chain]
            version = self._version(chain[-1], homes)
            if version:
                return version, self._folders(version, homes)
        return None, []

    def _chain(self, program: str) -> Iterator[str]:
        for _ in range(MAX_LINKS):
            yield program
            target = self._contents.programs.get(program)
            if target is None:
                return
            program = self._real(posixpath.join("/", posixpath.dirname(program), target))

    def _version(self, program: str, homes: list[str]) -> str | None:
        if match := re.search(r"python(3\.\d+)$", program):
            return match[1]
        for home in homes:
            for path in self._contents.homes:
                if posixpath.dirname(posixpath.dirname(path)) == home:
                    return path.rpartition("python")[2]
        return None

    def _folders(self, version: str, homes: list[str]) -> list[str]:
        if homes[0] in self._contents.venvs:
            homes = homes[:1]
        elif "usr" in homes:
            homes = [*homes, "usr/local"]  # Debian's pip installs there
        folders = [self._real(path) for path in self._python_path]
        for home in dict.fromkeys(homes):
            folders += [f"{home}/{lib}/python{version}/site-packages" for lib in ("lib", "lib64")]
            folders += [f"{home}/lib/python{version}/dist-packages", f"{home}/lib/python3/dist-packages"]
        return folders

    def _packages_in(self, folder: str) -> dict[str, str]:
        packages: dict[str, str] = {}
        for path in self._packages:
            parent, _, package = path.rpartition("/")
            name, dash, version = package.partition("-")
            if parent == folder and dash and (parsed := _version_of(version)):
                packages[canonicalize_name(name)] = parsed
        return packages

    def _real(self, path: str) -> str:
        """Without the leading slash, and through a link at the root such as bin -> usr/bin."""
        first, slash, rest = posixpath.normpath(path).lstrip("/").partition("/")
        return self._contents.links.get(first, first).lstrip("/") + slash + rest

    def _hidden(self, *paths: str) -> bool:
        return any(
            path in self._deleted or any(str(outer) in self._deleted for outer in _parents(path)) for path in paths
        )


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _version_of(text: str) -> str | None:
    """`2.11.0+cu128`, and `6.0-py3.11` of an egg."""
    try:
        return str(Version(text.partition("-py")[0]))
    except InvalidVersion:
        return None
