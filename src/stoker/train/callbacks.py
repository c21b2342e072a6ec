"""What the user's own code is told while a run trains: plain data, on the first worker, and copies of all that is kept.

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

    One is made, without arguments, by the first worker of a run each time the run starts or goes on. Training waits
    while a method runs. An exception in one saves the run and ends it as failed; the same command goes on.
    """

    def started(self, run: Path, spec: dict[str, Any], step: int) -> None:
        """The run's folder, its spec, and the step it goes on from: 0 when it is new."""

    def step(self, record: dict[str, Any]) -> None:
        """A logged step, just as metrics.jsonl has it: step, loss, lr, grad_norm, tokens …"""

    def evaluated(self, step: int, loss: float, best: bool) -> None:
        """The loss on the held-out text after a step, and whether it is the lowest so far."""

    def saved(self, step: int, folder: Path) -> None:
        """The checkpoint of a step is whole, in this folder."""

    def ended(self, state: str, step: int, reason: str) -> None:
        """`done`, `paused` or `failed`, and why. A run that is killed tells nobody."""


class Callbacks:
    """The callbacks of a run. One that fails is told no more, and `problem` says what happened."""

    def __init__(self, words: Sequence[str]) -> None:
        self._all = [(word, _made(word)) for word in words]
        self.problem: str | None = None

    def tell(self, what: str, *facts: Any) -> None:
        for word, callback in list(self._all):
            try:
                getattr(callback, what)(*deepcopy(facts))
            except (Exception, SystemExit) as e:
                self.problem = self.problem or f"the callback {word} failed in {what}: {explain(e, word)}"
                self._all.remove((word, callback))


class _EachStep(Callback):
    """A plain function: told of each logged step."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self._function = function

    def step(self, record: dict[str, Any]) -> None:
        self._function(record)


def _made(word: str) -> Callback:
    found = load_code(word, KEY)
    if not inspect.isclass(found):
        if not callable(found):
            raise UserError(
                f"{KEY} names {word}, which is neither a class nor a function but {type(found).__name__}",
                remedy="Name a class or a function",
            )
        return _EachStep(found)
    if not issubclass(found, Callback):
        raise UserError(
            f"{KEY} names {word}, a class that is no stoker.Callback", remedy="Derive it from stoker.Callback"
        )
    try:
        return found()
    except (Exception, SystemExit) as e:
        raise UserError(
            f"{KEY} names {word}, and making one fails: {explain(e, word)}",
            remedy="It is made without arguments: mend it, or take it out",
        ) from e
