"""The packages that a base image is missing, as wheels for its Python and libc: downloaded by pip, put into a layer."""

import email.parser
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from stoker.image import cache
from stoker.image.base import Base, BuildProgress
from stoker.image.layer import Layer, LayerEntry, write_layer
from stoker.image.requirements import applies
from stoker.spec.errors import UserError

LIBRARY = "/opt/stoker"
"""First in the image's PYTHONPATH: Stoker, and packages that the base does not have or has in an old version."""
MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le", "s390x": "s390x"}
OLDEST_GLIBC = 5  # 2.5: manylinux1
MAX_ROUNDS = 20
PIP_TIMEOUT_S = 1800


def missing_packages(base: Base, needs: Sequence[Requirement]) -> list[Requirement]:
    return [need for need in needs if not base.has(need)]


def package_layer(
    base: Base, needs: Sequence[Requirement], platform: str, *, progress: BuildProgress
) -> tuple[Layer, list[str]] | None:
    """The layer, and the names and versions in it; None if the base has all. It is cached."""
    missing = missing_packages(base, needs)
    if not missing:
        return None
    wanted = {need.name: _installed_version(need) for need in missing}
    inputs = [platform, base.python, base.libc, sorted(base.packages.items()), sorted(wanted.items())]
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    cached, description = cache.folder("packages") / f"{key}.tar.gz", cache.folder("packages") / f"{key}.json"
    if not description.is_file() or not cached.is_file():
        with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
            wheels = _closure(base, missing, platform, Path(scratch), progress)
            layer = write_layer(_entries(wheels), Path(scratch) / "layer")
            layer.path.replace(cached)
            names = [wheel.name for wheel in wheels]
            values = {"size": layer.size, "digest": layer.digest, "diff_id": layer.diff_id, "wheels": names}
            cache.write(description, json.dumps(values).encode())
    known = json.loads(description.read_bytes())
    layer = Layer(path=cached, size=known["size"], digest=known["digest"], diff_id=known["diff_id"])
    return layer, ["{} {}".format(*name.split("-")[:2]) for name in known["wheels"]]


def _closure(
    base: Base, missing: list[Requirement], platform: str, scratch: Path, progress: BuildProgress
) -> list[Path]:
    """Downloads missing packages, then their missing dependencies."""
    environment = {
        "python_version": base.python, "python_full_version": f"{base.python}.0", "sys_platform": "linux",
        "platform_system": "Linux", "platform_machine": _machine(platform), "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    }  # fmt: skip
    fetched: dict[str, Path] = {}
    wanted: dict[str, Requirement] = {canonicalize_name(need.name): need for need in missing}
    _add_known_dependencies(wanted, base, environment)
    for number in range(MAX_ROUNDS):
        progress("packages", len(fetched), len(wanted))
        fresh = [need for name, need in wanted.items() if name not in fetched]
        if not fresh:
            return sorted(fetched.values())
        for wheel in _download(fresh, base, platform, scratch / str(number)):
            fetched[parse_wheel_filename(wheel.name)[0]] = wheel
        for name, wheel in list(fetched.items()):
            _add_dependencies(wanted, name, _requirements(wheel), base, environment, fetched)
    raise AssertionError("the dependencies of packages do not end")


def _add_known_dependencies(wanted: dict[str, Requirement], base: Base, environment: dict[str, str]) -> None:
    """Dependencies of packages that are installed here, which saves most rounds of downloads."""
    seen: set[str] = set()
    while fresh := [name for name in wanted if name not in seen]:
        for name in fresh:
            seen.add(name)
            with suppress(metadata.PackageNotFoundError):
                lines = metadata.requires(name) or []
                _add_dependencies(wanted, name, [Requirement(line) for line in lines], base, environment, {})


def _add_dependencies(
    wanted: dict[str, Requirement],
    of: str,
    needs: list[Requirement],
    base: Base,
    environment: dict[str, str],
    fetched: dict[str, Path],
) -> None:
    """Adds what `of` needs and the base does not have."""
    for need in needs:
        if applies(need, tuple(wanted[of].extras), environment) and not base.has(need) and need.name != "torch":
            _merge(wanted, canonicalize_name(need.name), need, fetched)


def _merge(wanted: dict[str, Requirement], name: str, need: Requirement, fetched: dict[str, Path]) -> None:
    """Merges the requirements for the same package."""
    before = wanted.get(name)
    if before is None:
        wanted[name] = need
        return
    specifier, extras = before.specifier & need.specifier, before.extras | need.extras
    if (specifier, extras) == (before.specifier, before.extras):
        return
    joined = Requirement(str(before))
    joined.specifier, joined.extras = specifier, extras
    wanted[name] = joined
    if name in fetched and not specifier.contains(parse_wheel_filename(fetched[name].name)[1], prereleases=True):
        del fetched[name]


def _download(needs: list[Requirement], base: Base, platform: str, to: Path) -> list[Path]:
    """In the versions that are installed here; else the newest that fit."""
    pinned = [_installed_version(need) for need in needs]
    if _pip(pinned, base, platform, to).returncode:
        shutil.rmtree(to, ignore_errors=True)
        plain = [_plain(need) for need in needs]
        done = _pip(plain, base, platform, to)
        if done.returncode:
            errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise UserError(
                f"no wheels of {', '.join(plain)} for Python {base.python} on {base.libc}: {(errors or ['?'])[-1]}",
                remedy="Install them in the base image, or check that pip can reach its index",
            )
    return list(to.glob("*.whl"))


def _pip(requirements: list[str], base: Base, platform: str, to: Path) -> subprocess.CompletedProcess[str]:
    options = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    options += ["--python-version", base.python, "--dest", str(to), "--disable-pip-version-check", "--no-input"]
    for tag in platform_tags(base.libc, _machine(platform)):
        options += ["--platform", tag]
    command = [*_installer(), *options, *requirements]
    try:
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PIP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"pip has not downloaded {', '.join(requirements)} in {PIP_TIMEOUT_S / 60:.0f} minutes",
            remedy="Check that it can reach its index, or install them in the base image",
        ) from None


