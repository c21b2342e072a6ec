"""Code of the user's own: found without being run, and every mistake in it told in one line."""

import sys
from pathlib import Path

import pytest

from stoker.spec.code import check_code, explain, is_code, load_code
from stoker.spec.errors import UserError

MARK = "from pathlib import Path\nPath('imported').touch()\n"


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("mine:build", True),
        ("pkg.mod:build", True),
        ("gpt2", False),
        ("./books", False),
        ("s3://bucket/x", False),
        ("mine:", False),
        (":build", False),
        ("a b:c", False),
    ],
)
def test_code_is_a_module_a_colon_and_a_name(word: str, answer: bool) -> None:
    assert is_code(word) is answer


def test_a_module_of_this_folder_is_loaded(mine) -> None:
    name = mine("def build():\n    return 7\n")
    assert load_code(f"{name}:build", "model.family")() == 7


def test_installed_modules_come_before_those_of_this_folder(mine, tmp_path: Path) -> None:
    mine("")
    (tmp_path / "json.py").write_text("raise RuntimeError('this one is not meant')")
    check_code("json:dumps", "callbacks")
    assert load_code("json:dumps", "callbacks")([]) == "[]"


def test_checking_imports_neither_the_module_nor_the_package_around_it(mine, tmp_path: Path) -> None:
    name = mine(f"{MARK}def build(): ...\n")
    (tmp_path / f"{name}_package").mkdir()
    (tmp_path / f"{name}_package" / "__init__.py").write_text(MARK)
    (tmp_path / f"{name}_package" / "inner.py").write_text(f"{MARK}class Build: ...\n")
    check_code(f"{name}:build", "model.family")
    check_code(f"{name}_package.inner:Build", "model.family")
    assert not (tmp_path / "imported").exists()
    assert name not in sys.modules
    assert f"{name}_package" not in sys.modules


def test_folders_without_an_init_are_packages_too(mine, tmp_path: Path) -> None:
    name = mine("")
    (tmp_path / f"{name}_a" / "b").mkdir(parents=True)
    (tmp_path / f"{name}_a" / "b" / "c.py").write_text("def build(): ...\n")
    check_code(f"{name}_a.b.c:build", "model.family")
    assert callable(load_code(f"{name}_a.b.c:build", "model.family"))


@pytest.mark.parametrize(
    "text",
    [
        "build = lambda: 1",
        "build: object = 1",
        "try:\n    import json as build\nexcept ImportError:\n    build = None",
        "if True:\n    def build(): ...",
        "from json import dumps as build",
        "from json import *",
        "def __getattr__(name): return 1",
        "for build in range(3): pass",
    ],
)
def test_a_name_may_come_about_in_many_ways(mine, text: str) -> None:
    check_code(f"{mine(text)}:build", "model.family")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("def other(): ...", ["has no build", "Define build in", ".py"]),
        ("class A:\n    def build(self): ...", ["has no build"]),
        ("import no_such_package_at_all", ["needs no_such_package_at_all", "pip install no_such_package_at_all"]),
        ("from no_such_package_at_all.x import y", ["needs no_such_package_at_all", "pip install"]),
        ("def build(:", ["line 1", "is not Python", "python /"]),
    ],
)
def test_a_mistake_is_told_without_running_anything(mine, text: str, parts: list[str]) -> None:
    word = f"{mine(text)}:build"
    with pytest.raises(UserError) as caught:
        check_code(word, "model.family")
    line = str(caught.value)
    assert line.startswith(f"model.family names {word}, ")
    assert [part for part in parts if part not in line] == []
    assert "\n" not in line


@pytest.mark.parametrize("look", [check_code, load_code])
@pytest.mark.parametrize("word", ["gone_away:build", "gone_away.inner:build", "json.gone_away:build"])
def test_a_module_that_is_not_there_is_named(mine, look, word: str) -> None:
    mine("")
    with pytest.raises(UserError, match=r"there is no module (json\.)?gone_away") as caught:
        look(word, "callbacks")
    assert "Run it from the folder that holds" in caught.value.remedy


def test_what_a_notebook_defines_must_go_into_a_file() -> None:
    with pytest.raises(UserError, match="the code of a script or a notebook") as caught:
        check_code("__main__:build", "model.family")
    assert "mine:build" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("\n1 / 0", r"ZeroDivisionError: division by zero \(mine_.*\.py, line 2\)"),
        ("import sys\nsys.exit('no')", r"SystemExit: no \(mine_.*\.py, line 2\)"),
        ("import gone_away_too", "needs gone_away_too"),
        ("def f(:", "SyntaxError"),
        ("x = 1", "has no build"),
    ],
)
def test_an_import_that_fails_is_told_in_a_line(mine, text: str, part: str) -> None:
    with pytest.raises(UserError, match=part) as caught:
        load_code(f"{mine(text)}:build", "data.path")
    assert "\n" not in str(caught.value)


def test_an_error_is_told_by_the_line_of_the_users_file_even_if_a_library_raised_it(mine) -> None:
    name = mine("import json\n\ndef build():\n    return json.loads('{')\n")
    build = load_code(f"{name}:build", "model.family")
    with pytest.raises(ValueError, match="property name") as caught:
        build()
    told = explain(caught.value, f"{name}:build")
    assert told.startswith("JSONDecodeError: ")
    assert told.endswith(f" ({name}.py, line 4)")
