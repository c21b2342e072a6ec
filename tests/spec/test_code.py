"""The user's own code: checked without running it, and every mistake in it is reported in one line."""

import sys
from pathlib import Path

import pytest

from stoker.spec.code import check_code, explain, is_code, load_code
from stoker.spec.errors import UserError

MARK = "from pathlib import Path\nPath('imported').touch()\n"


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("mine:build", True),
        ("pkg.mod:build", True),
        ("gpt2", False),
        ("./books", False),
        ("s3://bucket/x", False),
        ("mine:", False),
        (":build", False),
        ("a b:c", False),
        ("mine:build\n", False),
    ],
)
def test_code_is_a_module_a_colon_and_a_name(reference: str, answer: bool) -> None:
    assert is_code(reference) is answer


def test_a_module_of_this_folder_is_loaded(mine) -> None:
    name = mine("def build():\n    return 7\n")
    assert load_code(f"{name}:build", "model.family")() == 7


def test_installed_modules_come_before_those_of_this_folder(mine, tmp_path: Path) -> None:
    mine("")
    (tmp_path / "json.py").write_text("raise RuntimeError('the installed module must be imported')")
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
def test_a_name_may_be_defined_in_many_ways(mine, text: str) -> None:
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
def test_a_mistake_is_reported_without_running_the_code(mine, text: str, parts: list[str]) -> None:
    reference = f"{mine(text)}:build"
    with pytest.raises(UserError) as error:
        check_code(reference, "model.family")
    line = str(error.value)
    assert line.startswith(f"model.family names {reference}, ")
    assert [part for part in parts if part not in line] == []
    assert "\n" not in line


@pytest.mark.parametrize("check", [check_code, load_code])
@pytest.mark.parametrize("reference", ["gone_away:build", "gone_away.inner:build", "json.gone_away:build"])
def test_a_missing_module_is_named(mine, check, reference: str) -> None:
    mine("")
    with pytest.raises(UserError, match=r"there is no module (json\.)?gone_away") as error:
        check(reference, "callbacks")
    assert "Run it from the folder that holds" in error.value.remedy


def test_code_of_a_notebook_must_be_moved_into_a_file() -> None:
    with pytest.raises(UserError, match="the code of a script or a notebook") as error:
        check_code("__main__:build", "model.family")
    assert "mine:build" in error.value.remedy


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
def test_an_import_that_fails_is_reported_in_one_line(mine, text: str, part: str) -> None:
    with pytest.raises(UserError, match=part) as error:
        load_code(f"{mine(text)}:build", "data.path")
    assert "\n" not in str(error.value)


def test_an_error_is_reported_with_the_line_of_the_users_file_even_if_a_library_raised_it(mine) -> None:
    name = mine("import json\n\ndef build():\n    return json.loads('{')\n")
    build = load_code(f"{name}:build", "model.family")
    with pytest.raises(ValueError, match="property name") as error:
        build()
    summary = explain(error.value, f"{name}:build")
    assert summary.startswith("JSONDecodeError: ")
    assert summary.endswith(f" ({name}.py, line 4)")


def test_a_module_without_a_file_that_lacks_the_name_is_reported() -> None:
    with pytest.raises(UserError, match=r"sys has no build\. Define build in sys"):
        load_code("sys:build", "callbacks")
