"""The manifests of every example, for every kind of job, as they were last reviewed."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "golden"


def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("regenerate", FOLDER / "regenerate.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


GOLDEN = script()
CASES = [(example, job) for example in GOLDEN.EXAMPLES for job in GOLDEN.KINDS]


@pytest.mark.parametrize(("example", "job"), CASES, ids=lambda one: one.name if isinstance(one, Path) else one)
def test_the_manifests_are_those_that_were_reviewed(example: Path, job: str) -> None:
    kept = GOLDEN.golden(example, job).read_text()
    assert GOLDEN.made(example, job) == kept, "run: python tests/golden/regenerate.py, and read what has changed"


def test_every_example_has_its_manifests_and_no_other() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {GOLDEN.golden(*case).name for case in CASES}


@pytest.mark.parametrize(("example", "job"), CASES, ids=lambda one: one.name if isinstance(one, Path) else one)
def test_every_object_carries_the_labels_and_the_name_of_its_run(example: Path, job: str) -> None:
    for one in yaml.safe_load_all(GOLDEN.golden(example, job).read_text()):
        if one["kind"] == "Queue":  # which is no run's own
            continue
        run = one["metadata"]["labels"]["stoker.dev/run"]
        assert one["metadata"]["name"].startswith(run)
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "stoker"
