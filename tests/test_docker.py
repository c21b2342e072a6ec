"""The base images have the packages that Stoker needs, and describe themselves correctly."""

import json
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stoker.image.base import Base
from tests.needing import root_with

DOCKER = Path(__file__).parents[1] / "docker"
TORCH = re.findall(r"^ARG TORCH=(.+)$", (DOCKER / "cpu.Dockerfile").read_text(), re.MULTILINE)[0]
FILES = sorted(DOCKER.glob("*.Dockerfile"))


def test_the_pinned_packages_include_all_that_a_run_needs() -> None:
    lines = [Requirement(line) for line in (DOCKER / "requirements.txt").read_text().splitlines() if "==" in line]
    versions = {line.name.replace("_", "-"): str(next(iter(line.specifier)).version) for line in lines}
    base = Base(python="3.12", libc="glibc 2.36", packages=versions)
    project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]
    needed = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["train"]])
    assert not [str(need) for need in needed if need.name != "torch" and not base.has(need)]


def test_a_base_image_describes_itself_correctly() -> None:
    description = json.loads(subprocess.run([sys.executable, DOCKER / "describe.py"], capture_output=True).stdout)
    assert description["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert description["libc"] == " ".join(platform.libc_ver())
    assert description["packages"]["rich"] == metadata.version("rich")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_version_is_pinned_and_the_last_layer_describes_the_image(file: Path) -> None:
    text = file.read_text()
    bases = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert len(bases) == 1
    assert re.search(r":\d+\.\d+", bases[0])
    assert re.findall(r"^FROM (\S+)$", text, re.MULTILINE) == ["${BASE}"]
    runs = re.findall(r"^(?:RUN|COPY) .*", text, re.MULTILINE)
    assert runs[-1] == "RUN python3 /opt/stoker/describe.py > /opt/stoker/base.json"
    assert not re.search(r"(?i)(secret|password|token)\s*=", text)


def write_index(folder: Path) -> None:
    """A package index with an empty torch: the real one has gigabytes."""
    (folder / "torch").mkdir(parents=True)
    name = f"torch-{TORCH}+cpu"
    with zipfile.ZipFile(folder / "torch" / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.writestr(f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}+cpu\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    page = f'<a href="torch-{TORCH}%2Bcpu-py3-none-any.whl">torch-{TORCH}+cpu-py3-none-any.whl</a>'
    (folder / "torch" / "index.html").write_text(page)


@pytest.mark.soak
def test_the_cpu_base_builds_with_buildah(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root_with("buildah", "debootstrap")
    store = f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
    (tmp_path / "storage.conf").write_text(store)
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    write_index(tmp_path / "index")

    def run(*argv: str) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.strip()

    run("debootstrap", "--variant=minbase", "--include=python3,ca-certificates", "bookworm", "root")
    run("tar", "-C", "root", "-cf", "root.tar", ".")
    container = run("buildah", "from", "scratch")
    run("buildah", "add", container, "root.tar", "/")
    run("buildah", "commit", "--rm", container, "localhost/debian")
    volumes = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro", "--volume", f"{tmp_path}/index:/index:ro"]
    arguments = ["--build-arg", "BASE=localhost/debian", "--build-arg", "INDEX=file:///index"]
    bud = ["buildah", "bud", "--isolation", "chroot", "--platform", "linux/amd64", *volumes, *arguments]
    run(*bud, "--file", str(DOCKER / "cpu.Dockerfile"), "--tag", "localhost/base:cpu", str(DOCKER))
    container = run("buildah", "from", "localhost/base:cpu")
    in_container = ["buildah", "run", "--isolation", "chroot", container, "--"]
    description = json.loads(run(*in_container, "cat", "/opt/stoker/base.json"))
    assert description["packages"]["torch"] == f"{TORCH}+cpu"
    assert Base(**description).libc == "glibc 2.36"
