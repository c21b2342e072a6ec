"""The user's own code: its folder, which files of it go into an image, and where."""

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.image.ignore import Ignore, literal
from stoker.image.layer import LayerEntry
from stoker.spec import contract
from stoker.spec.code import is_code, module_place
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

WORKDIR = contract.WORKDIR
INSTALLED = ("site-packages", "dist-packages")  # packages that pip installed belong to the base image
MAX_BYTES = 200 * 10**6  # the code is sent at every change; larger files are data


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    folder: Path | None
    """The folder whose files go to `workdir`; None if the run has no code of its own."""
    workdir: str
    entries: tuple[LayerEntry, ...]
    size: int
    """Bytes of its files."""

    def inside(self, path: Path) -> str | None:
        """The path of a file in the image; None if it is not included."""
        if self.folder is None or not path.absolute().is_relative_to(self.folder):
            return None
        return f"{self.workdir}/{path.absolute().relative_to(self.folder).as_posix()}"


def collect(spec: AnySpec, *, workspace: Path | None = None, workdir: str = WORKDIR) -> Code:
    """`workspace`: this folder goes into the working directory, instead of the one that the run file points to."""
    folder = _existing(workspace) if workspace else _folder(spec)
    entries = [LayerEntry(name=workdir.lstrip("/"))]
    size = 0
    if folder:
        for entry, bytes in _walk(folder, workdir.lstrip("/"), Ignore.of(folder, _excluded(spec, folder))):
            entries.append(entry)
            size += bytes
            if size > MAX_BYTES:
                raise _too_large(folder, spec)
    return Code(folder=folder, workdir=workdir, entries=tuple(entries), size=size)


def _existing(workspace: Path) -> Path:
    if not workspace.is_dir():
        raise UserError(f"--workspace {workspace} is not a folder", remedy="Name the folder with your code")
    return workspace.absolute()


def _folder(spec: AnySpec) -> Path | None:
    if isinstance(spec, ScriptSpec):
        return _home(Path(spec.script).absolute())
    folders = {folder for key, name in _modules(spec) if (folder := module_place(name, key)).name not in INSTALLED}
    if len(folders) > 1:
        raise UserError(
            f"the run's own code is in {len(folders)} folders: {', '.join(map(str, sorted(folders)))}",
            remedy="Move it into one, or name the folder that contains all of it: --workspace DIR",
        )
    return folders.pop() if folders else None


def _home(script: Path) -> Path | None:
    if not script.is_file():
        return None  # it is in the base image
    if script.parent in (Path("/"), Path.home()):
        raise UserError(
            f"{script} is in {script.parent}, with many other files",
            remedy="Move it into a folder of its own, with the modules that it imports",
        )
    return script.parent


def _modules(spec: RunSpec) -> Iterator[tuple[str, str]]:
    if is_code(spec.model.family):
        yield "model.family", spec.model.family
    yield from (("data.path", path) for path in spec.data.paths if is_code(path) and not os.path.exists(path))
    yield from (("callbacks", name) for name in spec.callbacks)


def _excluded(spec: AnySpec, folder: Path) -> Iterator[str]:
    """Data, which gets to the run in another way, and secrets."""
    files = [source.removeprefix("file:") for source in spec.secrets.values() if source.startswith("file:")]
    if isinstance(spec, RunSpec):
        files += [*spec.data.paths, *filter(None, [spec.init.path, spec.objective.teacher])]
    for file in files:
        path = Path(os.path.expanduser(file)).absolute()
        for file_path, home in ((path, folder), (_real(path), _real(folder))):  # either may be a link
            if file_path.is_relative_to(home) and file_path != home:
                yield literal(file_path.relative_to(home).as_posix())


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _walk(folder: Path, below: str, ignored: Ignore) -> Iterator[tuple[LayerEntry, int]]:
    """Every entry, with its size. Links stay links; sockets and pipes are skipped."""
    for root, folders, files in os.walk(folder):
        parent = Path(root)
        if parent != folder and (parent / "pyvenv.cfg").is_file():
            folders[:] = []
            continue
        within = "" if parent == folder else parent.relative_to(folder).as_posix() + "/"
        if within and not ignored(within[:-1]):
            yield LayerEntry(name=f"{below}/{within[:-1]}"), 0
        links = [name for name in folders if (parent / name).is_symlink()]
        folders[:] = [
            name for name in folders if name not in links and (ignored.can_include or not ignored(within + name))
        ]
        for name in [*files, *links]:
            if not ignored(within + name) and (entry := _entry(parent / name, f"{below}/{within}{name}")):
                yield entry


def _entry(path: Path, name: str) -> tuple[LayerEntry, int] | None:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return LayerEntry(name=name, link=os.readlink(path)), 0
    if not stat.S_ISREG(info.st_mode):
        return None
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} cannot be read", remedy="Make it readable, or exclude it in .stokerignore")
    return LayerEntry(name=name, source=path, executable=bool(info.st_mode & stat.S_IXUSR)), info.st_size


def _too_large(folder: Path, spec: AnySpec) -> UserError:
    sizes: dict[str, int] = {}
    for entry, bytes in _walk(folder, "x", Ignore.of(folder, _excluded(spec, folder))):
        first = entry.name.split("/")[1]
        sizes[first] = sizes.get(first, 0) + bytes
    largest = max(sizes, key=lambda name: sizes[name])
    command = f"echo {shlex.quote(largest)} >> {shlex.quote(str(folder / '.stokerignore'))}"
    return UserError(
        f"{folder} has {_megabytes(sizes.values())} of files (most in {largest}), and the limit for code in an image "
        f"is {_megabytes([MAX_BYTES])}",
        remedy=f"Run: {command}; data belongs on the run's volume",
    )


def _megabytes(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:,.0f} MB"
