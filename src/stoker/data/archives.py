"""Archives unpacked safely: nothing outside the folder, no devices, and again from where it was cut."""

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
PIECE = 1 << 20
PART = ".stoker-part"  # the end of a name that is not whole yet
ENCRYPTED = 1  # in the flags of a file in a zip
LATEST = 2**33  # seconds since 1970: the year 2242
MARGIN = 16 << 20  # bytes that are left free


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    name: str
    size: int
    time: int
    program: bool
    folder: bool = False
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
    try:
        into.mkdir(parents=True, exist_ok=True)
        if name.lower().endswith(ZIPS):
            yield from _zip(archive, into)
        else:
            yield from _tar(archive, into, plain=name.lower().endswith(".tar"))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OverflowError) as e:
        raise UserError(f"{name} is no whole archive ({e})", remedy="Fetch it again") from e
    except NotImplementedError as e:
        raise UserError(f"{name} is packed in a way that is not known here ({e})", remedy="Pack it as .tar.gz") from e
    except OSError as e:
        if e.errno is None:  # from the one who unpacks
            raise UserError(f"{name} is no whole archive ({e})", remedy="Fetch it again") from e
        raise unwritable(into, e) from e


def unwritable(folder: Path, e: OSError) -> UserError:
    """What stands in the way of files for a folder, and what to do about it."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Make room there, or take a larger volume; run again, it goes on where it stopped"
    elif e.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY):
        remedy = "Move what is there away, or take another folder"
    else:
        remedy = "Mend it there, or take another folder"
    return UserError(f"{e.filename2 or e.filename or folder} cannot be written ({e.strerror})", remedy=remedy)


def _tar(archive: Path, into: Path, *, plain: bool) -> Iterator[int]:
    if plain:  # its names can be looked at without reading it all: a bad one is found before anything is written
        with tarfile.open(archive) as tar:
            for info in tar:
                _checked(_tar_member(info), into)
    links: dict[Path, Member] = {}
    with tarfile.open(archive, "r:" if plain else "r|*") as tar:
        for info in tar:
            member = _tar_member(info)
            path = _checked(member, into)
            links.pop(path, None)  # of two with one name the last counts
            if info.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif info.issym():
                links[path] = member
            elif info.islnk():
                _copy(member, path, into)
            elif not _is_there(member, path):
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
        folder=info.isdir(),
        link=info.linkname if info.issym() else None,
        same=info.linkname if info.islnk() else None,
    )


def _zip_member(info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        raise UserError(f"the archive has a link: {info.filename}", remedy="Use an archive of plain files")
    if info.flag_bits & ENCRYPTED:
        raise UserError(f"the archive asks for a password: {info.filename}", remedy="Pack it again without one")
    try:
        when = max(0, timegm((*info.date_time, 0, 0, 0)))
    except ValueError:  # the month 0 of who kept no time
        when = 0
    program = bool(mode & stat.S_IXUSR)
    return Member(name=info.filename, size=info.file_size, time=when, program=program, folder=info.is_dir())


def _checked(member: Member, into: Path) -> Path:
    """Where it goes: below the folder, and there is no link on the way to it."""
    path = into / member.name
    outside = _leads_out(member.name) or (path == into and not member.folder)
    outside |= member.same is not None and _leads_out(member.same)
    outside |= member.link is not None and _points_out(member.name, member.link)
    if outside:
        raise UserError(f"the archive has a name that leads out of it: {member.name}", remedy="Do not trust it")
    if any(word.endswith(PART) for word in path.relative_to(into).parts):
        raise UserError(f"the archive has a name for what is half unpacked: {member.name}", remedy="Do not trust it")
    if link := _link_above(path, into):
        raise UserError(
            f"the archive has a name that leads through a link: {member.name}",
            remedy=f"Do not trust it; if {link} is a link of your own, take another folder",
        )
    return path


def _leads_out(name: str) -> bool:
    return posixpath.isabs(name) or ".." in name.split("/") or "\0" in name or "\\" in name


def _points_out(name: str, link: str) -> bool:
    """Up first, and then down: after a name that may be a link, now or later, "up" leads anywhere."""
    words = [word for word in link.split("/") if word not in ("", ".")]
    ups = next((at for at, word in enumerate(words) if word != ".."), len(words))
    below = len([word for word in name.split("/") if word not in ("", ".")]) - 1
    return posixpath.isabs(link) or ups > below or _leads_out("/".join(words[ups:]))


def _link_above(path: Path, into: Path) -> Path | None:
    above = path.parents[: len(path.relative_to(into).parts) - 1] if path != into else ()
    return next((one for one in above if one.is_symlink()), None)


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
    part.unlink(missing_ok=True)
    with open(part, "xb") as file:  # it is made here, and no link is followed
        shutil.copyfileobj(data, file, PIECE)
    part.chmod(0o755 if member.program else 0o644)
    os.utime(part, (member.time, member.time))
    os.replace(part, path)


def _make_links(links: dict[Path, Member], into: Path) -> None:
    """When all files are there, so that none is written through a link; and looked at when all links are there."""
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
            raise UserError(f"the archive has a link that leads out of it: {member.name}", remedy="Do not trust it")


def _copy(member: Member, path: Path, into: Path) -> None:
    """A hard link, as a file of its own."""
    source = into / (member.same or "")
    if _link_above(source, into) or source.is_symlink() or not source.is_file():
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
