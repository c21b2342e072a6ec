import subprocess
import sys
from pathlib import Path

import pytest

from stoker import __version__
from stoker.cli.main import VERBS, main
from stoker.spec.errors import UserError


def test_help_lists_every_verb_and_imports_nothing_heavy() -> None:
    code = "import sys; from stoker.cli.main import main; main(['--help']); print(*sorted(sys.modules))"
    *text, modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert all(any(line.startswith(f"  {verb} ") for line in text) for verb in VERBS)
    heavy = {"pydantic", "yaml", "rich", "numpy", "torch", "pyarrow", "tokenizers"}
    assert heavy.isdisjoint(modules.split())


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"stoker {verb}" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stoker {__version__}\n"


def test_an_unknown_verb_is_refused_with_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == 2
    assert capsys.readouterr().err == "stoker: 'statsu' is not a verb. Did you mean status?\n"


def test_a_users_mistake_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["train", str(tmp_path / "none.yaml")],
        ["train"],
        ["train", "data=x", "until.stepz=3"],
        ["logs", "x"],
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("stoker: ")
        assert captured.err.count("\n") == 1


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    run = tmp_path / "tale"
    (run / "logs").mkdir(parents=True)
    (run / "spec.yaml").write_text("{}")
    (run / "logs" / "rank-0.log").write_text("x" * 80 + "\n" + "a line\n" * 100_000)
    code = "import sys; from stoker.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "logs", str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb_is_its_usage(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", verb])
    assert capsys.readouterr().out.startswith(f"usage: stoker {verb} ")


def test_a_problem_that_ends_a_sentence_gets_no_second_full_stop(capsys: pytest.CaptureFixture[str]) -> None:
    for problem, line in (("who?", "who? Do it"), ("no.", "no. Do it"), ("no", "no. Do it"), ("a\nb", "a\\nb. Do it")):
        assert str(UserError(problem, remedy="Do it")) == line
    assert main(["train"]) == 2
    assert capsys.readouterr().err == (
        "stoker: train needs a run file. Write: stoker train RUN.yaml. "
        "If you have none, create one with: stoker init DATA\n"
    )


@pytest.mark.parametrize(
    "arguments", [["train", "x" * 5000], ["status", "x" * 5000], ["prepare", "x" * 5000, "-o", "o"]]
)
def test_a_file_name_that_is_too_long_is_reported(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert "File name too long. C" in line
    assert len(line) < 400
