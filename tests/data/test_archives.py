"""Archives from strangers."""

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
    "hard link out": [link("x", "../outside/secret", tarfile.LNKTYPE)],
    "device": [member("x", b"", type=tarfile.CHRTYPE)],
    "pipe": [member("x", b"", type=tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_leads_out_of_the_folder_is_refused(tmp_path: Path, kind: str, ending: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    archive = packed(tmp_path / f"a.{ending}", member("good"), *HOSTILE[kind])
    with pytest.raises(UserError, match=r"leads out of it|device or pipe|does not have"):
        list(extract(archive, tmp_path / "out", name=archive.name))
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["secret"]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "x/../../evil", "..\\evil"])
def test_a_zip_is_judged_before_anything_is_written(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("good", "good")
        zipped.writestr(name, "evil")
    with pytest.raises(UserError, match="leads out of it"):
        list(extract(archive, tmp_path / "out", name="a.zip"))
    assert not list((tmp_path / "out").iterdir())


def test_a_link_that_was_there_before_does_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").symlink_to(tmp_path / "outside")
    archive = packed(tmp_path / "a.tar", member("x/evil"))
    with pytest.raises(UserError, match="leads out of it"):
        list(extract(archive, tmp_path / "out", name="a.tar"))
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "zip"])
def test_half_an_archive_is_told_from_a_whole_one(tmp_path: Path, ending: str) -> None:
    archive = tmp_path / f"a.{ending}"
    archive.write_bytes(b"half of something")
    with pytest.raises(UserError, match="is no whole archive"):
        list(extract(archive, tmp_path / "out", name=archive.name))
