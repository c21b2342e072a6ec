"""Bad input: one line with the problem and a remedy, exit code 2, and no file changed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.api.opening import begin
from stoker.rundir import RunDir
from stoker.spec.load import load
from tests.waiting import PATIENCE_S

RUN_FILE = """\
name: tale
model: {layers: 1, heads: 1, width: 16, context: 16}
data: {path: book.txt, tokenizer: {train: 300}}
batch: {sequences: 2, length: 16}
until: {steps: 4}
on: {device: cpu, workers: 1}
"""
GOOD = '{"text": "It was a calm day."}\n'


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with valid and invalid data, and a run."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "book.txt").write_text("".join(f"It was day {i}, and the sea was calm.\n" for i in range(400)))
    (folder / "empty.txt").write_text("")
    (folder / "folder").mkdir()
    (folder / "short.txt").write_text("It was a day.\n" * 3)
    (folder / "binary.txt").write_bytes(b"\x7fELF\x02\x01\x00\x00" + bytes(range(256)) * 40)
    (folder / "latin.txt").write_bytes("Es war ein schöner Tag.\n".encode("latin-1") * 50)
    (folder / "bad.jsonl").write_text(GOOD * 6 + "It was a day.\n" + GOOD)
    (folder / "cut.txt.gz").write_bytes(b"\x1f\x8b\x08\x00 this is no gzip")
    (folder / "not.parquet").write_text("It was a day.\n" * 30)
    (folder / "list.yaml").write_text("- name: tale\n- seed: 3\n")
    (folder / "torn.yaml").write_text("name: [tale\n")
    (folder / "bomb.yaml").write_text(
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    )
    os.mkfifo(folder / "pipe.yaml")
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "tokens").mkdir()
    (folder / "tokens" / "train-0000-000000.bin").write_bytes(b"\0" * 64)
    begin(load(folder / "run.yaml", []).spec, runs=folder / "runs")
    return folder


@pytest.fixture
def unchanged(workdir: Path) -> Iterator[None]:
    """No file has changed, and no run was added."""
    before = contents(workdir)
    yield
    after = contents(workdir)
    assert {path: after.get(path) for path in before} == before
    assert sorted(path.name for path in (workdir / "runs").iterdir() if not path.name.startswith(".")) == ["tale"]


def contents(folder: Path) -> dict[Path, bytes]:
    cache, lock = folder / "runs" / ".prepared", folder / "runs" / "tale" / "lock"
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(cache) and path != lock)
    return {path: path.read_bytes() for path in files}


@pytest.fixture
def refusal(command, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The error of a command that is refused."""
    monkeypatch.chdir(workdir)
    return lambda *arguments: error_line(command(*arguments))


