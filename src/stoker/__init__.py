"""Stoker trains language models on your own data and looks after the run until it is done.

run = stoker.submit("run.yaml", "until.steps=2k")
run = stoker.open_run("my-gpt2")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.api import Run, load, open_run, submit
    from stoker.spec.errors import UserError
    from stoker.spec.run import RunSpec, ScriptSpec
    from stoker.train.callbacks import Callback

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Run",
    "RunSpec",
    "ScriptSpec",
    "UserError",
    "__version__",
    "load",
    "open_run",
    "submit",
]

_HOMES = {
    "Callback": "stoker.train.callbacks",
    "Run": "stoker.api",
    "RunSpec": "stoker.spec.run",
    "ScriptSpec": "stoker.spec.run",
    "UserError": "stoker.spec.errors",
    "load": "stoker.api",
    "open_run": "stoker.api",
    "submit": "stoker.api",
}


def __getattr__(name: str) -> Any:
    """Only when it is asked for: `stoker --help` needs none of it."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'stoker' has no attribute '{name}'")
