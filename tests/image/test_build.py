"""From a run's code to an image in a registry, with no unnecessary transfer."""

import hashlib
import io
import json
import tarfile
import time
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import requests

import stoker as installed
from stoker.image import wheels
from stoker.image.archive import write_archive
from stoker.image.build import build, ensure_image
from stoker.image.reference import parse
from stoker.spec.errors import UserError
from stoker.spec.run import ScriptSpec


def fetched(name: str) -> tuple[dict[str, Any], dict[str, Any], list[bytes]]:
    """Manifest, config and layers of an image, with plain requests."""
    reference = parse(name)
    url = f"{reference.url}/v2/{reference.repository}"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    manifest = requests.get(f"{url}/manifests/{reference.version}", headers=accept, timeout=60).json()
    blobs = [
        requests.get(f"{url}/blobs/{descriptor['digest']}", timeout=60).content
        for descriptor in (manifest["config"], *manifest["layers"])
    ]
    for descriptor, blob in zip((manifest["config"], *manifest["layers"]), blobs, strict=True):
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(blob).hexdigest()}"
        assert descriptor["size"] == len(blob)
    return manifest, json.loads(blobs[0]), blobs[1:]


def names(layer: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return set(tar.getnames())


def test_the_code_and_stoker_are_one_layer_on_the_base(script: ScriptSpec, base: str, repository: str) -> None:
    pushed = ensure_image(script, base=base, repository=repository)
    _, _, below = fetched(base)
    _, config, layers = fetched(f"{repository}@{pushed.reference.digest}")
    assert layers[:-1] == below
    paths = names(layers[-1])
    assert {"app/train.py", "app/lib/model.py", "opt/stoker/stoker/supervise/__main__.py"} <= paths
    assert "opt/stoker/stoker/presets/chips.yaml" in paths
    assert not {name for name in paths if "__pycache__" in name}
    assert config["config"]["WorkingDir"] == "/app"
    assert "PYTHONPATH=/opt/stoker" in config["config"]["Env"]
    assert "PATH=/usr/local/bin:/usr/bin:/bin" in config["config"]["Env"]
    assert len(config["rootfs"]["diff_ids"]) == len(layers)
    assert pushed.code.inside(Path(script.script)) == "/app/train.py"


def test_a_rebuild_of_the_same_code_pushes_nothing(script: ScriptSpec, base: str, repository: str, registry) -> None:
    first = ensure_image(script, base=base, repository=repository)
    before = len(registry.writes())
    time.sleep(0.01)
    Path(script.script).touch()
    second = ensure_image(script, base=base, repository=repository)
    assert (second.reference, second.sent) == (first.reference, 0)
    assert first.sent > 0
    assert registry.writes()[before:] == []


def test_changed_code_sends_its_layer_and_nothing_else(
    script: ScriptSpec, base: str, repository: str, registry
) -> None:
    first = ensure_image(script, base=base, repository=repository)
    before = len(registry.writes())
    Path(script.script).write_text("print('changed')\n")
    second = ensure_image(script, base=base, repository=repository)
    assert second.reference.tag != first.reference.tag
    sent = [method for method, _, _ in registry.writes()[before:]]
    assert sorted(sent) == [
        "PATCH",
        "PATCH",
        "POST",
        "POST",
        "PUT",
        "PUT",
        "PUT",
    ]  # the layer, the config, the manifest


def test_the_bases_layers_are_mounted_not_copied(script: ScriptSpec, base: str, repository: str, registry) -> None:
    before = len(registry.writes())
    ensure_image(script, base=base, repository=repository)
    mounts = [status for _, path, status in registry.writes()[before:] if "mount=" in path]
    assert mounts == [201, 201, 201]


def test_a_base_of_another_registry_is_copied(script: ScriptSpec, base: str, serving, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with serving(tmp_path / "other") as other:
        pushed = ensure_image(script, base=base, repository=f"{other.name}/app")
        assert fetched(str(pushed.reference))[2][:-1] == fetched(base)[2]


def test_the_tag_depends_only_on_the_content(
    script: ScriptSpec, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with build(script, base=base) as built:
        first = (built.tag, built.digest)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "other-machine"))
    with build(script, base=base) as built:
        assert (built.tag, built.digest) == first


def test_a_workspace_is_added_to_the_working_directory_of_the_base(
    script: ScriptSpec, image, parts, repository: str, tmp_path: Path
) -> None:
    base = image(
        parts.os, parts.python, parts.packages(), config={"WorkingDir": "/workspace/bert", "Env": ["PYTHONPATH=/extra"]}
    )
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "dp_bert.py").write_text("")
    pushed = ensure_image(script, base=base, repository=repository, workspace=overlay)
    _, config, layers = fetched(str(pushed.reference))
    assert "workspace/bert/dp_bert.py" in names(layers[-1])
    assert config["config"]["WorkingDir"] == "/workspace/bert"
    assert "PYTHONPATH=/opt/stoker:/extra" in config["config"]["Env"]
    with pytest.raises(UserError, match="is not a folder"):
        ensure_image(script, base=base, repository=repository, workspace=tmp_path / "none")


YAML = metadata.version("pyyaml")  # what is installed here is what an image gets


