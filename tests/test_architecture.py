"""The rules that a machine can check: imports point down, files stay small, errors are typed."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "stoker"
FILES = sorted(SRC.rglob("*.py"))

BASE = {"spec", "rundir", "kube", "storage", "data", "image", "diagnose"}
BELOW = {  # package -> the packages it may import
    "spec": set(),
    "rundir": {"spec"},
    "kube": {"spec"},
    "storage": {"spec", "rundir"},
    "data": {"spec", "rundir", "storage"},
    "image": {"spec", "rundir"},
    "diagnose": {"spec", "rundir", "storage"},
    "models": {"spec", "rundir", "storage", "data"},
    "train": {"spec", "rundir", "storage", "data", "models"},
    "supervise": {"spec", "rundir", "storage"},
    "backends": BASE,
    "inference": {"spec", "rundir", "storage", "data", "models", "train"},
    "net": BASE | {"backends"},
    "convert": {"spec", "rundir", "kube"},
    "observe": BASE | {"backends", "net"},
    "api": BASE | {"models", "train", "inference", "backends", "net", "convert", "observe"},
    "cli": BASE | {"models", "train", "inference", "backends", "net", "convert", "observe", "api"},
    "__main__": {"cli"},
}
ONLY_HERE = {
    "torch": {"models", "train", "inference"},
    "boto3": {"storage"},
    "botocore": {"storage"},
    "google": {"storage"},
    "pyarrow": {"data"},
    "h5py": {"data"},
    "tokenizers": {"data", "models", "train", "inference"},
    "rich": {"cli"},
    "httpx2": {"kube", "image"},
}
REGISTRIES = {  # they load modules of Stoker by name
    "__init__.py",
    "backends/__init__.py",
    "backends/checks.py",
    "backends/kubernetes/jobs/__init__.py",
    "cli/main.py",
    "data/remote/__init__.py",
    "data/sources/__init__.py",
    "models/__init__.py",
    "storage/store.py",
    "train/devices/__init__.py",
    "train/objectives/__init__.py",
    "train/parallel/__init__.py",
    "spec/code.py",  # the user's own modules
    "spec/extras.py",  # optional packages
}
CATCH_USER_ERRORS = {  # file -> why it catches UserError and does not raise it again
    "backends/__init__.py": "ps: a run that cannot be read is a row with the reason",
    "backends/local/backend.py": "ps: as above",
    "backends/kubernetes/facts/records.py": "why: the cluster's facts are enough for a diagnosis",
    "backends/kubernetes/records.py": "events: retried while the run's own records cannot be read",
    "backends/kubernetes/view.py": "status: the cluster's view is shown, with the reason",
    "backends/kubernetes/top.py": "a thread: passed to the waiting thread",
    "backends/kubernetes/volume/execution.py": "a thread: as above",
    "backends/transfer/send.py": "a thread: as above",
    "net/agent_client.py": "a thread: as above",
    "train/batches.py": "a thread: as above",
    "backends/kubernetes/volume/in_pod.py": "a process: printed for the process that started it",
    "backends/transfer/frames.py": "a process: sent to the process that started it",
    "data/pool.py": "a process: as above",
    "data/remote/download.py": "a process: printed",
    "data/stream/__main__.py": "a process: recorded for the run",
    "supervise/__main__.py": "a process: printed",
    "supervise/scale.py": "a process: printed",
    "train/__main__.py": "a process: written to exit.json",
    "data/files.py": "replaced by a more exact error",
    "data/passages.py": "files that have moved are searched for, and may be missing",
    "inference/card.py": "a model card without its token set",
    "inference/parity.py": "recorded in the proof of an export",
}
WRITERS = {
    "write_text", "write_bytes", "mkdir", "makedirs", "touch", "unlink", "remove", "rename", "rmtree", "rmdir",
    "symlink_to", "hardlink_to", "copytree", "copyfile", "add_event", "create", "lock", "open_writable",
}  # fmt: skip
TEXTS = {"problem", "remedy", "message", "msg", "args"}
TEXT_TESTS = {"startswith", "endswith", "search", "match", "fullmatch", "find"}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


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
    package = path.relative_to(SRC).parts[0].removesuffix(".py")
    if package == "__init__":
        return
    for name in modules_imported(ast.parse(path.read_text())):
        library, _, rest = name.partition(".")
        if library == "stoker" and rest:
            used = rest.split(".")[0]
            assert used in BELOW[package] | {package} or used == "__version__", f"{package} may not import {used}"
        assert package in ONLY_HERE.get(library, {package}), f"{package} may not import {library}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{node.name} is too long"


def test_every_package_has_a_layer() -> None:
    packages = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert packages == set(BELOW)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_only_registries_load_our_modules_by_name(path: Path) -> None:
    if str(path.relative_to(SRC)) in REGISTRIES:
        return
    for call in calls(path, "import_module") + calls(path, "load_extra"):
        loaded = call.args[0]
        assert isinstance(loaded, ast.Constant), f"line {call.lineno}: which module?"
        assert not str(loaded.value).startswith("stoker"), f"line {call.lineno}: import it, or load it in a registry"


@pytest.mark.parametrize("path", sorted((SRC / "observe").rglob("*.py")), ids=lambda p: p.name)
def test_observe_writes_nothing(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = called(node)
        assert name not in WRITERS, f"line {node.lineno}: {name} writes"
        assert not name.startswith("write_"), f"line {node.lineno}: {name} writes"
        modes = [str(mode.value) for mode in node.args[1:2] if name == "open" and isinstance(mode, ast.Constant)]
        assert not set("".join(modes)) & set("wax+"), f"line {node.lineno}: open for writing"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_user_errors_are_caught_only_in_the_cli(path: Path) -> None:
    """Elsewhere they are raised again, or the file is in CATCH_USER_ERRORS with a reason."""
    name = str(path.relative_to(SRC))
    if name.startswith("cli/") or name in CATCH_USER_ERRORS:
        return
    for handler in handlers(path):
        if isinstance(handler.body[-1], ast.Raise):
            continue
        caught = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()
        assert not caught & {"UserError", "StokerError"}, f"line {handler.lineno}: catch a narrower error"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_no_decision_depends_on_the_text_of_an_error(path: Path) -> None:
    for handler in handlers(path):
        for node in ast.walk(handler):
            compared = isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and called(node) in TEXT_TESTS)
            assert not (compared and mentions_text(node, handler.name)), f"line {node.lineno}: use a type or a code"


def calls(path: Path, name: str) -> list[ast.Call]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Call) and called(node) == name]


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def handlers(path: Path) -> list[ast.ExceptHandler]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ExceptHandler)]


def mentions_text(node: ast.AST, error: str | None) -> bool:
    """Whether the expression contains `str(e)`, `e.problem` or the like."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and called(part) == "str" and part.args:
            part = part.args[0]
        elif isinstance(part, ast.Attribute) and part.attr in TEXTS:
            part = part.value
        else:
            continue
        if isinstance(part, ast.Name) and part.id == error:
            return True
    return False
