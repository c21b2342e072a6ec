"""The rules of the house that a machine can check: imports point down, files stay small."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "stoker"
FILES = sorted(SRC.rglob("*.py"))

BELOW = {  # room -> the rooms it may import
    "spec": set(),
    "rundir": {"spec"},
    "kube": {"spec"},
    "storage": {"spec", "rundir"},
    "data": {"spec", "rundir", "storage"},
    "train": {"spec", "rundir", "storage", "data"},
    "supervise": {"spec", "rundir", "storage"},
    "launch": {"spec", "rundir", "kube"},
    "observe": {"spec", "rundir", "storage", "data", "kube", "launch"},
    "api": {"spec", "rundir", "storage", "data", "kube", "train", "launch", "observe"},
    "cli": {"spec", "rundir", "storage", "data", "kube", "train", "launch", "observe", "api"},
    "__main__": {"cli"},
}
ONLY_HERE = {
    "torch": {"train"},
    "boto3": {"storage"},
    "botocore": {"storage"},
    "google": {"storage"},
    "pyarrow": {"data"},
    "h5py": {"data"},
    "tokenizers": {"data", "train"},
    "rich": {"cli"},
    "kr8s": {"kube"},
    "httpx": {"kube", "launch"},
}
MOST_LINES = 500
MOST_LINES_OF_A_FUNCTION = 60


def modules_imported(tree: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names += [f"stoker.{alias.name}" for alias in node.names] if module == "stoker" else [module]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(SRC).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for name in modules_imported(ast.parse(path.read_text())):
        package, _, rest = name.partition(".")
        if package == "stoker" and rest:
            used = rest.split(".")[0]
            assert used in BELOW[room] | {room} or used == "__version__", f"{room} may not import {used}"
        assert room in ONLY_HERE.get(package, {room}), f"{room} may not import {package}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno < MOST_LINES_OF_A_FUNCTION, f"{node.name} is too long"


def test_every_room_has_its_place() -> None:
    rooms = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert rooms == set(BELOW)
