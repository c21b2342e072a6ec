"""Archives from strangers."""

import errno
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.data.archives import extract
from stoker.spec.errors import UserError

Add = Callable[[tarfile.TarFile], None]


def member(name: str, data: bytes = b"text", **fields: object) -> Add:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = len(data), 1_700_000_000
        for key, value in fields.items():
            setattr(info, key, value)
        tar.addfile(info, io.BytesIO(data))

    return add


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Add:
    return member(name, b"", type=kind, linkname=to)


def packed(path: Path, *adds: Add) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for add in adds:
            add(tar)
    return path


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "zip"])
def test_files_come_out_as_they_went_in_and_only_once(tmp_path: Path, ending: str) -> None:
    archive, into = tmp_path / f"a.{ending}", tmp_path / "out"
    if ending == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr("x/one.txt", "one")
            zipped.writestr("two.txt", "two")
    else:
        packed(archive, member("x/one.txt", b"one"), member("two.txt", b"two"))
    assert sum(extract(archive, into, name=archive.name)) == 6
    assert {str(p.relative_to(into)): p.read_text() for p in into.rglob("*.txt")} == {
        "x/one.txt": "one",
        "two.txt": "two",
    }
    before = {path: path.stat().st_ino for path in into.rglob("*.txt")}
    (into / "two.txt").write_text("tw")  # cut short
    list(extract(archive, into, name=archive.name))
    assert (into / "two.txt").read_text() == "two"
    assert (into / "x/one.txt").stat().st_ino == before[into / "x/one.txt"]
    assert len(list(into.rglob("*"))) == 3


def test_links_inside_are_kept(tmp_path: Path) -> None:
    archive = packed(
        tmp_path / "a.tar", member("x/one", b"one"), link("x/soft", "one"), link("hard", "x/one", tarfile.LNKTYPE)
    )
    list(extract(archive, tmp_path / "out", name="a.tar"))
    assert (tmp_path / "out/x/soft").read_bytes() == (tmp_path / "out/hard").read_bytes() == b"one"


HOSTILE: dict[str, list[Add]] = {
    "absolute": [member("/etc/evil")],
    "up": [member("../evil")],
    "up in the middle": [member("x/../../evil")],
    "link out, then through it": [link("x", "../outside"), member("x/evil")],
    "absolute link": [link("x", "/etc")],
    "link up by way of a link": [member("d/e/f"), link("d/up", "e"), link("d/up/out", "../../../outside")],
    "link up after a name": [link("x", "p/q/d/../victim"), link("p/q/d", "../..")],
    "links that lead out together": [link("a", "b/c"), link("b/c", "../.."), member("a/evil")],
    "file in the place of the folder": [member(".")],
    "link in the place of an unfinished file": [link(".x.stoker-part", "y"), member("x")],
    "through a link inside": [member("d/e"), link("x", "d"), member("x/evil"), link("x/y", "e")],
    "hard link out": [link("x", "../outside/secret", tarfile.LNKTYPE)],
    "device": [member("x", b"", type=tarfile.CHRTYPE)],
    "pipe": [member("x", b"", type=tarfile.FIFOTYPE)],
}


REFUSED = "points outside|passes through a link|device or pipe|missing member|unfinished files|cannot be written"


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_members_that_point_outside_the_folder_are_refused(tmp_path: Path, kind: str, ending: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    archive = packed(tmp_path / f"a.{ending}", member("good"), *HOSTILE[kind])
    with pytest.raises(UserError, match=REFUSED):
        list(extract(archive, tmp_path / "out", name=archive.name))
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["secret"]
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "out", archive.name}


def test_a_link_in_the_place_of_an_unfinished_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "out/.x.stoker-part").symlink_to(tmp_path / "victim")
    list(extract(packed(tmp_path / "a.tar", member("x")), tmp_path / "out", name="a.tar"))
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "out/x").read_text() == "text"


def test_the_last_member_of_a_name_counts(tmp_path: Path) -> None:
    archive = packed(tmp_path / "a.tar", link("x", "y"), member("x", b"x"), member("y", b"y"), link("y", "x"))
    for _ in range(2):
        list(extract(archive, tmp_path / "out", name="a.tar"))
        assert not (tmp_path / "out/x").is_symlink()
        assert (tmp_path / "out/y").is_symlink()
        assert (tmp_path / "out/y").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["../evil", "/evil", "x/../../evil", "..\\evil"])
def test_a_zip_is_judged_before_anything_is_written(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("good", "good")
        zipped.writestr(name, "evil")
    with pytest.raises(UserError, match="points outside"):
        list(extract(archive, tmp_path / "out", name="a.zip"))
    assert not list((tmp_path / "out").iterdir())


def test_a_link_that_was_there_before_does_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").symlink_to(tmp_path / "outside")
    archive = packed(tmp_path / "a.tar", member("x/evil"))
    with pytest.raises(UserError, match="passes through a link"):
        list(extract(archive, tmp_path / "out", name="a.tar"))
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "zip"])
def test_an_incomplete_archive_is_recognized(tmp_path: Path, ending: str) -> None:
    archive = tmp_path / f"a.{ending}"
    archive.write_bytes(b"half of something")
    with pytest.raises(UserError, match="is not a complete archive"):
        list(extract(archive, tmp_path / "out", name=archive.name))


def zipped(path: Path, **head: int) -> Path:
    """A zip of one file whose two headers are overwritten: the flags or the compression method."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", "text " * 1000)
    data = bytearray(path.read_bytes())
    for at, before in ((0, 0), (data.find(b"PK\x01\x02"), 2)):
        for name, value in head.items():
            data[at + before + {"flags": 6, "method": 8}[name]] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("head", "message"), [({"flags": 1}, "needs a password"), ({"method": 99}, "unsupported compression")]
)
def test_an_unsupported_zip_is_reported(tmp_path: Path, head: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(extract(zipped(tmp_path / "a.zip", **head), tmp_path / "out", name="a.zip"))


def test_a_damaged_zip_is_reported(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip")
    data = bytearray(archive.read_bytes())
    data[31:45] = b"\xff" * 14
    archive.write_bytes(data)
    with pytest.raises(UserError, match="is not a complete archive"):
        list(extract(archive, tmp_path / "out", name="a.zip"))


def test_a_zip_that_keeps_no_time_is_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as made:
        info = zipfile.ZipInfo("x")
        info.date_time = (1980, 0, 0, 0, 0, 0)
        made.writestr(info, "text")
    list(extract(archive, tmp_path / "out", name="a.zip"))
    assert (tmp_path / "out/x").read_text() == "text"


@pytest.mark.parametrize("name", ["out", "out/x", "out/y/z", "out/l"])
def test_a_file_in_the_way_is_named(tmp_path: Path, name: str) -> None:
    existing = tmp_path / name
    if name in ("out", "out/y/z"):
        existing = existing.parent if name == "out/y/z" else existing
        existing.parent.mkdir(exist_ok=True)
        existing.write_text("a file")
    else:
        existing.mkdir(parents=True)
    archive = packed(tmp_path / "a.tar", member("x"), member("y/z"), link("l", "x"))
    with pytest.raises(UserError, match="cannot be written") as refused:
        list(extract(archive, tmp_path / "out", name="a.tar"))
    assert str(existing) in refused.value.problem
    assert "Move the existing file away" in refused.value.remedy


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(UserError, match="No space left on device") as refused:
        list(extract(packed(tmp_path / "a.tar", member("x")), tmp_path / "out", name="a.tar"))
    assert "Free some space" in refused.value.remedy
