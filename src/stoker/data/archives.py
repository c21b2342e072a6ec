"""Unpacks archives safely: nothing is written outside the folder, and no devices; resumes after an interruption."""

import errno
import lzma
import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
import zlib
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stoker.spec.errors import UserError

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ZIPS = (".zip",)
CHUNK_BYTES = 1 << 20
PART = ".stoker-part"  # suffix of an unfinished file
ENCRYPTED = 1  # in the flags of a file in a zip
MAX_TIME_S = 2**33  # since 1970: the year 2242
MARGIN_BYTES = 16 << 20  # left free


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    name: str
    size: int
    time: int
    program: bool
    folder: bool = False
    link: str | None = None
    """Target of a symbolic link."""
    same: str | None = None
    """Target of a hard link: another member."""


def is_archive(name: str) -> bool:
    return name.lower().endswith(TARS + ZIPS)


def extract(archive: Path, into: Path, *, name: str) -> Iterator[int]:
    """Unpacks an archive and yields the size of each file; files that are complete already are skipped.

    `name`: the archive's name, whose suffix gives its format.
    """
    try:
        into.mkdir(parents=True, exist_ok=True)
        if name.lower().endswith(ZIPS):
            yield from _zip(archive, into)
        else:
            yield from _tar(archive, into, plain=name.lower().endswith(".tar"))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OverflowError) as e:
        raise UserError(f"{name} is not a complete archive ({e})", remedy="Fetch it again") from e
    except NotImplementedError as e:
        raise UserError(f"{name} has an unsupported compression ({e})", remedy="Pack it as .tar.gz") from e
    except OSError as e:
        if e.errno is None:  # from the decompressor
            raise UserError(f"{name} is not a complete archive ({e})", remedy="Fetch it again") from e
        raise unwritable(into, e) from e


def unwritable(folder: Path, e: OSError) -> UserError:
    """The error for a folder that cannot be written, with its remedy."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free some space, or use a larger volume; then run it again: it resumes where it stopped"
    elif e.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY):
        remedy = "Move the existing file away, or use another folder"
    else:
        remedy = "Fix it, or use another folder"
    return UserError(f"{e.filename2 or e.filename or folder} cannot be written ({e.strerror})", remedy=remedy)


def _tar(archive: Path, into: Path, *, plain: bool) -> Iterator[int]:
    if plain:  # its names can be read without the content, so a bad name is reported before anything is written
        with tarfile.open(archive) as tar:
            for info in tar:
                _checked(_tar_member(info), into)
    links: dict[Path, Member] = {}
    with tarfile.open(archive, "r:" if plain else "r|*") as tar:
        for info in tar:
            member = _tar_member(info)
            path = _checked(member, into)
            links.pop(path, None)  # of two members with the same name the last wins
            if info.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif info.issym():
                links[path] = member
            elif info.islnk():
                _copy(member, path, into)
            elif not _is_complete(member, path):
                data = tar.extractfile(info)
                assert data is not None
                _write(data, member, path)
            yield member.size
    _make_links(links, into)


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
            elif not _is_complete(member, path):
                with zipped.open(info) as data:
                    _write(data, member, path)
            yield member.size


def _tar_member(info: tarfile.TarInfo) -> Member:
    if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        raise UserError(f"the archive has a device or pipe: {info.name}", remedy="Use an archive of plain files")
    return Member(
        name=info.name,
        size=info.size if info.isreg() else 0,
        time=max(0, min(int(info.mtime), MAX_TIME_S)),
        program=bool(info.mode & stat.S_IXUSR),
        folder=info.isdir(),
        link=info.linkname if info.issym() else None,
        same=info.linkname if info.islnk() else None,
    )


def _zip_member(info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        raise UserError(f"the archive has a link: {info.filename}", remedy="Use an archive of plain files")
    if info.flag_bits & ENCRYPTED:
        raise UserError(f"the archive needs a password: {info.filename}", remedy="Pack it again without one")
    try:
        mtime = max(0, timegm((*info.date_time, 0, 0, 0)))
    except ValueError:  # the month is 0 where no time was stored
        mtime = 0
    program = bool(mode & stat.S_IXUSR)
    return Member(name=info.filename, size=info.file_size, time=mtime, program=program, folder=info.is_dir())


def _checked(member: Member, into: Path) -> Path:
    """The path to write: below the folder, with no link on the way."""
    path = into / member.name
    outside = _points_up(member.name) or (path == into and not member.folder)
    outside |= member.same is not None and _points_up(member.same)
    outside |= member.link is not None and _link_leaves(member.name, member.link)
    if outside:
        raise UserError(f"the archive has a name that points outside: {member.name}", remedy="Do not trust it")
    if any(part.endswith(PART) for part in path.relative_to(into).parts):
        raise UserError(
            f"the archive has a name that is reserved for unfinished files: {member.name}", remedy="Do not trust it"
        )
    if link := _link_above(path, into):
        raise UserError(
            f"the archive has a name that passes through a link: {member.name}",
            remedy=f"Do not trust it; if {link} is your own link, use another folder",
        )
    return path


def _points_up(name: str) -> bool:
    return posixpath.isabs(name) or ".." in name.split("/") or "\0" in name or "\\" in name


def _link_leaves(name: str, link: str) -> bool:
    """Only leading ".." parts are allowed: after a name that may be a link, ".." could lead anywhere."""
    parts = [part for part in link.split("/") if part not in ("", ".")]
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    depth = len([part for part in name.split("/") if part not in ("", ".")]) - 1
    return posixpath.isabs(link) or ups > depth or _points_up("/".join(parts[ups:]))


def _link_above(path: Path, into: Path) -> Path | None:
    parents = path.parents[: len(path.relative_to(into).parts) - 1] if path != into else ()
    return next((folder for folder in parents if folder.is_symlink()), None)


def _is_complete(member: Member, path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == member.size and status.st_mtime == member.time


def _write(data: IO[bytes], member: Member, path: Path) -> None:
    """Written under another name until it is complete, so that a resume recognizes it."""
    _check_room(member.size, path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name[-200:]}{PART}")
    part.unlink(missing_ok=True)
    with open(part, "xb") as file:  # created here: no link is followed
        shutil.copyfileobj(data, file, CHUNK_BYTES)
    part.chmod(0o755 if member.program else 0o644)
    os.utime(part, (member.time, member.time))
    os.replace(part, path)


def _make_links(links: dict[Path, Member], into: Path) -> None:
    """After all files, so that none is written through a link; checked once all links exist."""
    for path, member in links.items():
        _checked(member, into)
        assert member.link is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(member.link)
    root = os.path.realpath(into)
    for path, member in links.items():
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            path.unlink()
            raise UserError(f"the archive has a link that points outside: {member.name}", remedy="Do not trust it")


def _copy(member: Member, path: Path, into: Path) -> None:
    """A hard link becomes a copy."""
    source = into / (member.same or "")
    if _link_above(source, into) or source.is_symlink() or not source.is_file():
        raise UserError(f"the archive has a link to a missing member: {member.name}", remedy="Do not trust it")
    with open(source, "rb") as data:
        _write(data, member, path)


def _check_room(needed: int, folder: Path) -> None:
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if needed + MARGIN_BYTES > free:
        raise UserError(
            f"{needed / 2**30:.2f} GiB are to be unpacked into {folder}, and only {free / 2**30:.2f} GiB are free",
            remedy="Free some space, or use a larger volume",
        )
