"""`stoker image`, as it is typed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from stoker.cli.main import main
from stoker.image.container_tool import run_command
from stoker.image.reference import parse


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    file = folder / "run.yaml"
    file.write_text("script: train.py\n")
    return file


@pytest.fixture
def typed(run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """(arguments) -> its output; runs in this process, to import httpx2 and the rest once."""
    monkeypatch.chdir(run_file.parent)

    def run(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["image", *arguments]) == code
        return capsys.readouterr()

    return run


def test_build_prints_the_image_and_sends_nothing(typed, run_file: Path, base: str, registry) -> None:
    before = len(registry.writes())
    shown = typed("build", run_file.name, "--base", base).out
    for text in ("Python 3.11, torch 2.11.0+cpu, glibc 2.36", "nothing: the base has all", "→ /app", "tag "):
        assert text in shown
    record = json.loads(typed("build", run_file.name, "--base", base, "-o", "out.tar", "--json").out)
    assert (record["python"], record["workdir"], record["file"]) == ("3.11", "/app", "out.tar")
    assert (run_file.parent / "out.tar").stat().st_size > record["bytes"]
    assert registry.writes()[before:] == []


def test_push_gives_a_name_that_cannot_move_and_the_second_time_sends_nothing(
    typed, run_file: Path, base: str, repository: str
) -> None:
    run_file.write_text(f"script: train.py\non: {{kind: kubernetes, image: '{base}', registry: {repository}}}\n")
    first = json.loads(typed("push", run_file.name, "--json").out)
    assert first["image"].startswith(f"{repository}:{first['tag']}@sha256:")
    assert first["sent"] > 0
    shown = typed("push", run_file.name).out
    assert "nothing was sent" in shown
    assert first["image"] in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["push", "run.yaml", "--to", "x.example/a"], "no base image is named. Use --base IMAGE"),
        (["push", "run.yaml", "--base", "{base}"], "there is no registry to push to. Use --to"),
        (["build", "run.yaml", "--base", "{base}-none"], "does not exist"),
        (["build", "run.yaml", "--base", "{base}", "--platform", "linux/arm64"], "is for linux/amd64, and linux/arm64"),
        (["build", "run.yaml", "--base", "{base}", "--platform", "windows/amd64"], "is not a container platform"),
        (["build", "run.yaml", "--base", "Bad Name"], "is not a repository name"),
        (["build", "run.yaml", "--base", "{base}", "-o", "none/x.tar"], "none/x.tar cannot be written: No such file"),
        (["build", "run.yaml", "--base", "{base}", "-o", "run.yaml/x.tar"], "cannot be written: Not a directory"),
        (["build", "--file", "Dockerfile"], "the image has no name"),
        (["push", "--file", "Dockerfile", "--to", "x.example/a"], "Dockerfile does not exist"),
        (["push", "--file", "train.py", "--to", "x.example/a:1"], "x.example/a:1 names a tag"),
        (["push", "--file", "train.py", "--to", "http://x.example/a:1"], "Write http://x.example/a\n"),
        (["run", "--file", "Dockerfile"], "--file is for build and push"),
    ],
)
def test_a_mistake_is_one_line(typed, base: str, arguments: list[str], message: str) -> None:
    error = typed(*(argument.format(base=base) for argument in arguments), code=2).err
    assert error.startswith("stoker: ")
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(("tool", "name", "expected"), [
    ("podman", "http://x.example/a", True), ("podman", "x.example/a", False), ("docker", "http://x.example/a", False),
])  # fmt: skip
def test_podman_gets_the_option_for_a_registry_without_tls(tool: str, name: str, expected: bool) -> None:
    command = run_command(tool, parse(name), "linux/amd64", ["python3", "x.py"], {"A": "b"})
    assert ("--tls-verify=false" in command) is expected
    assert command[-4:] == ["--entrypoint", "python3", "x.example/a:latest", "x.py"]


@pytest.mark.skipif(shutil.which("buildah") is None or os.geteuid() != 0, reason="needs buildah, and root for it")
def test_a_dockerfile_is_built_and_pushed_by_buildah(
    stoker, tmp_path: Path, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "storage"
    config = f'[storage]\ndriver = "vfs"\ngraphroot = "{store}/graph"\nrunroot = "{store}/run"\n'
    (tmp_path / "storage.conf").write_text(config)
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")  # docker, which needs its daemon, is elsewhere
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY hello /hello\n")
    (folder / "hello").write_text("hello")
    (tmp_path / "no-docker").mkdir()
    (tmp_path / "no-docker" / "config.json").write_text("{}")
    argv = ["image", "push", "--file", str(folder / "Dockerfile"), "--to", repository, "--json"]
    pushed = json.loads(stoker(*argv, "--platform", "linux/arm64").stdout)["image"]
    reference = parse(pushed)
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    url = f"{reference.url}/v2/{reference.repository}"
    manifest = requests.get(f"{url}/manifests/{reference.digest}", headers=accept, timeout=60).json()
    config_blob = requests.get(f"{url}/blobs/{manifest['config']['digest']}", timeout=60).json()
    assert config_blob["architecture"] == "arm64"
