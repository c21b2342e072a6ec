"""The user's own code, named as `package.module:name`: in installed modules, then in the current folder."""

import ast
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from stoker.spec.errors import UserError

CODE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
DYNAMIC = {"*", "__getattr__"}  # a module with one of these may define any name


def is_code(reference: str) -> bool:
    return re.fullmatch(CODE, reference) is not None


def load_code(reference: str, key: str) -> Any:
    """The object that `reference` names; `key` is the key of the run file that has it."""
    module, _, name = reference.partition(":")
    _add_current_folder()
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise _not_importable(reference, key, e) from e
    except (Exception, SystemExit) as e:
        raise UserError(
            f"{key} names {reference}, and importing {module} fails: {explain(e, reference)}",
            remedy=f"Try it with: python -c 'import {module}'",
        ) from e
    if not hasattr(loaded, name):
        raise _no_such_name(reference, key, getattr(loaded, "__file__", None))
    return getattr(loaded, name)


def check_code(reference: str, key: str) -> None:
    """Checks it without importing it: that is done by the workers, and may load torch and take seconds."""
    module, _, name = reference.partition(":")
    if module == "__main__":
        raise UserError(
            f"{key} names {reference}, and other processes cannot import the code of a script or a notebook",
            remedy=f"Put it into a file such as mine.py and write mine:{name}",
        )
    _add_current_folder()
    try:
        origin = _find(module).origin
        if origin is None or not origin.endswith(".py"):
            return
        tree = ast.parse(Path(origin).read_bytes(), origin)
        for needed in _needs(tree):
            _find(needed)
    except ModuleNotFoundError as e:
        raise _not_importable(reference, key, e) from e
    except (SyntaxError, ValueError) as e:
        line = f", line {e.lineno}" if isinstance(e, SyntaxError) else ""
        raise UserError(
            f"{key} names {reference}, and {origin}{line} is not Python: {e.args[0]}",
            remedy=f"Try it with: python {origin}",
        ) from e
    names = set(_names(tree))
    if name not in names and not names & DYNAMIC:
        raise _no_such_name(reference, key, origin)


def module_place(reference: str, key: str) -> Path:
    """The folder that contains the module, or its top-level package."""
    _add_current_folder()
    top = reference.partition(":")[0].partition(".")[0]
    try:
        spec = _find(top)
    except ModuleNotFoundError as e:
        raise _not_importable(reference, key, e) from e
    places = [Path(place) for place in spec.submodule_search_locations or ()] or [Path(spec.origin or top)]
    return places[0].absolute().parent


def explain(error: BaseException, reference: str) -> str:
    """An error in the user's code in one line: type, message, and the last line of the user's file in the traceback."""
    message = (str(error).strip().splitlines() or [""])[0]
    summary = f"{type(error).__name__}: {message}" if message else type(error).__name__
    try:
        file = _find(reference.partition(":")[0]).origin
    except ModuleNotFoundError:
        file = None
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{summary} ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else summary


def _add_current_folder() -> None:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # a notebook may have written the file a moment ago


def _find(module: str) -> ModuleSpec:
    """The spec of a module. Unlike importlib.util.find_spec this does not import its parent packages."""
    module_spec, places = None, None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        try:
            module_spec = next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, places))), None)
        except KeyError:  # a folder without __init__.py inside a package: only importlib finds it
            module_spec = importlib.util.find_spec(name)
        if module_spec is None or (module_spec.submodule_search_locations is None and number < len(parts)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        places = list(module_spec.submodule_search_locations or ())
    assert module_spec is not None
    return module_spec


def _needs(tree: ast.Module) -> Iterator[str]:
    """The packages that a module imports at its top level."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _names(tree: ast.AST) -> Iterator[str]:
    """The names that a module defines, as far as its source shows."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _names(node)


def _not_importable(reference: str, key: str, error: ModuleNotFoundError) -> UserError:
    module, missing = reference.partition(":")[0], error.name
    if missing is None or not f"{module}.".startswith(f"{missing}."):
        package = (missing or module).partition(".")[0]
        return UserError(
            f"{key} names {reference}, which needs {missing or package}, and that is not installed",
            remedy=f"Run: pip install {package}",
        )
    return UserError(
        f"{key} names {reference}, and there is no module {missing}",
        remedy=f"Run it from the folder that holds {module.partition('.')[0]}, or install it with pip",
    )


def _no_such_name(reference: str, key: str, file: str | None) -> UserError:
    module, _, name = reference.partition(":")
    return UserError(
        f"{key} names {reference}, and {module} has no {name}", remedy=f"Define {name} in {file or module}"
    )
