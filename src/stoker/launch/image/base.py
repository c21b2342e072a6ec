"""What a base image holds: its Python, libc and packages, learnt from its layers as they stream by."""

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

from stoker.launch.image import cache
from stoker.launch.image.contents import Contents, read_contents
from stoker.launch.image.pull import Described, Image
from stoker.launch.image.registry import Registry
from stoker.spec.errors import UserError

LEAST_PYTHON = (3, 11)
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FORMAT = 2
"""Of the cache: what was learnt by other rules is not trusted."""
SMALL = 1 << 20  # bytes of a layer that is read to its end though it has said all
MOST_LINKS = 40
OWN_BASES = "or build a base from Stoker's docker/ folder"

Progress = Callable[[str, int, int], None]
"""(what is done, bytes so far, of how many)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """What decides which wheels fit an image."""

    python: str
    """Such as 3.12."""
    libc: str
    """Such as `glibc 2.36`."""
    packages: dict[str, str]
    """Canonical name -> version of what that Python can import."""

    @property
    def torch(self) -> str | None:
        return self.packages.get("torch")

    def has(self, need: Requirement) -> bool:
        version = self.packages.get(canonicalize_name(need.name))
        return version is not None and need.specifier.contains(version, prereleases=True)


def probe(registry: Registry, image: Image, needs: Sequence[Requirement], *, progress: Progress) -> Base:
    """Newest layer first, and no further than it takes to know Python, libc and all of `needs`."""
    view = _View(image.environment())
    total = sum(layer.size for layer in image.layers)
    done = 0
    for layer in reversed(image.layers):
        view.add(_contents(registry, image, layer, partial(_tell, progress, done, total)))
        done += layer.size
        found = view.base()
        if found and found.libc and (view.described or ("torch" in found.packages and all(map(found.has, needs)))):
            return _checked(found, image)
    return _checked(view.base(), image)


def _tell(progress: Progress, before: int, total: int, more: int) -> None:
    progress("base", before + more, total)


def _checked(found: Base | None, image: Image) -> Base:
    name = image.reference
    if found is None:
        raise UserError(
            f"image {name} has no Python: there is no python3 in its PATH",
            remedy=f"Choose a base with Python {_dotted(LEAST_PYTHON)} or newer, {OWN_BASES}",
        )
    if tuple(map(int, found.python.split("."))) < LEAST_PYTHON:
        raise UserError(
            f"image {name} has Python {found.python}, and Stoker needs {_dotted(LEAST_PYTHON)}",
            remedy=f"Choose a newer base, {OWN_BASES}",
        )
    if not found.libc:
        raise UserError(
            f"image {name} has neither glibc nor musl, so no wheels fit it", remedy=f"Choose another base, {OWN_BASES}"
        )
    return found


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _contents(registry: Registry, image: Image, layer: Described, progress: Callable[[int], None]) -> Contents:
    file = cache.folder("layers") / f"{layer.digest.removeprefix('sha256:')}.json"
    if known := _known(file):
        return known
    parts = _counted(registry.parts(image.reference.repository, layer.digest), progress)
    found = read_contents(parts, f"layer {layer.digest[:19]} of {image.reference}")
    if found.description and layer.size > SMALL:
        return found  # the rest is not read, so nobody knows whether it is the right layer: it is not kept
    deque(parts, maxlen=0)
    cache.write(file, json.dumps({"format": FORMAT, **asdict(found)}).encode())
    return found


def _known(file: Any) -> Contents | None:
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


class _View:
    """The layers seen so far as one file system; newer ones hide what is below."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._path = environment.get("PATH", STANDARD_PATH).split(":")
        self._python_path = [word for word in environment.get("PYTHONPATH", "").split(":") if word]
        self._seen = Contents()
        self._gone: set[str] = set()
        self._packages: dict[str, None] = {}

    @property
    def described(self) -> bool:
        return self._seen.description is not None

    def add(self, layer: Contents) -> None:
        seen = self._seen
        seen.programs = {k: v for k, v in layer.programs.items() if not self._hidden(k)} | seen.programs
        seen.links = {k: v for k, v in layer.links.items() if not self._hidden(k)} | seen.links
        seen.homes += [path for path in layer.homes if not self._hidden(path)]
        seen.venvs += [path for path in layer.venvs if not self._hidden(path)]
        seen.libc = seen.libc or layer.libc
        seen.description = seen.description or layer.description
        self._packages |= dict.fromkeys(
            path for path in layer.packages if not self._hidden(f"{path}.dist-info", f"{path}.egg-info")
        )
        self._gone |= set(layer.gone)

    def base(self) -> Base | None:
        """As far as it is known; None while no Python is."""
        said = self._seen.description or {}
        python, folders = self._python()
        python = python or said.get("python")
        if python is None:
            return None
        packages: dict[str, str] = {
            canonicalize_name(name): known
            for name, version in said.get("packages", {}).items()
            if (known := _version_of(version))
        }
        for folder in reversed(folders):  # what comes first in the path wins
            packages |= self._in(folder)
        return Base(python=python, libc=self._seen.libc or said.get("libc") or "", packages=packages)

    def _python(self) -> tuple[str | None, list[str]]:
        """The version of the `python3` that the image's PATH finds, and the folders that it imports from."""
        for folder in self._path:
            first = self._real(posixpath.join(folder, "python3"))
            if first not in self._seen.programs:
                continue
            chain = list(self._chain(first))
            homes = [posixpath.dirname(posixpath.dirname(one)) for one in chain]
            version = self._version(chain[-1], homes)
            if version:
                return version, self._folders(version, homes)
        return None, []

    def _chain(self, program: str) -> Iterator[str]:
        for _ in range(MOST_LINKS):
            yield program
            target = self._seen.programs.get(program)
            if target is None:
                return
            program = self._real(posixpath.join("/", posixpath.dirname(program), target))

    def _version(self, program: str, homes: list[str]) -> str | None:
        if found := re.search(r"python(3\.\d+)$", program):
            return found[1]
        for home in homes:
            for known in self._seen.homes:
                if posixpath.dirname(posixpath.dirname(known)) == home:
                    return known.rpartition("python")[2]
        return None

    def _folders(self, version: str, homes: list[str]) -> list[str]:
        if homes[0] in self._seen.venvs:
            homes = homes[:1]
        elif "usr" in homes:
            homes = [*homes, "usr/local"]  # Debian's pip installs there
        found = [self._real(word) for word in self._python_path]
        for home in dict.fromkeys(homes):
            found += [f"{home}/{lib}/python{version}/site-packages" for lib in ("lib", "lib64")]
            found += [f"{home}/lib/python{version}/dist-packages", f"{home}/lib/python3/dist-packages"]
        return found

    def _in(self, folder: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in self._packages:
            place, _, word = path.rpartition("/")
            name, dash, version = word.partition("-")
            if place == folder and dash and (known := _version_of(version)):
                found[canonicalize_name(name)] = known
        return found

    def _real(self, path: str) -> str:
        """Without the leading slash, and through a link at the root such as bin -> usr/bin."""
        first, slash, rest = posixpath.normpath(path).lstrip("/").partition("/")
        return self._seen.links.get(first, first).lstrip("/") + slash + rest

    def _hidden(self, *paths: str) -> bool:
        return any(path in self._gone or any(str(outer) in self._gone for outer in _parents(path)) for path in paths)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _version_of(word: str) -> str | None:
    """`2.11.0+cu128`, and `6.0-py3.11` of an egg."""
    try:
        return str(Version(word.partition("-py")[0]))
    except InvalidVersion:
        return None
