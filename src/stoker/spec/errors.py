"""The errors that reach a user, one class for each reaction.

    StokerError
    ├── UserError      the user's mistake: one line and a remedy, exit 2
    │   └── MissingExtra   an optional part is not installed
    ├── RunFailed      the run itself failed: exit 3
    └── SavedForLater  the run stopped with its work saved and can go on: exit 75

They are raised anywhere and caught in two places: `cli/main.py`, and `train/__main__.py`, which writes exit.json.
"""

ENDS = (".", "?", "!", "…")  # after one of these no full stop follows


class StokerError(Exception):
    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        """One line, whatever names it holds; a remedy may bring lines of its own, such as a manifest."""
        problem = self.problem.replace("\n", "\\n")
        if not self.remedy:
            return problem
        return f"{problem}{'' if problem.endswith(ENDS) else '.'} {self.remedy}"


class UserError(StokerError):
    """Something the user can mend: a key, a file, a value."""


class MissingExtra(UserError):
    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed", remedy=f"Run: pip install 'stoker[{extra}]'")


class RunFailed(StokerError):
    """The run ended before its goal, and going on as it is would fail again."""


class SavedForLater(StokerError):
    """The run stopped early with its work saved; the same command goes on."""
