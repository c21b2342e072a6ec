"""Code that a run names, when the run was only opened: nothing is executed before the user says --trust."""

import io
import json
from pathlib import Path

import pytest
import yaml

from stoker.rundir.checkpoint import sealed
from tests.inside import inside

MARKER = Path("executed")
EVIL = f"""
import pathlib
pathlib.Path({str(MARKER)!r}).touch()

def build(shape):
    return None
"""


@pytest.fixture
def hostile(tale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of somebody else's, opened in a folder that holds the module that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    (tmp_path / f"evil_{tmp_path.name}.py").write_text(EVIL)  # a name of its own: it is imported into this process
    change(tale, model={"family": f"evil_{tmp_path.name}:build"})
    for manifest in tale.glob("checkpoints/*/manifest.json"):
        record = json.loads(manifest.read_text())
        record["state"]["model"]["family"] = f"evil_{tmp_path.name}:build"
        del record["seal"]
        manifest.write_text(json.dumps(sealed(record, record["files"])))
    return tale


def change(run: Path, **sections: object) -> None:
    values = yaml.safe_load((run / "spec.yaml").read_text())
    for name, value in sections.items():
        values[name] = values[name] | value if isinstance(value, dict) else value
    (run / "spec.yaml").write_text(yaml.safe_dump(values))


def refused(*words: str) -> None:
    done = inside(*words, code=2)
    (line,) = done.stderr.splitlines()
    assert "names code that would be executed here" in line
    assert "--trust" in line
    assert not MARKER.exists()


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize(
    "words",
    [
        ("generate", "tale", "the"),
        ("generate", "runs/tale/checkpoints/step-000000040", "the"),
        ("eval", "tale"),
        ("export", "tale"),
        ("replay", "tale", "--step", "3"),
        ("launch", "tale"),
        ("launch", "tale", "--new"),
        ("train", "runs/tale/spec.yaml"),
        ("train", "name=other", "init=tale", "data=x.txt", "until.steps=1"),
        ("train", "name=other", "objective.teacher=tale", "data=x.txt", "until.steps=1"),
    ],
    ids=" ".join,
)
def test_a_module_that_an_opened_run_names_is_not_imported(words: tuple[str, ...]) -> None:
    refused(*words)


@pytest.mark.usefixtures("hostile")
def test_it_is_imported_when_the_user_trusts_it() -> None:
    done = inside("generate", "tale", "the", "--trust", code=2)
    assert "it returned None" in done.stderr
    assert MARKER.exists()


@pytest.mark.parametrize(
    "planted",
    [{"env": {"LD_PRELOAD": "/evil.so"}}, {"callbacks": ["evil:tell"]}, {"secrets": {"KEY": "file:/etc/shadow"}}],
    ids=lambda planted: next(iter(planted)),
)
def test_nor_is_anything_else_that_a_launch_would_execute(
    tale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    change(tale, **planted)
    refused("launch", "tale")
    if "env" in planted:
        refused("replay", "tale", "--step", "3")


def test_a_script_of_an_opened_run_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "work"
    run.mkdir(parents=True)
    (run / "evil.py").write_text(EVIL)
    (run / "spec.yaml").write_text(f"name: work\nscript: {run / 'evil.py'}\n")
    refused("launch", "work")
    (run / "logs").mkdir()
    refused("train", str(run / "spec.yaml"))
