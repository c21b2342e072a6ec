"""Completion scripts, in the shells that are installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.main import VERBS, main

ASK = """\
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_stoker
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    with pytest.MonkeyPatch.context() as patch:
        for shell in ("bash", "zsh", "fish"):
            with open(folder / shell, "w") as file:
                patch.setattr("sys.stdout", file)
                assert main(["completion", shell]) == 0
    return folder


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    for name in ("runs/tale", "runs/tale-2", "runs/other", "elsewhere/far"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "spec.yaml").touch()
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "run.yaml").touch()
    return tmp_path


def completions(scripts: Path, workdir: Path, *words: str) -> list[str]:
    """The completions of the last word."""
    command = ["bash", "--norc", "-c", ASK, "bash", str(scripts / "bash"), "stoker", *words]
    done = subprocess.run(command, cwd=workdir, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return sorted(done.stdout.split())


def test_bash_completes_every_verb(scripts: Path, workdir: Path) -> None:
    assert completions(scripts, workdir, "") == sorted(VERBS)
    assert completions(scripts, workdir, "sta") == ["status"]


def test_bash_completes_the_options_of_a_verb(scripts: Path, workdir: Path) -> None:
    assert completions(scripts, workdir, "logs", "tale", "--") == sorted(
        ["--help", "--runs", "--rank", "--all", "--follow", "--tail", "--since", "--json", "--trust"]
    )
    assert completions(scripts, workdir, "train", "--dry") == ["--dry-run"]


def test_bash_completes_the_names_of_runs(scripts: Path, workdir: Path) -> None:
    assert completions(scripts, workdir, "logs", "ta") == ["tale", "tale-2"]
    assert completions(scripts, workdir, "stop", "--runs", "elsewhere", "") == ["far"]
    assert completions(scripts, workdir, "status", "-f", "runs/o") == ["runs/other"]


def test_bash_completes_files_where_a_verb_takes_them(scripts: Path, workdir: Path) -> None:
    assert completions(scripts, workdir, "train", "run") == ["run.yaml", "runs"]
    assert completions(scripts, workdir, "launch", "t") == ["tale", "tale-2"]
    assert completions(scripts, workdir, "launch", "run.") == ["run.yaml"]
    assert completions(scripts, workdir, "logs", "--runs", "else") == ["elsewhere"]
    assert completions(scripts, workdir, "completion", "") == ["bash", "fish", "zsh"]


def test_the_command_is_completed_by_its_function(scripts: Path) -> None:
    code = f"source {scripts / 'bash'}; complete -p stoker"
    assert subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True).stdout == (
        "complete -F _stoker stoker\n"
    )


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_their_script(scripts: Path, shell: str) -> None:
    text = (scripts / shell).read_text()
    assert all(verb in text for verb in VERBS)
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", str(scripts / shell)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_every_verb_is_completed_without_the_extras(tmp_path: Path) -> None:
    for name in ("pyarrow", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from stoker.cli.main import main\n"
        "sys.exit(main(['completion', 'bash']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'logs) takes="runs" flags="-h --help --runs --rank' in done.stdout
    assert all(f" {verb} " in done.stdout.replace('"', " ") for verb in VERBS)
