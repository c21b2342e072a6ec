"""Both ends as real processes over pipes that are cut."""

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.transfer.client import download, upload
from stoker.backends.transfer.meter import TransferProgress
from stoker.backends.transfer.names import MANIFEST, WORK
from stoker.backends.transfer.send import Item, copied_item, folder_item
from stoker.spec.errors import UserError

OVERHEAD_BYTES = 8_000  # of messages when no file has to be sent


def test_a_folder_arrives_complete_with_a_manifest(remote: Any, tree: Any, files_in: Any, seed: int) -> None:
    books, reports = tree(seed), list[TransferProgress]()
    done = upload([folder_item(books, "data/key1", "key1")], remote, reports.append)
    assert files_in(Path(remote.root, "data/key1")) == files_in(books)
    record = json.loads(Path(remote.root, "data/key1", MANIFEST).read_text())
    assert record["key"] == "key1"
    assert {name: len(data) for name, data in files_in(books).items()} == {
        name: file["bytes"] for name, file in record["files"].items()
    }
    assert done.done == done.total == sum(map(len, files_in(books).values()))
    assert done.files == done.of_files == len(files_in(books))
    assert reports[-1].done == done.total
    assert not Path(remote.root, "data/key1", WORK).exists()


def test_existing_files_are_not_sent_again(remote: Any, tree: Any, files_in: Any, seed: int) -> None:
    books = tree(seed)
    items = [folder_item(books, "data/key1", "key1"), folder_item(books, "runs/demo", None)]
    upload(items, remote)
    before = remote.sent
    again = upload(items, remote)
    assert remote.sent - before < OVERHEAD_BYTES
    assert again.present == again.total == again.done
    assert files_in(Path(remote.root, "runs/demo")) == files_in(books)


def test_without_a_key_only_what_has_changed_is_sent(remote: Any, tree: Any, files_in: Any, seed: int) -> None:
    books = tree(seed)
    upload([folder_item(books, "runs/demo", None)], remote)
    before = remote.sent
    (books / "new.txt").write_text("another one")
    same = next(path for path in books.rglob("*") if path.is_file() and path.stat().st_size == 65_536)
    same.write_bytes(random.Random(seed + 1).randbytes(65_536))
    upload([folder_item(books, "runs/demo", None)], remote)
    assert 65_536 < remote.sent - before < 65_536 + OVERHEAD_BYTES
    assert files_in(Path(remote.root, "runs/demo")) == files_in(books)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["key1", None])
