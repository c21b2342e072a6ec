"""An image with this machine's own Python runs without a container tool."""

import ast
import gzip
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stoker.cli.image import ONE_WORKER
from stoker.image.build import build
from stoker.image.contents import Unpacked
from stoker.image.reference import parse
from stoker.image.requirements import applies, needs
from stoker.image.rootfs import unpack, unpack_layer
from stoker.spec.errors import UserError
from stoker.spec.run import ScriptSpec

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo", "site-packages", "__pycache__"}


def libraries(*programs: Path) -> set[Path]:
    output = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    fields = {
        field
        for line in output.splitlines()
        for field in line.split()
        if field.startswith("/") and not field.endswith(":")
    }
    return {Path(field) for field in fields}


def packages_of(names: set[str]) -> set[str]:
    """These packages and their dependencies."""
    closure: set[str] = set()
    while fresh := names - closure:
        closure |= fresh
        lines = [Requirement(line) for name in fresh for line in metadata.requires(name) or []]
        names = closure | {line.name for line in lines if applies(line, ())}
    return closure


def own_python() -> bytes:
    """A layer with this Python, its libraries, and what Stoker needs."""
    packed = io.BytesIO()
    program = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib"))
    dynamic = list((library / "lib-dynload").glob("*.so"))
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(program, f"usr/local/bin/python{VERSION}")
        link = tarfile.TarInfo("usr/local/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, f"python{VERSION}"
        tar.addfile(link)
        keep = lambda info: None if LEFT_OUT & set(info.name.split("/")) or "/config-" in info.name else info  # noqa: E731
        tar.add(library, f"usr/local/lib/python{VERSION}", filter=keep)
        debian = "deb_system" in sysconfig.get_scheme_names()
        site_folder = "dist-packages" if debian else "site-packages"
        site = f"usr/local/lib/python{VERSION}/{site_folder}"
        for name in packages_of({need.name for need in needs(ScriptSpec(script="x.py"))}):
            for file in metadata.files(name) or []:
                if file.suffix in (".py", ".so") or file.name == "METADATA":
                    tar.add(file.locate(), f"{site}/{file}")
                dynamic += [Path(str(file.locate()))] * (file.suffix == ".so")
        for library_file in libraries(program, *dynamic):
            tar.add(os.path.realpath(library_file), str(library_file).lstrip("/"))
        about = b"Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n"
        info = tarfile.TarInfo(f"{site}/torch-2.11.0.dist-info/METADATA")
        info.size = len(about)
        tar.addfile(info, io.BytesIO(about))
    return gzip.compress(packed.getvalue(), 1, mtime=0)


def can_create_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    spaces = ["--mount", "--pid", "--fork"] + (["--user", "--map-root-user"] if os.geteuid() else [])
    return subprocess.run(["unshare", *spaces, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_create_namespaces(), reason="namespaces cannot be created here")
def test_an_image_runs_here_without_a_container_tool(
    stoker, registry, pushing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not _has_tool(p)))
    traps = tmp_path / "traps"
    traps.mkdir()
    for name in ("unshare", "mount", "sh", "mkdir", "env"):
        (traps / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/trapped\n")
        (traps / name).chmod(0o755)
    inside = {"Env": [f"PATH={traps}:/usr/local/bin", "LD_LIBRARY_PATH=/none", "LC_ALL=C.UTF-8"]}
    monkeypatch.setenv("OF_THIS_MACHINE", "1")
    base = pushing(registry, [own_python()], repository="bases/own-python", config=inside)
    (tmp_path / "helper.py").write_text("word = 'here'\n")
    (tmp_path / "train.py").write_text(
        "import os, sys, helper, stoker, yaml\n"
        "from stoker.supervise import supervisor\n"
        "print(helper.word, sys.argv[1:], os.getcwd(), os.environ['RANK'], os.environ['COLOUR'], stoker.__file__)\n"
        "print(sorted(os.environ))\n"
        "open('/made-inside', 'w').write('x')\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "run.yaml").write_text("script: train.py\nargs: [--steps, '3']\nenv: {COLOUR: blue}\n")
    done = stoker("image", "run", "run.yaml", "--base", base, code=7)
    first, second = done.stdout.splitlines()
    assert first == "here ['--steps', '3'] /app 0 blue /opt/stoker/stoker/__init__.py"
    image = ["PATH", "LD_LIBRARY_PATH", "LC_ALL", "PYTHONPATH", "COLOUR"]
    assert ast.literal_eval(second) == sorted([*image, *ONE_WORKER])
    assert f"$ {shutil.which('unshare')} --mount" in done.stderr
    assert not Path("/made-inside").exists()
    assert not (tmp_path / "trapped").exists()


def _has_tool(folder: str) -> bool:
    return any((Path(folder) / tool).exists() for tool in ("docker", "podman")) and folder != "/usr/bin"


def layer(**members: tuple[bytes, str]) -> Unpacked:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (kind, target) in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return Unpacked(iter([packed.getvalue()]), "a layer")


def test_a_layer_cannot_write_outside_its_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    for members in (
        {"../outside/a": (tarfile.REGTYPE, "")},
        {"x": (tarfile.SYMTYPE, str(outside)), "x/a": (tarfile.REGTYPE, "")},
        {"y": (tarfile.SYMTYPE, "../outside"), "y/.wh.keep": (tarfile.REGTYPE, "")},
    ):
        (outside / "keep").write_text("")
        with pytest.raises(UserError, match="points outside the image"):
            unpack_layer(root, layer(**members))
        assert os.listdir(outside) == ["keep"]


@pytest.mark.parametrize("target", ["../outside/keep", "out/keep", "x/../../outside/keep"])
def test_a_hard_link_to_a_file_of_this_machine_is_refused(tmp_path: Path, target: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "keep").write_text("")
    (outside / "keep").chmod(0o600)
    members = {"out": (tarfile.SYMTYPE, str(outside)), "x": (tarfile.DIRTYPE, ""), "a": (tarfile.LNKTYPE, target)}
    with pytest.raises(UserError, match="points outside the image"):
        unpack_layer(root, layer(**members))
    assert (outside / "keep").stat().st_nlink == 1
    assert (outside / "keep").stat().st_mode & 0o777 == 0o600


def test_a_hard_link_is_the_same_file_of_the_image(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.write_text("")
    outside.chmod(0o600)
    members = {
        "d/a": (tarfile.REGTYPE, ""),
        "e/b": (tarfile.LNKTYPE, "/d/a"),
        "link": (tarfile.SYMTYPE, str(outside)),
        "again": (tarfile.LNKTYPE, "link"),
    }
    unpack_layer(root, layer(**members))
    assert (root / "e" / "b").samefile(root / "d" / "a")
    assert os.readlink(root / "again") == str(outside)
    assert outside.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match=r"is not a readable layer.* c is a hard link to none, which does not exist"):
        unpack_layer(root, layer(c=(tarfile.LNKTYPE, "none")))


@pytest.mark.parametrize("name", ["..", "d/..", ".", ".wh...", "d/.wh...", ".wh.."])
def test_a_layer_cannot_delete_files_outside_the_image(tmp_path: Path, name: str) -> None:
    (tmp_path / "root" / "d").mkdir(parents=True)
    with pytest.raises(UserError, match="points outside the image"):
        unpack_layer(tmp_path / "root", layer(**{name: (tarfile.REGTYPE, "")}))
    assert (tmp_path / "root" / "d").is_dir()


def test_a_damaged_layer_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(2000))
    for content in (b"junk" * 1000, whole, whole[:-600], b"\x28\xb5\x2f\xfdjunk"):
        with pytest.raises(UserError, match=r"a layer is not a readable layer: .*Push that image again"):
            unpack_layer(tmp_path, Unpacked(iter([content]), "a layer"))


def test_an_image_with_a_wrong_layer_is_not_run(
    script: ScriptSpec, base: str, image, parts, lying, tmp_path: Path
) -> None:
    with build(script, base=base) as built:
        elsewhere = replace(built.base, reference=parse(lying(base, image(parts.packages(torch="2.99.0")))))
        with pytest.raises(UserError, match=r"returned other content than bases/\w+@sha256:"):
            unpack(replace(built, base=elsewhere), tmp_path / "root", progress=lambda *_: None)


def test_layers_replace_and_delete(tmp_path: Path) -> None:
    folder = {
        "d": (tarfile.DIRTYPE, ""),
        "d/a": (tarfile.REGTYPE, ""),
        "d/b": (tarfile.REGTYPE, ""),
        "f": (tarfile.REGTYPE, ""),
    }
    unpack_layer(tmp_path, layer(**folder))
    unpack_layer(tmp_path, layer(**{"d/.wh.a": (tarfile.REGTYPE, ""), "f": (tarfile.SYMTYPE, "d/b")}))
    assert sorted(os.listdir(tmp_path / "d")) == ["b"]
    assert os.readlink(tmp_path / "f") == "d/b"
    unpack_layer(tmp_path, layer(**{"d/.wh..wh..opq": (tarfile.REGTYPE, "")}))
    assert os.listdir(tmp_path / "d") == []
