"""The manifests of every example, for every kind of job, as they were last reviewed."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "golden"


def script() -> ModuleType:
    module_spec = importlib.util.spec_from_file_location("regenerate", FOLDER / "regenerate.py")
    assert module_spec
    assert module_spec.loader
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


GOLDEN = script()
CASES = [(example, job) for example in GOLDEN.EXAMPLES for job in GOLDEN.KINDS]


@pytest.mark.parametrize(("example", "job"), CASES, ids=lambda value: value.name if isinstance(value, Path) else value)
def test_the_manifests_are_those_that_were_reviewed(example: Path, job: str) -> None:
    golden_text = GOLDEN.golden(example, job).read_text()
    assert GOLDEN.made(example, job) == golden_text, "run: python tests/golden/regenerate.py, and read what has changed"


def test_every_example_has_its_manifests_and_no_other() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {GOLDEN.golden(*case).name for case in CASES}


@pytest.mark.parametrize(("example", "job"), CASES, ids=lambda value: value.name if isinstance(value, Path) else value)
def test_every_object_carries_the_labels_and_the_name_of_its_run(example: Path, job: str) -> None:
    for manifest in yaml.safe_load_all(GOLDEN.golden(example, job).read_text()):
        if manifest["kind"] == "Queue":  # shared by all runs
            continue
        run = manifest["metadata"]["labels"]["stoker.dev/run"]
        assert manifest["metadata"]["name"].startswith(run)
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "stoker"
