"""The user's own code, named as `package.module:name`: found in installed modules, then in this folder."""

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
UNKNOWABLE = {"*", "__getattr__"}  # a module with one of these may have any name


def is_code(word: str) -> bool:
    return re.match(CODE, word) is not None


def load_code(word: str, key: str) -> Any:
    """What `word` names; `key` is where the spec says it."""
    module, _, name = word.partition(":")
    _look_here_too()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise _not_there(word, key, e) from e
    except (Exception, SystemExit) as e:
        raise UserError(
            f"{key} names {word}, and importing {module} fails: {explain(e, word)}",
            remedy=f"Try it with: python -c 'import {module}'",
        ) from e
    if not hasattr(found, name):
        raise _no_such_name(word, key, found.__file__)
    return getattr(found, name)


def check_code(word: str, key: str) -> None:
    """What can be known of it without importing it: that is for the workers, and may take torch and seconds."""
    module, _, name = word.partition(":")
    if module == "__main__":
        raise UserError(
            f"{key} names {word}, and other processes cannot import what a script or a notebook defines",
            remedy=f"Put it into a file such as mine.py and write mine:{name}",
        )
    _look_here_too()
    try:
        origin = _find(module).origin
        if origin is None or not origin.endswith(".py"):
            return
        tree = ast.parse(Path(origin).read_bytes(), origin)
        for needed in _needs(tree):
            _find(needed)
    except ModuleNotFoundError as e:
        raise _not_there(word, key, e) from e
    except (SyntaxError, ValueError) as e:
        line = f", line {e.lineno}" if isinstance(e, SyntaxError) else ""
        raise UserError(
            f"{key} names {word}, and {origin}{line} is not Python: {e.args[0]}", remedy=f"Try it with: python {origin}"
        ) from e
    names = set(_names(tree))
    if name not in names and not names & UNKNOWABLE:
        raise _no_such_name(word, key, origin)


def module_place(word: str, key: str) -> Path:
    """The folder that holds the module which `word` names, or the package around it."""
    _look_here_too()
    top = word.partition(":")[0].partition(".")[0]
    try:
        found = _find(top)
    except ModuleNotFoundError as e:
        raise _not_there(word, key, e) from e
    places = [Path(place) for place in found.submodule_search_locations or ()] or [Path(found.origin or top)]
    return places[0].absolute().parent


def explain(error: BaseException, word: str) -> str:
    """An error in the user's code in one line: type, message, and the last line of his file on the way to it."""
    message = (str(error).strip().splitlines() or [""])[0]
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    try:
        file = _find(word.partition(":")[0]).origin
    except ModuleNotFoundError:
        file = None
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{what} ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else what


def _look_here_too() -> None:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # a notebook may have written the file a moment ago


def _find(module: str) -> ModuleSpec:
    """Where a module is. Unlike importlib.util.find_spec this imports none of the packages around it."""
    found, places = None, None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        try:
            found = next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, places))), None)
        except KeyError:  # a folder without __init__.py inside a package: only the real import looks there
            found = importlib.util.find_spec(name)
        if found is None or (found.submodule_search_locations is None and number < len(parts)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        places = list(found.submodule_search_locations or ())
    assert found is not None
    return found


def _needs(tree: ast.Module) -> Iterator[str]:
    """The packages that a module imports whatever happens."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _names(tree: ast.AST) -> Iterator[str]:
    """What a module defines, as far as its text tells."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _names(node)


def _not_there(word: str, key: str, error: ModuleNotFoundError) -> UserError:
    module, missing = word.partition(":")[0], error.name
    if missing is None or not f"{module}.".startswith(f"{missing}."):
        package = (missing or module).partition(".")[0]
        return UserError(
            f"{key} names {word}, which needs {missing or package}, and that is not installed",
            remedy=f"Run: pip install {package}",
        )
    return UserError(
        f"{key} names {word}, and there is no module {missing}",
        remedy=f"Run it from the folder that holds {module.partition('.')[0]}, or install it with pip",
    )


def _no_such_name(word: str, key: str, file: str | None) -> UserError:
    module, _, name = word.partition(":")
    return UserError(f"{key} names {word}, and {module} has no {name}", remedy=f"Define {name} in {file or module}")
