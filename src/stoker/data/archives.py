"""Archives unpacked safely: nothing outside the folder, no devices, and again from where it was cut."""

import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stoker.spec.errors import UserError

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ZIPS = (".zip",)
PIECE = 1 << 20
PART = ".stoker-part"  # the end of a name that is not whole yet
LATEST = 2**33  # seconds since 1970: the year 2242
MARGIN = 16 << 20  # bytes that are left free


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    name: str
    size: int
    time: int
    program: bool
    link: str | None = None
    """What a symbolic link says."""
    same: str | None = None
    """Of a hard link: the member that it is."""


def is_archive(name: str) -> bool:
    return name.lower().endswith(TARS + ZIPS)


def extract(archive: Path, into: Path, *, name: str) -> Iterator[int]:
    """Unpack it, and tell how many bytes each file has; files that are there as they should be are passed over.

    `name` is that of the archive, whose ending tells its kind.
    """
    into.mkdir(parents=True, exist_ok=True)
    try:
        if name.lower().endswith(ZIPS):
            yield from _zip(archive, into)
        else:
            yield from _tar(archive, into, plain=name.lower().endswith(".tar"))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OverflowError) as e:
        raise UserError(f"{name} is no whole archive ({e})", remedy="Fetch it again") from e


def _tar(archive: Path, into: Path, *, plain: bool) -> Iterator[int]:
    if plain:  # its names can be looked at without reading it all: a bad one is found before anything is written
        with tarfile.open(archive) as tar:
            for info in tar:
                _checked(_tar_member(info), into)
    with tarfile.open(archive, "r:" if plain else "r|*") as tar:
        for info in tar:
            member = _tar_member(info)
            path = _checked(member, into)
            if info.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif info.issym():
                _link(member, path, into)
            elif info.islnk():
                _copy(member, path, into)
            elif not _is_there(member, path):
                data = tar.extractfile(info)
                assert data is not None
                _write(data, member, path)
            yield member.size


def _zip(archive: Path, into: Path) -> Iterator[int]:
    with zipfile.ZipFile(archive) as zipped:
        infos = zipped.infolist()
        for info in infos:
            _checked(_zip_member(info), into)
        _check_room(sum(info.file_size for info in infos), into)
        for info in infos:
            member = _zip_member(info)
            path = _checked(member, into)
            if info.is_dir():
                path.mkdir(parents=True, exist_ok=True)
            elif not _is_there(member, path):
                with zipped.open(info) as data:
                    _write(data, member, path)
            yield member.size


def _tar_member(info: tarfile.TarInfo) -> Member:
    if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        raise UserError(f"the archive has a device or pipe: {info.name}", remedy="Use an archive of plain files")
    return Member(
        name=info.name,
        size=info.size if info.isreg() else 0,
        time=max(0, min(int(info.mtime), LATEST)),
        program=bool(info.mode & stat.S_IXUSR),
        link=info.linkname if info.issym() else None,
        same=info.linkname if info.islnk() else None,
    )


def _zip_member(info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        raise UserError(f"the archive has a link: {info.filename}", remedy="Use an archive of plain files")
    when = max(0, timegm((*info.date_time, 0, 0, 0)))
    return Member(name=info.filename, size=info.file_size, time=when, program=bool(mode & stat.S_IXUSR))


def _checked(member: Member, into: Path) -> Path:
    """Where it goes: below the folder, by its name and by all the links that are there."""
    outside = _leads_out(member.name) or (member.same is not None and _leads_out(member.same))
    if member.link is not None:
        outside |= _leads_out(posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.link)))
    path = into / member.name
    if not outside:
        outside = not path.parent.resolve().is_relative_to(into.resolve())
    if outside:
        raise UserError(f"the archive has a name that leads out of it: {member.name}", remedy="Do not trust it")
    return path


def _leads_out(name: str) -> bool:
    return posixpath.isabs(name) or ".." in name.split("/") or "\0" in name or "\\" in name


def _is_there(member: Member, path: Path) -> bool:
    try:
        there = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(there.st_mode) and there.st_size == member.size and there.st_mtime == member.time


def _write(data: IO[bytes], member: Member, path: Path) -> None:
    """Under another name until it is whole: whoever goes on knows what is."""
    _check_room(member.size, path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name[-200:]}{PART}")
    with open(part, "wb") as file:
        shutil.copyfileobj(data, file, PIECE)
    part.chmod(0o755 if member.program else 0o644)
    os.utime(part, (member.time, member.time))
    os.replace(part, path)


def _link(member: Member, path: Path, into: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert member.link is not None
    if path.is_symlink():
        path.unlink()
    path.symlink_to(member.link)
    if not path.resolve().is_relative_to(into.resolve()):
        path.unlink()
        raise UserError(f"the archive has a link that leads out of it: {member.name}", remedy="Do not trust it")


def _copy(member: Member, path: Path, into: Path) -> None:
    """A hard link, as a file of its own."""
    source = into / (member.same or "")
    if not source.resolve().is_relative_to(into.resolve()) or not source.is_file():
        raise UserError(f"the archive has a link to what it does not have: {member.name}", remedy="Do not trust it")
    with open(source, "rb") as data:
        _write(data, member, path)


def _check_room(needed: int, folder: Path) -> None:
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if needed + MARGIN > free:
        raise UserError(
            f"{needed / 2**30:.2f} GiB are to be unpacked into {folder}, and {free / 2**30:.2f} GiB are free there",
            remedy="Make room, or take a larger volume",
        )
