"""Callbacks: the user's own code, called on the first worker while a run trains, with copies of plain data.

Nothing here imports torch: a callback can be written and tested without it.
"""

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from stoker.spec.code import explain, load_code
from stoker.spec.errors import UserError

KEY = "callbacks"


class Callback:
    """A base class whose methods do nothing: override those you need.

    The first worker creates an instance, without arguments, each time the run starts or resumes. Training waits while a
    method runs. An exception in a method saves the run and ends it as failed; the same command resumes it.
    """

    def started(self, run: Path, spec: dict[str, Any], step: int) -> None:
        """The run's folder, its spec, and the step it resumes from: 0 when it is new."""

    def step(self, record: dict[str, Any]) -> None:
        """A logged step, as in metrics.jsonl: step, loss, lr, grad_norm, tokens …"""

    def evaluated(self, step: int, loss: float, best: bool) -> None:
        """The loss on the held-out text after a step, and whether it is the lowest so far."""

    def saved(self, step: int, folder: Path) -> None:
        """The checkpoint of a step is complete, in this folder."""

    def ended(self, state: str, step: int, reason: str) -> None:
        """`done`, `paused` or `failed`, and why. Not called when the run is killed."""


class Callbacks:
    """The callbacks of a run. A callback that fails is not called again; `problem` has the error."""

    def __init__(self, names: Sequence[str]) -> None:
        self._callbacks = [(name, _make(name)) for name in names]
        self.problem: str | None = None

    def notify(self, method: str, *arguments: Any) -> None:
        for name, callback in list(self._callbacks):
            try:
                getattr(callback, method)(*deepcopy(arguments))
            except (Exception, SystemExit) as e:
                self.problem = self.problem or f"the callback {name} failed in {method}: {explain(e, name)}"
                self._callbacks.remove((name, callback))


class _StepFunction(Callback):
    """A plain function, called with each logged step."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self._function = function

    def step(self, record: dict[str, Any]) -> None:
        self._function(record)


def _make(name: str) -> Callback:
    loaded = load_code(name, KEY)
    if not inspect.isclass(loaded):
        if not callable(loaded):
            raise UserError(
                f"{KEY} names {name}, which is neither a class nor a function but {type(loaded).__name__}",
                remedy="Name a class or a function",
            )
        return _StepFunction(loaded)
    if not issubclass(loaded, Callback):
        raise UserError(
            f"{KEY} names {name}, a class that is not a stoker.Callback", remedy="Derive it from stoker.Callback"
        )
    try:
        return loaded()
    except (Exception, SystemExit) as e:
        raise UserError(
            f"{KEY} names {name}, and creating one fails: {explain(e, name)}",
            remedy="It is created without arguments: fix it, or remove it from the run file",
        ) from e
