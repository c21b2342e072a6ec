"""The docs are correct: the reference matches the source, every link has a target, every example runs."""

import argparse
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stoker.cli.main import VERBS, add_arguments

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*/run.yaml"))
COMMANDS = [*PAGES, *sorted((ROOT / "examples").glob("*/README.md"))]
SMALL = [
    "data.tokenizer={train: 300}", "batch.sequences=2", "batch.length=16", "until={steps: 2}", "on.workers=1",
    "model.layers=2", "model.heads=2", "model.width=32", "optim.warmup=1", "compile=false", "eval.sequences=2",
]  # fmt: skip


def test_the_reference_is_made_from_the_source() -> None:
    found = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert found is not None
    assert found.loader is not None
    generate = importlib.util.module_from_spec(found)
    found.loader.exec_module(generate)
    assert generate.OUT.read_text() == generate.reference(), "run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", COMMANDS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_has_the_options_that_it_is_given(page: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for line in re.findall(r"\bstoker ((?:[a-z-]+).*)", "\n".join(blocks).replace("\\\n", " ")):
        try:
            verb, *words = shlex.split(re.split(r"\s#|[|;>]", line)[0])
        except ValueError:  # the quotes go on in the next line
            continue
        if verb in VERBS:
            known = options(verb)
            assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == [], line


def options(verb: str) -> set[str]:
    parser = argparse.ArgumentParser()
    add_arguments(verb, parser)
    return {option for action in parser._actions for option in action.option_strings} | {"--"}


def test_the_readme_lists_exactly_the_packages() -> None:
    tree = re.search(r"^src/stoker/\n((?:  .*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert tree is not None
    listed = re.findall(r"^  (\w+)/ ", tree[1], re.MULTILINE)
    source = ROOT / "src" / "stoker"
    packages = [p.name for p in source.iterdir() if p.is_dir() and p.name != "__pycache__"]
    assert sorted(listed) == sorted(packages)
    assert {p.name for p in source.iterdir() if p.is_file()} == {"__init__.py", "__main__.py", "py.typed"}


def test_every_path_of_where_to_look_exists() -> None:
    section = re.search(
        r"^## Where to look\n(.*?)^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert section is not None
    rows = [line for line in section[1].splitlines() if line.startswith("|")][2:]
    assert len(rows) == 10
    for row in rows:
        paths = re.findall(r"`(src/[^`]+)`", row)
        assert paths, row
        assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.parent.name)
def test_an_example_is_short_and_trains(stoker, books: Path, example: Path) -> None:
    assert len(example.read_text().splitlines()) <= 25
    assert (example.parent / "README.md").is_file()
    text = example.read_text()
    words, steps = (["args=[--steps, 20]"], 20) if "script:" in text else (SMALL, 2)
    if "mine:" in text:
        shutil.copy(example.with_name("mine.py"), stoker.folder)  # code of one's own is found where stoker runs
    elif "script:" not in text:
        words = [f"data.path={books}", *words]
    stoker("train", str(example), *words, "name=example")
    assert stoker.run("example").metrics()[-1]["step"] == steps


def test_the_readmes_run_file_is_a_run_file(stoker, books: Path, tmp_path: Path) -> None:
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert text is not None
    assert yaml.safe_load(text[1])["name"] == "books"
    (tmp_path / "run.yaml").write_text(text[1])
    shown = stoker("train", "run.yaml", f"data.path={books}", "--dry-run").stdout
    assert "books" in shown


def test_the_guides_own_code_is_that_of_the_example() -> None:
    example = (ROOT / "examples" / "04-own-code" / "mine.py").read_text()
    shown = code_of("own-code.md")
    assert len(shown) == 4
    assert all(block in example for block in shown)


def test_the_guides_python_runs(stoker, books: Path) -> None:
    (stoker.folder / "books").symlink_to(books)
    (stoker.folder / "run.yaml").write_text(
        "model: {layers: 1, heads: 2, width: 32, context: 32}\n"
        "data: {path: books, tokenizer: {train: 300}}\n"
        "batch: {sequences: 2, length: 32}\n"
        "until: {steps: 1000}\n"
        "on: {workers: 1}\n"
    )
    for block, end in zip(code_of("python.md"), ["logged steps", "['done', 'done']"], strict=True):
        argv = [sys.executable, "-c", block]
        done = subprocess.run(argv, cwd=stoker.folder, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith(end)


def code_of(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / guide).read_text(), re.DOTALL)
