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
from stoker.spec.keys import keys

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*/run.yaml"))
COMMANDS = [*PAGES, *sorted((ROOT / "examples").glob("*/README.md"))]
SMALL = [
    "data.tokenizer={train: 300}", "batch.sequences=2", "batch.length=16", "until={steps: 2}", "on.workers=1",
    "model.layers=2", "model.heads=2", "model.width=32", "optim.warmup=1", "compile=false", "eval.sequences=2",
]  # fmt: skip


def test_the_reference_is_made_from_the_source() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.OUT.read_text() == generate.reference(), "run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", COMMANDS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_verb_option_and_key_of_a_command_exists(page: Path) -> None:
    for line in commands(page.read_text()):
        try:
            verb, *words = shlex.split(re.split(r"\s#|[|;>]", line)[0])
        except ValueError:  # a quoted text continues in the next line
            continue
        assert verb in VERBS, line
        known = options(verb)
        assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == [], line
        overrides = [word.partition("=")[0] for word in words if re.match(r"[a-z_]+(\.[a-z_]+)+=", word)]
        assert [key for key in overrides if not any(f"{key}.".startswith(f"{other}.") for other in keys())] == [], line


def commands(text: str) -> list[str]:
    """The `stoker …` commands in code blocks and in inline code, without `stoker`."""
    block = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    blocks = "\n".join(block.findall(text)).replace("\\\n", " ")
    inline = re.findall(r"`stoker ([a-z][^`]*)`", block.sub("", text))
    return re.findall(r"^\s*(?:.*\| )?stoker ([a-z].*)", blocks, re.MULTILINE) + inline


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


def test_every_path_in_where_to_look_exists() -> None:
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
        shutil.copy(example.with_name("mine.py"), stoker.folder)  # imported from the folder where stoker runs
    elif "script:" not in text:
        words = [f"data.path={books}", *words]
    stoker("train", str(example), *words, "name=example")
    assert stoker.run("example").metrics()[-1]["step"] == steps


def test_the_readmes_run_file_is_a_run_file(stoker, books: Path, tmp_path: Path) -> None:
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert text is not None
    assert yaml.safe_load(text[1])["name"] == "books"
    (tmp_path / "run.yaml").write_text(text[1])
    plan = stoker("train", "run.yaml", f"data.path={books}", "--dry-run").stdout
    assert "books" in plan


def test_the_code_of_the_own_code_guide_is_in_the_example() -> None:
    example = (ROOT / "examples" / "04-own-code" / "mine.py").read_text()
    blocks = code_of("own-code.md")
    assert len(blocks) == 4
    assert all(block in example for block in blocks)


def test_the_code_of_the_python_guide_runs(stoker, books: Path) -> None:
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
