"""The user's own code: which folder it is, what of it goes into an image, and where it lies there."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.launch.image.ignore import Ignore, literal
from stoker.launch.image.layer import Entry
from stoker.spec import contract
from stoker.spec.code import is_code, module_place
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

WORKDIR = contract.WORKDIR
INSTALLED = ("site-packages", "dist-packages")  # what pip put there is for the base image to have
MOST_BYTES = 200 * 10**6  # it is sent at every change: what is larger is data


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    folder: Path | None
    """Whose files go to `workdir`; None when the run has no code of the user's."""
    workdir: str
    entries: tuple[Entry, ...]
    size: int
    """Bytes of its files."""

    def inside(self, path: Path) -> str | None:
        """Where a file of the folder lies in the image; None for one that is not in it."""
        if self.folder is None or not path.absolute().is_relative_to(self.folder):
            return None
        return f"{self.workdir}/{path.absolute().relative_to(self.folder).as_posix()}"


def collect(spec: AnySpec, *, workspace: Path | None = None, workdir: str = WORKDIR) -> Code:
    """`workspace`: this folder, laid over the working directory, in place of the one the run file points to."""
    folder = _existing(workspace) if workspace else _folder(spec)
    entries = [Entry(name=workdir.lstrip("/"))]
    size = 0
    if folder:
        for entry, bytes in _walk(folder, workdir.lstrip("/"), Ignore.of(folder, _elsewhere(spec, folder))):
            entries.append(entry)
            size += bytes
            if size > MOST_BYTES:
                raise _too_large(folder, spec)
    return Code(folder=folder, workdir=workdir, entries=tuple(entries), size=size)


def _existing(workspace: Path) -> Path:
    if not workspace.is_dir():
        raise UserError(
            f"--workspace {workspace} is no folder", remedy="Name the folder that is to be laid over the image"
        )
    return workspace.absolute()


def _folder(spec: AnySpec) -> Path | None:
    if isinstance(spec, ScriptSpec):
        return _home(Path(spec.script).absolute())
    places = {place for key, word in _words(spec) if (place := module_place(word, key)).name not in INSTALLED}
    if len(places) > 1:
        raise UserError(
            f"the run's own code lies in {len(places)} folders: {', '.join(map(str, sorted(places)))}",
            remedy="Put it into one, or name the folder that holds all of it: --workspace DIR",
        )
    return places.pop() if places else None


def _home(script: Path) -> Path | None:
    if not script.is_file():
        return None  # the base has it
    if script.parent in (Path("/"), Path.home()):
        raise UserError(
            f"{script} lies beside everything else that is in {script.parent}",
            remedy="Move it into a folder of its own, with what it imports",
        )
    return script.parent


def _words(spec: RunSpec) -> Iterator[tuple[str, str]]:
    if is_code(spec.model.family):
        yield "model.family", spec.model.family
    yield from (("data.path", path) for path in spec.data.paths if is_code(path) and not os.path.exists(path))
    yield from (("callbacks", word) for word in spec.callbacks)


def _elsewhere(spec: AnySpec, folder: Path) -> Iterator[str]:
    """What gets to the run by another way, or must not be seen at all."""
    files = [source.removeprefix("file:") for source in spec.secrets.values() if source.startswith("file:")]
    if isinstance(spec, RunSpec):
        files += [*spec.data.paths, *filter(None, [spec.init.path, spec.objective.teacher])]
    for file in files:
        path = Path(file).expanduser().absolute()
        for place, home in ((path, folder), (_real(path), _real(folder))):  # a link may lead to either of them
            if place.is_relative_to(home) and place != home:
                yield literal(place.relative_to(home).as_posix())


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _walk(folder: Path, below: str, ignored: Ignore) -> Iterator[tuple[Entry, int]]:
    """Every entry, with the bytes that it adds. Links stay links; sockets and pipes are no code."""
    for root, folders, files in os.walk(folder):
        here = Path(root)
        if here != folder and (here / "pyvenv.cfg").is_file():
            folders[:] = []
            continue
        within = "" if here == folder else here.relative_to(folder).as_posix() + "/"
        if within and not ignored(within[:-1]):
            yield Entry(name=f"{below}/{within[:-1]}"), 0
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name for name in folders if name not in links and (ignored.brings_back or not ignored(within + name))
        ]
        for name in [*files, *links]:
            if not ignored(within + name) and (found := _entry(here / name, f"{below}/{within}{name}")):
                yield found


def _entry(path: Path, name: str) -> tuple[Entry, int] | None:
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode):
        return Entry(name=name, link=os.readlink(path)), 0
    if not stat.S_ISREG(about.st_mode):
        return None
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} cannot be read", remedy="Allow it, or leave it out: name it in .stokerignore")
    return Entry(name=name, source=path, executable=bool(about.st_mode & stat.S_IXUSR)), about.st_size


def _too_large(folder: Path, spec: AnySpec) -> UserError:
    sizes: dict[str, int] = {}
    for entry, bytes in _walk(folder, "x", Ignore.of(folder, _elsewhere(spec, folder))):
        first = entry.name.split("/")[1]
        sizes[first] = sizes.get(first, 0) + bytes
    largest = max(sizes, key=lambda name: sizes[name])
    return UserError(
        f"{folder} holds {_megabytes(sizes.values())} beside the code (most in {largest}), and an image takes "
        f"{_megabytes([MOST_BYTES])}",
        remedy=f"Run: echo {largest} >> {folder / '.stokerignore'}; data goes to the run's volume",
    )


def _megabytes(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:,.0f} MB"
