"""Text from outside is escaped in a terminal, and a command works with closed, full or ASCII streams."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.screen import own, printable, safe

SRC = Path(__file__).parents[2] / "src" / "stoker"
EVIL = "a\x1b]0;title\x07\x1b[2Jb\u202ec\x9b31m\r"
PLAIN = r"a\x1b]0;title\x07\x1b[2Jb\u202ec\x9b31m\x0d"


def test_control_characters_are_escaped_and_text_in_any_language_is_not() -> None:
    assert printable(EVIL) == PLAIN
    text = "日本\u3000語 می\u200cخواهم 👩\u200d🚀 é\tx\n"
    assert printable(text) == text
    assert printable(PLAIN) == PLAIN
    assert printable("half \udcff") == r"half \udcff"


def test_only_stokers_own_control_sequences_are_not_escaped() -> None:
    assert safe(own("\x1b[32m") + "\x1b[31mdone" + own("\x1b[0m")) == "\x1b[32m" + r"\x1b[31mdone" + "\x1b[0m"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("get https://user:secret@host/a now", "get https://***@host/a now"),
        ("https://user:p@ss@host/a", "https://***@host/a"),
        ("HTTPS_PROXY=http://token@proxy:3128", "HTTPS_PROXY=http://***@proxy:3128"),
        ("hf://datasets/owner/name@main and a@b.example", "hf://datasets/owner/name@main and a@b.example"),
        ('["https://host/a", "user@host"]', '["https://host/a", "user@host"]'),
    ],
)
def test_a_url_is_shown_without_user_and_password(text: str, expected: str) -> None:
    assert safe(text) == expected


def test_names_in_messages_are_escaped_and_take_one_line(command, tmp_path: Path) -> None:
    name = "evil\x1b[31m\nname.yaml"
    (tmp_path / name).write_text("data: [\n")
    (tmp_path / "data.jsonl").write_text(json.dumps({EVIL: "x"}))
    for arguments in (
        ["train", name],
        ["train", "gone\x1b[2J.yaml"],
        ["status", "run\x1b]0;x\x07"],
        ["prepare", "data.jsonl", "-o", "out"],
        ["prepare", "no\x1b[31m.txt", "-o", "out"],
        ["\x1b[31mverb"],
        ["help", "\x1b[31mverb"],
    ):
        done = command(*arguments)
        assert done.returncode == 2, done
        assert done.stderr.count("\n") == 1
        assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr) is None


def test_a_file_name_is_not_read_as_markup(terminal, tmp_path: Path) -> None:
    (tmp_path / "[bold]\x1b[2J").mkdir()
    (tmp_path / "[bold]\x1b[2J" / "a.txt").write_text("It was a day.\n" * 50)
    arguments = ["prepare", "[bold]\x1b[2J", "-o", "[red]out\x1b[2J", "--tokenizer", "300"]
    done = terminal(*arguments, COLUMNS="200")
    output = done.read()
    assert done.process.wait() == 0, output
    assert r"[red]out\x1b[2J" in output
    assert "\x1b[2J" not in output


def test_logs_keep_colours_in_a_terminal_and_every_byte_in_a_pipe(command, terminal, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "tale"
    (run / "logs").mkdir(parents=True)
    (run / "spec.yaml").write_text("{}")
    (run / "logs" / "rank-0.log").write_text("\x1b[31mred\x1b[2J https://u:p@h/\n")
    assert command("logs", "tale").stdout == "\x1b[31mred\x1b[2J https://u:p@h/\n"
    assert terminal("logs", "tale").read() == "\x1b[31mred\\x1b[2J https://***@h/\x1b[0m\r\n"


def stoker(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "stoker", *arguments]
    return subprocess.run(argv, check=False, text=True, **{"capture_output": True, **options})  # type: ignore[call-overload]


def close_all() -> None:
    for descriptor in (0, 1, 2):
        os.close(descriptor)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A folder with the run file of a script that ends at once."""
    (tmp_path / "work.py").write_text("print('hello')\n")
    (tmp_path / "work.yaml").write_text("script: work.py\non: {workers: 1, device: cpu, max_restarts: 0}\n")
    return tmp_path


def test_a_run_finishes_with_all_streams_closed(workdir: Path) -> None:
    done = stoker("train", "work.yaml", cwd=workdir, preexec_fn=close_all, capture_output=False)
    assert done.returncode == 0
    assert json.loads((workdir / "runs" / "work" / "exit.json").read_text())["state"] == "done"
    assert (workdir / "runs" / "work" / "logs" / "rank-0.log").read_text().count("hello") == 1


def test_a_run_finishes_if_its_output_cannot_be_written(workdir: Path) -> None:
    with open("/dev/full", "w") as full:
        done = stoker("train", "work.yaml", cwd=workdir, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((workdir / "runs" / "work" / "exit.json").read_text())["state"] == "done"


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = stoker("presets", capture_output=False, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "stoker: writing: No space left on device. Free some disk space, then run it again\n"


def test_a_terminal_may_have_any_encoding(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = stoker("--help", env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert stoker("train", "größe.yaml", env=environment, cwd=tmp_path).stderr.startswith(
        r"stoker: there is no file gr\xf6\xdfe.yaml"
    )


def test_a_deleted_current_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from stoker.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (["ps"], ["train", "run.yaml"]):
        (tmp_path / "gone").mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path / "gone", capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stderr == "stoker: the current folder no longer exists. Change to one that does: cd ~\n"


def calls(path: Path) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def test_every_console_is_a_safe_console() -> None:
    assert [path.name for path in SRC.rglob("*.py") if "Console" in calls(path)] == []
