"""What a folder that receives files keeps between two transfers."""

from pathlib import Path

from stoker.backends.transfer.target import Target

OFFER = {"into": "d", "key": None, "base": "", "single": False, "folders": [], "gone": [], "files": {"f": [4, False]}}
DIGEST = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"  # SHA-256 of b"text"


def fail(path: Path) -> None:
    raise AssertionError(f"{path} is locked")


def test_a_complete_file_is_kept_although_a_later_transfer_of_it_was_interrupted(tmp_path: Path) -> None:
    target = Target(tmp_path, OFFER)
    with target.locked(fail):
        with target.part("f", 0) as part:
            part.write(b"text")
        assert target.put("f", part, digest=DIGEST)
        with target.part("f", 0) as interrupted:
            interrupted.write(b"ne")
    target = Target(tmp_path, OFFER)
    with target.locked(fail):
        assert target.wanted() == [("f", 4, DIGEST)]
        target.keep("f")
        target.finish()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["f"]
    assert (tmp_path / "d" / "f").read_bytes() == b"text"
