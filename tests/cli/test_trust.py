"""Code named by a run that was not launched here is executed only with --trust."""

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
    """Another user's run, in a folder with the module that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    (tmp_path / f"evil_{tmp_path.name}.py").write_text(EVIL)  # a unique name: it is imported into this process
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


def refused(*arguments: str) -> None:
    done = inside(*arguments, code=2)
    (line,) = done.stderr.splitlines()
    assert "names code that would be executed here" in line
    assert "--trust" in line
    assert not MARKER.exists()


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize(
    "arguments",
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
def test_a_module_named_by_a_foreign_run_is_not_imported(arguments: tuple[str, ...]) -> None:
    refused(*arguments)


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
def test_a_launch_of_a_foreign_run_executes_nothing(
    tale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    change(tale, **planted)
    refused("launch", "tale")
    if "env" in planted:
        refused("replay", "tale", "--step", "3")


def test_a_script_of_a_foreign_run_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "work"
    run.mkdir(parents=True)
    (run / "evil.py").write_text(EVIL)
    (run / "spec.yaml").write_text(f"name: work\nscript: {run / 'evil.py'}\n")
    refused("launch", "work")
    (run / "logs").mkdir()
    refused("train", str(run / "spec.yaml"))