def test_an_upload_interrupted_at_any_byte_resumes(remote: Any, tree: Any, files_in: Any, seed: int, key: str) -> None:
    books, draw = tree(seed), random.Random(seed)
    whole = sum(map(len, files_in(books).values()))
    remote.cuts = [(draw.randrange(1, whole // 3), None) for _ in range(4)] + [(None, draw.randrange(1, 4000))]
    upload([folder_item(books, "data/books", key)], remote)
    assert files_in(Path(remote.root, "data/books")) == files_in(books)
    lost = len(remote.cables) * (1 << 20)  # in pipes, or not yet written, at each interruption
    assert remote.sent < whole + lost + OVERHEAD_BYTES * len(remote.cables)


@pytest.mark.slow
def test_a_download_interrupted_at_any_byte_resumes(
    remote: Any, tree: Any, files_in: Any, seed: int, tmp_path: Path
) -> None:
    books, draw = tree(seed, name="volume/runs/demo/checkpoints"), random.Random(seed)
    whole = sum(map(len, files_in(books).values()))
    remote.cuts = [(None, draw.randrange(1, whole // 3)) for _ in range(4)] + [(draw.randrange(1, 100), None)]
    (tmp_path / "here").mkdir()
    done = download(remote, "runs/demo/checkpoints", tmp_path / "here")
    assert files_in(tmp_path / "here/checkpoints") == files_in(books)
    assert done.done == whole
    assert not (tmp_path / "here/checkpoints" / WORK).exists()
    before = remote.received
    download(remote, "runs/demo/checkpoints", tmp_path / "here/checkpoints")
    assert remote.received - before < OVERHEAD_BYTES
    assert files_in(tmp_path / "here/checkpoints") == files_in(books)


def test_it_resumes_where_another_command_was_interrupted(remote: Any, tree: Any, files_in: Any, seed: int) -> None:
    books = tree(seed, large=5_000_000)
    remote.cuts = [(3_000_000, None), None]
    with pytest.raises(UserError, match="the claim is gone"):
        upload([copied_item(books, "data/novels")], remote)
    remote.cuts, before = [], remote.sent
    upload([copied_item(books, "data/novels")], remote)
    assert files_in(Path(remote.root, "data/novels")) == files_in(books)
    assert remote.sent - before < 4_000_000


def test_a_partial_file_with_other_content_is_sent_from_its_start(
    remote: Any, tree: Any, files_in: Any, seed: int
) -> None:
    books = tree(seed)
    remote.cuts = [(2_000_000, None), None]
    with pytest.raises(UserError, match="the claim is gone"):
        upload([folder_item(books, "data/books", "key1")], remote)
    remote.cuts = []
    parts = list(Path(remote.root, "data/books", WORK).rglob("*.part"))
    assert parts, "nothing was interrupted"
    for part in parts:
        part.write_bytes(b"x" * part.stat().st_size)
    upload([folder_item(books, "data/books", "key1")], remote)
    assert files_in(Path(remote.root, "data/books")) == files_in(books)


def test_a_folder_that_lost_a_file_gets_it_back(remote: Any, tree: Any, files_in: Any, seed: int) -> None:
    books = tree(seed)
    upload([folder_item(books, "data/key1", "key1")], remote)
    victim = max(Path(remote.root, "data/key1").rglob("*.bin"), key=lambda path: path.stat().st_size)
    os.truncate(victim, 10)
    upload([folder_item(books, "data/key1", "key1")], remote)
    assert files_in(Path(remote.root, "data/key1")) == files_in(books)


def test_two_concurrent_transfers_leave_one_copy(remote: Any, tree: Any, files_in: Any, seed: int) -> None:
    books, reports = tree(seed, large=20_000_000), list[TransferProgress]()
    other = threading.Thread(target=upload, args=([folder_item(books, "data/k", "k")], remote, reports.append))
    other.start()
    upload([folder_item(books, "data/k", "k")], remote, reports.append)
    other.join()
    assert files_in(Path(remote.root, "data/k")) == files_in(books)
    assert remote.sent < 1.5 * sum(map(len, files_in(books).values()))


def test_files_from_bytes_and_empty_folders_are_sent(remote: Any, tmp_path: Path) -> None:
    program = tmp_path / "train.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    files = {"data.json": b'{"shards": "/stoker/data/k"}', "train.sh": program}
    upload([Item(files=files, into="runs/demo", folders=("logs", "ledger"))], remote)
    run = Path(remote.root, "runs/demo")
    assert (run / "data.json").read_bytes() == files["data.json"]
    assert os.access(run / "train.sh", os.X_OK)
    assert not os.access(run / "data.json", os.X_OK)
    assert (run / "logs").is_dir()
    assert (run / "ledger").is_dir()


def test_a_file_that_must_be_deleted_is(remote: Any) -> None:
    run = Path(remote.root, "runs/demo")
    run.mkdir(parents=True)
    (run / "exit.json").write_text("{}")
    upload([Item(files={"spec.yaml": b"a: 1"}, into="runs/demo", gone=("exit.json", "never.json"))], remote)
    assert [path.name for path in run.iterdir()] == ["spec.yaml"]


@pytest.mark.parametrize(
    ("into", "arrives"),
    [("data", "data/a.txt"), ("data/", "data/a.txt"), ("data/b.txt", "data/b.txt"), ("new/", "new/a.txt")],
)
def test_a_file_gets_the_name_that_cp_would_give(remote: Any, tmp_path: Path, into: str, arrives: str) -> None:
    Path(remote.root, "data").mkdir()
    (tmp_path / "a.txt").write_text("a")
    upload([copied_item(tmp_path / "a.txt", into)], remote)
    assert Path(remote.root, arrives).read_text() == "a"


def test_a_folder_does_not_replace_a_file(remote: Any, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("note")
    Path(remote.root, "data").mkdir()
    Path(remote.root, "data", "a.txt").write_text("a")
    for to in ("note.txt", "note.txt/below"):
        with pytest.raises(UserError, match=r"there is no folder|note\.txt is a file, and should be a folder"):
            download(remote, "data", tmp_path / to)
    with pytest.raises(UserError, match=r"a\.txt is a file, and should be a folder"):
        upload([copied_item(tmp_path / "note.txt", "data/a.txt/")], remote)
    assert (tmp_path / "note.txt").read_text() == "note"


def test_a_missing_path_is_reported_with_what_its_folder_contains(remote: Any, tmp_path: Path) -> None:
    Path(remote.root, "runs").mkdir()
    with pytest.raises(UserError, match=r"there is no .*/runs/nothing\. .*/runs is empty"):
        download(remote, "runs/nothing", tmp_path / "here")
    Path(remote.root, "runs", "books-ab3d").mkdir()
    with pytest.raises(UserError, match=r"there is no .*/nothing/export\. .*/runs contains: books-ab3d"):
        download(remote, "runs/nothing/export", tmp_path / "here")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "out"])
def test_nothing_outside_the_volume_is_read_or_written(remote: Any, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    Path(remote.root, "out").symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"is not in|leads out of"):
        download(remote, path, tmp_path / "here")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match=r"is not in|leads out of"):
        upload([copied_item(tmp_path / "a.txt", f"{path}/")], remote)


@pytest.mark.parametrize("name", ["../up", "a/../../up", "/abs", "", ".", "a//b", ".stoker-transfer/x", "x" * 300])
def test_names_that_lead_out_of_the_folder_are_refused_by_the_receiver(remote: Any, name: str) -> None:
    with pytest.raises(UserError, match="is not a valid file name"):
        upload([Item(files={name: b"x"}, into="data")], remote)
    assert not Path(remote.root, "data").exists()


def test_a_link_on_the_volume_cannot_lead_out_of_it(remote: Any, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    Path(remote.root, "data").mkdir()
    Path(remote.root, "data/sub").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="leads out of"):
        upload([Item(files={"sub/x": b"x"}, into="data")], remote)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("kind", ["link out", "link to a folder", "broken link", "pipe"])
def test_what_is_not_a_regular_file_is_not_sent(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "books"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    make: dict[str, Callable[[Path], None]] = {
        "link out": lambda path: path.symlink_to(tmp_path / "secret"),
        "link to a folder": lambda path: path.symlink_to(folder / "sub"),
        "broken link": lambda path: path.symlink_to("nothing"),
        "pipe": os.mkfifo,
    }
    make[kind](folder / "odd")
    with pytest.raises(UserError, match=r"books/odd"):
        folder_item(folder, "data", None)


def test_a_link_inside_the_folder_is_sent_as_its_target(remote: Any, tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a").write_text("text")
    (folder / "b").symlink_to("a")
    upload([folder_item(folder, "data", None)], remote)
    assert Path(remote.root, "data/b").read_text() == "text"
    assert not Path(remote.root, "data/b").is_symlink()


def test_files_that_do_not_fit_are_refused_before_they_are_sent(remote: Any, tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with open(huge, "wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).free + (64 << 20))
    with pytest.raises(UserError, match=r"GiB must be written to .*GiB are free there"):
        upload([copied_item(huge, "data")], remote)
    assert remote.sent < OVERHEAD_BYTES