def error_line(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("stoker: ")
    assert ". " in line, f"no remedy: {line}"
    return line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        # keys and values
        (["optim.rl=1e-3"], ["optim.rl is unknown", "Did you mean optim.lr?"]),
        (["modle=gpt2-small"], ["modle", "Did you mean model?"]),
        (["batch.length=long"], ["batch.length", "'long' is not a count"]),
        (["until.time=3 parsecs"], ["until.time", "3 parsecs", "2h"]),
        (["optim.lr=nan"], ["optim.lr", "finite"]),
        (["optim.lr=0"], ["optim.lr is 0", "more than 0"]),
        (["batch.length=17"], ["batch.length 17 is more than model.context 16"]),
        (["model.heads=3"], ["width 16 is not a multiple of heads 3"]),
        (["name=../x"], ["name", "../x", "letters"]),
        (["checkpoint.every=[[0, 5]]"], ["checkpoint.every", "more than 0"]),
        (["seed=-1"], ["seed", "at least 0"]),
        (['env={"A=B": x}'], ["env: 'A=B'", "a name without ="]),
        (['env={"": x}'], ["env: ''", "a name without ="]),
        (["steps"], ["steps", "second run file"]),
        (["seed=" + "9" * 5000], ["a number of 5000 characters is too long"]),
        (["until.steps=1e18"], ["until.steps", "at most 1000000000000000"]),
        (["until.steps=" + "9" * 400 + "k"], ["until.steps", "is too large"]),
        (["model.width=1000000000"], ["model.width is 1000000000", "at most 1048576"]),
        (["on.workers=1000000000"], ["on.workers is 1000000000", "at most 1024"]),
        (["model={layers: " + "[" * 5000], ["nested deeper than 64 levels"]),
        (["name=" + "x" * 300], ["name cannot be", "up to 99 letters"]),
        (["name=a\nb"], ["name cannot be"]),
        (["data.path='a\0b'"], ["zero byte"]),
        (["data.path=\udcff.txt"], ["data.path is not UTF-8 text"]),
        (["precision=\udcff"], ["precision is not UTF-8 text"]),
        (["until.steps=\udcff\udcfe"], ["until.steps is not UTF-8 text"]),
        ([""], ["an argument is empty"]),
        (["base=pipe.yaml"], ["pipe.yaml is a pipe"]),
        # data
        (["data.path=pipe.yaml"], ["pipe.yaml is a pipe, not a regular file"]),
        (["data.path=/dev/zero"], ["/dev/zero is a device, not a regular file"]),
        (["data.path=loop.txt"], ["loop.txt", "symbolic links"]),
        (["data.tokenizer=-1"], ["'-1' is neither a folder nor a name on the hub"]),
        (["data.tokenizer={train: 99999999999999}"], ["data.tokenizer.train is 99999999999999", "at most 1048576"]),
        (["data.path=gone.txt"], ["gone.txt does not exist", "data.path"]),
        (["data.path=gone/*.txt"], ["gone/*.txt"]),
        (["data.path=empty.txt"], ["empty.txt is empty"]),
        (["data.path=folder"], ["folder", "no text"]),
        (["data.path=binary.txt"], ["binary.txt"]),
        (["data.path=latin.txt"], ["latin.txt", "UTF-8"]),
        (["data.path=bad.jsonl"], ["bad.jsonl", "line 7", "data.skip_bad=true"]),
        (["data.path=cut.txt.gz"], ["cut.txt.gz", "gz"]),
        (["data.path=not.parquet"], ["not.parquet", "Parquet"]),
        (["data.path=tokens"], ["tokens"]),
        (["data.path=short.txt", "batch.sequences=100"], ["tokens, less than one batch of 100 × 16 = 1600", "batch"]),
        (["data.tokenizer=./gone"], ["gone"]),
        (["model.vocab=100"], ["model.vocab is 100", "the tokenizer has 300 tokens", "from 300 to 384"]),
        (["model.vocab=1000"], ["model.vocab is 1000", "the tokenizer has 300 tokens"]),
        # places
        (["on.device=cuda"], ["on.device", "GPU"]),
        (["--runs", "book.txt/runs"], ["book.txt"]),
        (["--runs", ""], ["the folder of the runs has an empty name"]),
        (["data.path=."], ["is inside its data", "--runs DIR"]),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_mistake_in_a_new_run_is_one_line_and_creates_no_run(
    refusal: Callable[..., str], arguments: list[str], parts: list[str]
) -> None:
    line = refusal("train", "run.yaml", "name=new", *arguments)
    assert [part for part in parts if part not in line] == [], line


@pytest.mark.parametrize(
    "argument",
    [
        "data.path=https://user:hush@host/x",
        "data.path=[book.txt, ftp://user:hush@host/x]",
        "data.mix=[{path: book.txt, weight: 1}, {path: s3://user:hush@bucket/x, weight: 1}]",
        "data.tokenizer=https://user:hush@host/x",
        "init=https://user:hush@host/x",
        "on.image=user:hush@registry.example/team/app",
        "on.registry=https://user:hush@registry.example/team",
        "--runs=s3://user:hush@bucket/runs",
        "--runs=https://user:hush@host/runs",
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_password_in_an_address_is_refused_and_not_shown(command, workdir: Path, monkeypatch, argument: str) -> None:
    monkeypatch.chdir(workdir)
    done = command("train", "run.yaml", "name=new", argument)
    assert "hush" not in done.stdout + done.stderr
    assert done.stdout == ""
    error_line(done)


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("gone.yaml", ["there is no file gone.yaml"]),
        ("~no-such-user/run.yaml", ["there is no file ~no-such-user/run.yaml"]),
        ("folder", ["folder"]),
        ("binary.txt", ["binary.txt"]),
        ("list.yaml", ["list.yaml"]),
        ("torn.yaml", ["torn.yaml", "not YAML"]),
        ("bomb.yaml", ["bomb.yaml:5", "it holds more than 50,000 values"]),
        ("pipe.yaml", ["pipe.yaml is a pipe"]),
        ("loop.txt", ["loop.txt", "symbolic links"]),
        ("/dev/zero", ["/dev/zero is a device"]),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_an_invalid_run_file_is_named(refusal: Callable[..., str], file: str, parts: list[str]) -> None:
    line = refusal("train", file)
    assert [part for part in parts if part not in line] == [], line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["seed=5", "optim.lr=1e-5"], ["run 'tale'", "seed: 0 -> 5", "optim.lr: 0.0006 -> 1e-05", "--new"]),
        (["model.width=32"], ["model.width: 16 -> 32", "--new"]),
        (["data.path=short.txt"], ["run 'tale'", "data", "--new"]),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_spec_of_another_run_is_refused_with_the_difference(
    refusal: Callable[..., str], arguments: list[str], parts: list[str]
) -> None:
    line = refusal("train", "run.yaml", *arguments)
    assert [part for part in parts if part not in line] == [], line


def test_a_locked_run_is_refused_with_the_process(workdir: Path) -> None:
    argv = [str(Path(sys.executable).with_name("stoker")), "train", "run.yaml"]
    with RunDir(workdir / "runs" / "tale").lock():
        done = subprocess.run(argv, cwd=workdir, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    line = error_line(done)
    assert f"process {os.getpid()}" in line
    assert "stoker stop tale" in line


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("spec.yaml", "seed: [1"),
        ("spec.yaml", "seeds: 1"),
        ("spec.yaml", "\udcff"),
        ("data.json", "{"),
        ("data.json", None),
    ],
)
def test_a_damaged_run_directory_is_refused(
    tmp_path: Path, workdir: Path, refusal: Callable[..., str], file: str, content: str | None
) -> None:
    run = begin(load(workdir / "run.yaml", []).spec, runs=tmp_path).run
    (run.path / file).unlink()
    if content is not None:
        (run.path / file).write_bytes(content.encode(errors="surrogateescape"))
    assert f"{run.path / file} is missing or damaged" in refusal("train", "run.yaml", "--runs", str(tmp_path))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be written to, not even by root."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        yield folder
        return
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "none", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a read-only disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("verb", ["train", "prepare"])
@pytest.mark.usefixtures("unchanged")
def test_a_folder_that_cannot_be_written_is_named(refusal: Callable[..., str], read_only: Path, verb: str) -> None:
    arguments = {
        "train": ["run.yaml", "--runs", str(read_only / "runs")],
        "prepare": ["book.txt", "-o", str(read_only / "o")],
    }
    assert str(read_only) in refusal(verb, *arguments[verb])


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "audit"])
@pytest.mark.usefixtures("unchanged")
def test_an_unknown_run_is_refused_with_a_similar_name(refusal: Callable[..., str], verb: str) -> None:
    line = refusal(verb, "tail")
    assert "tail" in line
    assert "tale" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "name=a", "until.steps=1", "data=book.txt", "data.tokenizer=~no-such-user/tokenizer"],
        ["train", "run.yaml", "--dry-run"],
        ["init", "~no-such-user/books", "-o", "new.yaml"],
        ["status", "a", "--runs", "~no-such-user/runs"],
    ],
)
def test_the_home_of_an_unknown_user_is_a_missing_path(stoker: Any, arguments: list[str]) -> None:
    (stoker.folder / "book.txt").write_text("a few words\n" * 100)
    (stoker.folder / "run.yaml").write_text("base: ~no-such-user/base.yaml\nname: a\ndata: book.txt\n")
    assert "~no-such-user" in stoker(*arguments, code=2).stderr