def _installer() -> list[str]:
    try:
        metadata.version("pip")
        return [sys.executable, "-m", "pip"]
    except metadata.PackageNotFoundError:
        if program := shutil.which("pip") or shutil.which("pip3"):
            return [program]
    raise UserError("pip is not installed, and the base image is missing packages", remedy="Run: python -m ensurepip")


def platform_tags(libc: str, machine: str) -> list[str]:
    """All platform tags that a system with this libc supports, the newest first."""
    kind, _, version = libc.partition(" ")
    newest = int(version.split(".")[1])
    if kind == "musl":
        return [f"musllinux_1_{minor}_{machine}" for minor in range(newest, 0, -1)]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, OLDEST_GLIBC - 1, -1)]
    legacy = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}
    return tags + [f"{name}_{machine}" for name, minor in legacy.items() if newest >= minor]


def _machine(platform: str) -> str:
    machine = platform.split("/")[1]
    return MACHINES.get(machine, machine)


def _installed_version(need: Requirement) -> str:
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return _plain(need)
    public = version.partition("+")[0]
    return f"{need.name}=={public}" if need.specifier.contains(public, prereleases=True) else _plain(need)


def _plain(need: Requirement) -> str:
    return f"{need.name}{need.specifier}"


def _requirements(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as opened:
        name = next(path for path in opened.namelist() if path.endswith(".dist-info/METADATA"))
        headers = email.parser.BytesParser().parsebytes(opened.read(name), headersonly=True)
    return [Requirement(line) for line in headers.get_all("Requires-Dist") or []]


def _entries(wheels: list[Path]) -> Iterator[LayerEntry]:
    """The files that an installer puts into site-packages; no scripts."""
    root = LIBRARY.lstrip("/")
    folders = {root}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as opened:
            for info in opened.infolist():
                path = _installed_path(info.filename)
                if info.is_dir() or path is None:
                    continue
                name = f"{root}/{path}"
                folders |= {str(parent) for parent in Path(name).parents} - {".", *map(str, Path(root).parents)}
                yield LayerEntry(name=name, source=opened.read(info), executable=bool(info.external_attr >> 16 & 0o100))
    yield from (LayerEntry(name=folder) for folder in folders)


def _installed_path(name: str) -> str | None:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        return None
    if not parts[0].endswith(".data"):
        return name
    return "/".join(parts[2:]) if parts[1] in ("purelib", "platlib") else None
