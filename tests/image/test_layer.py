import gzip
import os
import re
import tarfile
from pathlib import Path

import pytest

from stoker.image.code import MAX_BYTES, collect
from stoker.image.layer import write_layer
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.run import RunSpec, ScriptSpec, Until


def names(spec: ScriptSpec | RunSpec) -> set[str]:
    return {entry.name for entry in collect(spec).entries}


def test_the_same_content_is_the_same_bytes_whenever_it_was_written(script: ScriptSpec, tmp_path: Path) -> None:
    first = write_layer(collect(script).entries, tmp_path / "1")
    for path in Path(script.script).parent.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    second = write_layer(reversed(collect(script).entries), tmp_path / "2")
    assert (first.digest, first.diff_id, first.size) == (second.digest, second.diff_id, second.size)
    Path(script.script).write_text("print('other')\n")
    assert write_layer(collect(script).entries, tmp_path / "3").diff_id != first.diff_id


def test_modes_links_and_empty_folders_survive(script: ScriptSpec, tmp_path: Path) -> None:
    folder = Path(script.script).parent
    (folder / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "config").symlink_to("lib/model.py")
    (folder / "shared").symlink_to("lib")
    (folder / "empty").mkdir()
    (folder / ("deep" * 30)).mkdir()
    (folder / ("deep" * 30) / ("long" * 40)).write_text("x")
    layer = write_layer(collect(script).entries, tmp_path / "layer")
    with tarfile.open(layer.path) as tar:
        members = {member.name: member for member in tar}
    assert members["app/tool.sh"].mode == 0o755
    assert members["app/train.py"].mode == 0o644
    assert members["app/config"].linkname == "lib/model.py"
    assert members["app/shared"].issym()
    assert members["app/empty"].isdir()
    assert f"app/{'deep' * 30}/{'long' * 40}" in members
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members.values()} == {
        (0, 0, "", 315532800)
    }
    assert layer.size == layer.path.stat().st_size
    assert len(gzip.decompress(layer.path.read_bytes())) % 512 == 0


def test_files_that_are_not_code_are_left_out(script: ScriptSpec) -> None:
    folder = Path(script.script).parent
    for name in (".git/config", "__pycache__/x.pyc", "runs/demo/spec.yaml", "env/pyvenv.cfg", "env/bin/python", ".env"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "lib" / "runs").mkdir()
    assert names(script) == {"app", "app/train.py", "app/lib", "app/lib/model.py", "app/lib/runs"}


def test_ignore_files_work_as_in_docker(script: ScriptSpec) -> None:
    folder = Path(script.script).parent
    for name in ("a.log", "lib/b.log", "keep.log", "data/x.bin", "data/keep.txt", "out1", "sub/out1"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".dockerignore").write_text("# comment\n**/*.log\n!keep.log\nout?\n")
    (folder / ".stokerignore").write_text("data\n!data/keep.txt\n.*ignore\n")
    kept = names(script) - {"app", "app/train.py", "app/lib", "app/lib/model.py"}
    assert kept == {"app/keep.log", "app/data/keep.txt", "app/sub", "app/sub/out1"}


def test_an_ignore_file_in_another_encoding_is_read(script: ScriptSpec) -> None:
    folder = Path(script.script).parent
    (Path(os.fsdecode(os.fsencode(folder) + b"/na\xefve"))).write_text("x")
    (folder / ".stokerignore").write_bytes(b".stokerignore\nna\xefve\n")
    assert names(script) == {"app", "app/train.py", "app/lib", "app/lib/model.py"}


def test_a_secret_in_the_home_of_an_unknown_user_is_left_to_the_launch(script: ScriptSpec) -> None:
    spec = script.model_copy(update={"secrets": {"KEY": "file:~no-such-user/key"}})
    assert names(spec) == names(script)


def test_a_secrets_file_is_never_in_an_image(script: ScriptSpec) -> None:
    folder = Path(script.script).parent
    (folder / "key [1].txt").write_text("hunter2")
    (folder / ".env").write_text("hunter2")
    (folder / ".stokerignore").write_text("!.env\n!key*\n")
    spec = script.model_copy(update={"secrets": {"KEY": f"file:{folder / 'key [1].txt'}"}})
    assert not {name for name in names(spec) if "key" in name or name.endswith(".env")}


@pytest.mark.parametrize("by_link", ["code", "secret"])
def test_a_secrets_file_that_a_link_leads_to_is_never_in_an_image(
    script: ScriptSpec, tmp_path: Path, by_link: str
) -> None:
    folder = Path(script.script).parent
    (folder / "key.txt").write_text("hunter2")
    (tmp_path / "link").symlink_to(folder)
    code, secret = (tmp_path / "link", folder) if by_link == "code" else (folder, tmp_path / "link")
    spec = ScriptSpec(script=str(code / "train.py"), secrets={"KEY": f"file:{secret / 'lib' / '..' / 'key.txt'}"})
    assert names(spec) == {"app", "app/train.py", "app/lib", "app/lib/model.py"}


@pytest.mark.parametrize("pattern", ["[z-a]", "[!]"])
def test_an_invalid_pattern_is_named(script: ScriptSpec, pattern: str) -> None:
    (Path(script.script).parent / ".dockerignore").write_text(f"{pattern}\n")
    with pytest.raises(UserError, match=rf"'{re.escape(pattern)}' is not a pattern: .*Fix that line of \.dockerignore"):
        collect(script)


def test_a_folder_of_data_is_refused_and_named(script: ScriptSpec) -> None:
    folder = Path(script.script).parent
    (folder / "corpus").mkdir()
    with open(folder / "corpus" / "big.bin", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UserError, match=r"200 MB .*most in corpus.*echo corpus >> .*\.stokerignore"):
        collect(script)
    (folder / ".stokerignore").write_text("corpus\n")
    assert collect(script).size < 1000


def test_the_command_that_excludes_a_folder_is_quoted(script: ScriptSpec) -> None:
    folder = Path(script.script).parent / "my corpus"
    folder.mkdir()
    with open(folder / "big.bin", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UserError, match=r"echo 'my corpus' >> "):
        collect(script)


def test_a_script_that_only_the_base_has_adds_no_folder() -> None:
    assert collect(ScriptSpec(script="/fsdp/train.py")).folder is None


def test_a_home_folder_does_not_go_into_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UserError, match="Move it into a folder of its own"):
        collect(ScriptSpec(script=str(tmp_path / "train.py")))


def test_a_models_own_code_comes_with_its_folder_and_without_its_data(mine, tmp_path: Path) -> None:
    name = mine("class Net: ...\n")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("text")
    spec = RunSpec(model=Model(family=f"{name}:Net"), data=Data(path=str(tmp_path / "books")), until=Until(steps=1))
    code = collect(spec)
    assert code.folder == tmp_path
    assert {entry.name for entry in code.entries} == {"app", f"app/{name}.py"}


def test_a_model_of_stoker_has_no_code_of_the_user(tmp_path: Path) -> None:
    code = collect(RunSpec(data=Data(path=str(tmp_path)), until=Until(steps=1)))
    assert (code.folder, code.size) == (None, 0)


def test_a_file_of_the_folder_has_a_path_in_the_image(script: ScriptSpec) -> None:
    code = collect(script)
    assert code.inside(Path(script.script)) == "/app/train.py"
    assert code.inside(Path("/elsewhere/train.py")) is None