def wheel(folder: Path, name: str, version: str, *, tag: str = "py3-none-any", needs: tuple[str, ...] = ()) -> None:
    info = f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"version = '{version}'\n")
        archive.writestr(f"{name}-{version}.data/scripts/{name}", "#!/bin/sh\n")
        archive.writestr(f"{name}-{version}.data/purelib/{name}/more.py", "")
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {need}" for need in needs),
        ]
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only source for pip."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


def test_missing_packages_are_added_as_wheels_that_fit_the_base(
    script: ScriptSpec, image, parts, repository: str, shelf: Path
) -> None:
    base = image(parts.os, parts.python, parts.packages(without=("pyyaml",)))
    wheel(shelf, "pyyaml", YAML, needs=("inner>=1", "pydantic>=2", "windows-only; sys_platform == 'win32'"))
    wheel(shelf, "inner", "1.5", tag="cp311-cp311-manylinux_2_28_x86_64", needs=("deepest<3; python_version < '3.12'",))
    wheel(shelf, "inner", "1.6", tag="cp311-cp311-manylinux_2_39_x86_64")  # too new for the base's glibc
    wheel(shelf, "inner", "1.7", tag="cp312-cp312-manylinux_2_28_x86_64")  # for another Python
    wheel(shelf, "deepest", "2.0")
    wheel(shelf, "deepest", "3.0")
    pushed = ensure_image(script, base=base, repository=repository)
    *_, added, _ = fetched(str(pushed.reference))[2]
    paths = names(added)
    assert {name for name in paths if name.endswith("METADATA")} == {
        f"opt/stoker/pyyaml-{YAML}.dist-info/METADATA",
        "opt/stoker/inner-1.5.dist-info/METADATA",
        "opt/stoker/deepest-2.0.dist-info/METADATA",
    }
    assert "opt/stoker/pyyaml/more.py" in paths
    assert not {name for name in paths if "scripts" in name or "bin" in name.split("/")}


def test_packages_are_fetched_once_and_the_result_has_all(
    script: ScriptSpec, image, parts, repository: str, shelf: Path
) -> None:
    base = image(parts.os, parts.python, parts.packages(without=("pyyaml",)))
    wheel(shelf, "pyyaml", YAML)
    first = ensure_image(script, base=base, repository=repository)
    (shelf / f"pyyaml-{YAML}-py3-none-any.whl").unlink()
    Path(script.script).write_text("print('changed')\n")
    assert ensure_image(script, base=base, repository=repository).sent > 0
    with build(script, base=str(first.reference)) as on_top:
        assert on_top.packages == ()


def test_a_package_without_a_wheel_for_the_base_is_named(script: ScriptSpec, image, parts, shelf: Path) -> None:
    base = image(parts.os, parts.python, parts.packages(without=("pyyaml",)))
    wheel(shelf, "pyyaml", YAML, tag="cp312-cp312-musllinux_1_2_x86_64")
    with (
        pytest.raises(UserError, match=r"no wheels of pyyaml.* for Python 3\.11 on glibc 2\.36"),
        build(script, base=base),
    ):
        pass


def test_a_pip_that_does_not_end_times_out(
    script: ScriptSpec, image, parts, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = image(parts.os, parts.python, parts.packages(without=("pyyaml",)))
    wheel(shelf, "pyyaml", YAML)
    monkeypatch.setattr(wheels, "PIP_TIMEOUT_S", 0.01)
    with (
        pytest.raises(UserError, match=r"pip has not downloaded pyyaml.*Check"),
        build(script, base=base),
    ):
        pass


@pytest.mark.parametrize("suffix", [":v1", ":latest", "@sha256:" + "0" * 64])
def test_a_tag_cannot_be_chosen(script: ScriptSpec, base: str, repository: str, suffix: str) -> None:
    with pytest.raises(UserError, match=f"Write {repository}$"):
        ensure_image(script, base=base, repository=repository + suffix)


def test_an_archive_contains_the_whole_image(script: ScriptSpec, base: str, tmp_path: Path) -> None:
    with build(script, base=base) as built:
        write_archive(built, "demo:1", tmp_path / "demo.tar", progress=lambda *_: None)
        digest, count = built.digest, len(built.base.layers) + 1
    with tarfile.open(tmp_path / "demo.tar") as tar:
        blobs = {member.name: tar.extractfile(member).read() for member in tar}
    for name, content in blobs.items():
        assert not name.startswith("blobs/") or name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    index = json.loads(blobs["index.json"])
    assert index["manifests"][0]["digest"] == digest
    manifest = json.loads(blobs[f"blobs/{digest.replace(':', '/')}"])
    assert len(manifest["layers"]) == count
    assert {f"blobs/{layer['digest'].replace(':', '/')}" for layer in manifest["layers"]} <= set(blobs)


def test_stoker_in_the_image_is_the_one_that_built_it(script: ScriptSpec, base: str, repository: str) -> None:
    pushed = ensure_image(script, base=base, repository=repository)
    layer = fetched(str(pushed.reference))[2][-1]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        inside = tar.extractfile("opt/stoker/stoker/__init__.py").read()
    assert inside == Path(installed.__file__).read_bytes()
