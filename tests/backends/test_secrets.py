from pathlib import Path

import pytest

from stoker.backends import secrets
from stoker.spec.errors import UserError
from stoker.spec.run import ScriptSpec


def spec(**sources: str) -> ScriptSpec:
    return ScriptSpec(script="train.py", secrets=sources)


def complaint(**sources: str) -> str:
    with pytest.raises(UserError) as caught:
        secrets.resolve(spec(**sources))
    assert caught.value.remedy
    return str(caught.value)


def test_a_secret_is_a_variable_or_the_text_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("line one\nline two\n")
    monkeypatch.setenv("MINE", " open sesame ")
    values = secrets.resolve(spec(TOKEN="env:MINE", KEY=f"file:{tmp_path / 'key'}"))
    assert values == {"TOKEN": " open sesame ", "KEY": "line one\nline two"}


def test_secrets_are_read_again_each_time(tmp_path: Path) -> None:
    for text in ("old", "new"):
        (tmp_path / "key").write_text(text)
        assert secrets.resolve(spec(KEY=f"file:{tmp_path / 'key'}")) == {"KEY": text}


def test_a_variable_that_is_missing_or_empty_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINE", raising=False)
    assert "secrets.TOKEN comes from the variable MINE, which is not set" in complaint(TOKEN="env:MINE")
    assert "export MINE=" in complaint(TOKEN="env:MINE")
    monkeypatch.setenv("MINE", "")
    assert "which is empty" in complaint(TOKEN="env:MINE")


def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "key"
    source = f"file:{path}"
    assert f"secrets.KEY comes from {path}, which cannot be read: No such file" in complaint(KEY=source)
    assert "which is not a regular file" in complaint(KEY=f"file:{tmp_path}")
    assert "which cannot be read: No such file" in complaint(KEY="file:~no-such-user/key")
    path.write_text("\n")
    assert "which is empty" in complaint(KEY=source)
    path.write_bytes(b"open\xff")
    assert "which is not UTF-8 text" in complaint(KEY=source)
    path.write_bytes(b"open\0sesame")
    assert "zero byte" in complaint(KEY=source)
    path.write_text("open" * 40_000)
    message = complaint(KEY=source)
    assert "longer than an environment variable can be (128 KiB)" in message
    assert "openopen" not in message


def test_a_secret_file_that_other_users_can_read_gives_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("open sesame")
    path.chmod(0o644)
    (warning,) = secrets.warnings(spec(KEY=f"file:{path}", TOKEN="env:MINE"))
    assert warning == f"secrets.KEY: other users can read {path}. Run: chmod 600 {path}"
    path.chmod(0o600)
    assert secrets.warnings(spec(KEY=f"file:{path}")) == []
